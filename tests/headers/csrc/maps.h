// example: map_functor
#pragma once

#include <sgl_kernel/row_program.h>

namespace maps {

struct Affine {
  SGL_OPERANDS(x, out)
  float scale, shift;
  SGL_FIELDS(scale, shift)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = sgl::map([*this](float v) { return v * scale + shift; }, row[x]));
  }
};

}  // namespace maps
// end

namespace maps {

/// With a weight and a bias that go with every row.
struct Weighted {
  SGL_OPERANDS(x, weight, bias, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto formula = [](float v, float w, float b) { return v * w + b; };
    return sgl::store(out = sgl::map(formula, row[x], row[weight], row[bias]));
  }
};

/// With the inputs in one tensor.
struct SiluAndMul {
  SGL_OPERANDS(gate, value, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto formula = [](float g, float v) { return g / (1.0f + sgl::exp(-g)) * v; };
    return sgl::store(out = sgl::map(formula, row[gate], row[value]));
  }
};

/// With four inputs and two outputs.
struct SumAndProduct {
  SGL_OPERANDS(a, b, c, d, sum, product)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto w = row[a], x = row[b], y = row[c], z = row[d];
    const auto added = sgl::map([](float w, float x, float y, float z) { return w + x + y + z; }, w, x, y, z);
    const auto multiplied = sgl::map([](float w, float x, float y, float z) { return w * x * y * z; }, w, x, y, z);
    return sgl::store(sum = added, product = multiplied);
  }
};

/// Every function of functor.h.
struct Function {
  SGL_OPERANDS(x, out)
  int which;
  SGL_FIELDS(which)

  SGL_HD float of(float v) const {
    switch (which) {
      case 0:
        return sgl::exp(v);
      case 1:
        return sgl::log(v);
      case 2:
        return sgl::sqrt(v);
      case 3:
        return sgl::tanh(v);
      case 4:
        return sgl::erf(v);
      case 5:
        return sgl::sin(v);
      case 6:
        return sgl::cos(v);
      case 7:
        return sgl::abs(v);
      case 8:
        return sgl::max(v, 0.5f);
      case 9:
        return sgl::min(v, 0.5f);
      default:
        return sgl::rsqrt(v);
    }
  }
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = sgl::map([*this](float v) { return of(v); }, row[x]));
  }
};

}  // namespace maps
