#pragma once

#include <sgl_kernel/row_reduce.h>

namespace reductions {

// example: row_reduce_functor
struct RMSNorm {
  float eps;
  SGL_FIELDS(eps)
  SGL_HD float term(float x) const {  // of each element; they are added up
    return x * x;
  }
  SGL_HD float finish(float sum, float size) const {
    return sgl::rsqrt(sum / size + eps);
  }
  SGL_HD float operator()(float factor, float x, float weight) const {
    return x * factor * weight;
  }
};
// end

/// With two inputs, which are both written again.
struct FusedAddRMSNorm {
  float eps;
  SGL_FIELDS(eps)
  SGL_HD float term(float x, float residual) const {
    return (x + residual) * (x + residual);
  }
  SGL_HD float finish(float sum, float size) const {
    return sgl::rsqrt(sum / size + eps);
  }
  SGL_HD sgl::Values<2> operator()(float factor, float x, float residual, float weight) const {
    const float sum = x + residual;
    return {{sum * factor * weight, sum}};
  }
};

/// With a maximum, and without shared rows.
struct ByLargest {
  static constexpr auto kReduction = sgl::Reduction::kMax;
  SGL_HD float term(float x) const {
    return sgl::abs(x);
  }
  SGL_HD float finish(float largest, float) const {
    return 1 / largest;
  }
  SGL_HD float operator()(float factor, float x) const {
    return x * factor;
  }
};

}  // namespace reductions
