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
  SGL_HD float finish(float sum, float size) const {  // of each row, with the number of its elements
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

// example: softmax
struct Softmax {
  static constexpr auto kReduction = sgl::Reduction::kMax;        // of the first pass
  static constexpr auto kSecondReduction = sgl::Reduction::kSum;  // of the second
  struct Statistic {
    float largest, factor;
  };
  SGL_HD float term(float x) const {
    return x;
  }
  SGL_HD float finish(float largest, float) const {
    return largest;
  }
  SGL_HD float second_term(float largest, float x) const {
    return sgl::exp(x - largest);
  }
  SGL_HD Statistic second_finish(float largest, float sum, float) const {
    return {largest, 1 / sum};
  }
  SGL_HD float operator()(const Statistic& row, float x) const {
    return sgl::exp(x - row.largest) * row.factor;
  }
};
// end

/// With inputs that are combined to the first output, reductions of two terms in two passes, a struct as statistic, and
/// a result for each row.
struct Standardised {
  static constexpr auto kOneType = true;
  float* deviations;
  SGL_FIELDS(deviations)

  struct Moments {
    float mean, deviation;
  };
  SGL_HD float combine(float a, float b) const {
    return a - b;
  }
  SGL_HD sgl::Values<2> term(float x) const {
    return {{x, 1}};
  }
  SGL_HD Moments finish(const sgl::Values<2>& sums, float size) const {
    return {sums.values[0] / sums.values[1], size};
  }
  SGL_HD float second_term(const Moments& first, float x) const {
    return (x - first.mean) * (x - first.mean);
  }
  SGL_HD Moments second_finish(const Moments& first, float sum, float) const {
    return {first.mean, sgl::sqrt(sum / first.deviation)};
  }
  SGL_HD void write_row(long long row, const Moments& moments) const {
    deviations[row] = moments.deviation;
  }
  SGL_HD float operator()(const Moments& moments, float x) const {
    return (x - moments.mean) / moments.deviation;
  }
};

}  // namespace reductions
