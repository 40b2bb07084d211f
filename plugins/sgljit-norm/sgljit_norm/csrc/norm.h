#pragma once

#include <sgl_kernel/row_reduce.h>

/// \file norm.h
/// \brief The functors of all normalisations, in float. Read by the C++ compiler for the CPU and by NVRTC.

namespace norms {

/// \brief x / sqrt(mean(x^2) + eps) * weight; Gemma's form multiplies by 1 + weight.
template <bool kPlusOne>
struct RMSNorm {
  static constexpr bool kOneType = true;
  float eps;
  SGL_FIELDS(eps)

  SGL_HD float term(float x) const {
    return x * x;
  }
  SGL_HD float finish(float sum, float size) const {
    return sgl::rsqrt(sum * (1 / size) + eps);
  }
  SGL_HD float operator()(float factor, float x, float weight) const {
    const float y = x * factor;
    return kPlusOne ? y * weight + y : y * weight;  // one instruction, and fewer registers than 1 + weight
  }
};

/// \brief RMSNorm of the sum of two rows, before it is rounded.
template <bool kPlusOne>
struct FusedAddRMSNorm : RMSNorm<kPlusOne> {
  SGL_HD float combine(float x, float residual) const {
    return x + residual;
  }
};

/// \brief (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, or without a bias.
///
/// The variance is the mean of (x - mean)^2, in a second pass: mean(x^2) - mean(x)^2 would lose all its digits for rows
/// far from zero. For these the mean as a float is also inexact, by up to half a unit in its last place. The same pass
/// computes the mean of x - mean, which corrects it (the corrected two-pass algorithm of Chan, Golub and LeVeque,
/// https://doi.org/10.1080/00031305.1983.10483115).
///
/// So the first pass may be over a part of the row. If its mean p is of a share s of the row, (p - mean)^2 is at most
/// (1 - s) / s of the variance, whatever is in the row. With 1/128, the least share, the sum about p has up to seven
/// bits more than the variance, which are lost. The low bits of p also round all x - p of a row alike, by up to 2^-24
/// of |x - p|, which is at most 12 standard deviations more than |x - mean|. Results of two bytes have none of these
/// bits.
struct LayerNorm {
  static constexpr bool kOneType = true;
  static constexpr bool kFirstEstimates = true;
  float eps;
  SGL_FIELDS(eps)

  struct Moments {
    float mean, factor, shift;
  };

  SGL_HD float term(float x) const {
    return x;
  }
  SGL_HD float finish(float sum, float size) const {
    return sum * (1 / size);
  }
  SGL_HD sgl::Values<2> second_term(float mean, float x) const {
    const float deviation = x - mean;
    return {{deviation * deviation, deviation}};
  }
  SGL_HD Moments second_finish(float mean, const sgl::Values<2>& sums, float size) const {
    const float missing = sums.values[1] * (1 / size);
    // After rounding, the variance of a constant row may be just below zero.
    const float variance = sgl::max(sums.values[0] * (1 / size) - missing * missing, 0);
    const float factor = sgl::rsqrt(variance + eps);
    return {mean, factor, -missing * factor};
  }
  SGL_HD float operator()(const Moments& moments, float x, float weight) const {
    return ((x - moments.mean) * moments.factor + moments.shift) * weight;
  }
  SGL_HD float operator()(const Moments& moments, float x, float weight, float bias) const {
    return (*this)(moments, x, weight) + bias;
  }
};

}  // namespace norms
