// example: row_map_functor
#pragma once

#include <sgl_kernel/row_map.h>

namespace maps {

struct Affine {  // its members are those of a call
  float scale, shift;
  SGL_FIELDS(scale, shift)
  SGL_HD float operator()(float x) const {
    return x * scale + shift;
  }
};

}  // namespace maps
// end

namespace maps {

/// With a weight and a bias that go with every row.
struct Weighted {
  SGL_HD float operator()(float x, float weight, float bias) const {
    return x * weight + bias;
  }
};

/// With the inputs in one tensor.
struct SiluAndMul {
  SGL_HD float operator()(float gate, float value) const {
    return gate / (1.0f + sgl::exp(-gate)) * value;
  }
};

// With four inputs and two outputs.
// example: values
struct SumAndProduct {
  SGL_HD sgl::Values<2> operator()(float a, float b, float c, float d) const {
    return {{a + b + c + d, a * b * c * d}};
  }
};
// end

/// Every function of functor.h.
struct Function {
  int which;
  SGL_FIELDS(which)
  SGL_HD float operator()(float x) const {
    switch (which) {
      case 0:
        return sgl::exp(x);
      case 1:
        return sgl::log(x);
      case 2:
        return sgl::sqrt(x);
      case 3:
        return sgl::tanh(x);
      case 4:
        return sgl::erf(x);
      case 5:
        return sgl::sin(x);
      case 6:
        return sgl::cos(x);
      case 7:
        return sgl::abs(x);
      case 8:
        return sgl::max(x, 0.5f);
      case 9:
        return sgl::min(x, 0.5f);
      default:
        return sgl::rsqrt(x);
    }
  }
};

}  // namespace maps
