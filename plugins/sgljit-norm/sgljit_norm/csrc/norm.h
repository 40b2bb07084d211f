#pragma once

#include <sgl_kernel/quantize.h>
#include <sgl_kernel/stages.h>

/// \file norm.h
/// \brief The normalisations of a row, in float. Read by the C++ compiler for the CPU and by NVRTC.

namespace norms {

/// \brief `sgl::rms_normed`.
template <bool kPlusOne>
struct RMSNorm {
  SGL_OPERANDS(x, weight, out)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    return sgl::store(out = sgl::rms_normed<kPlusOne>(row, values, weights, eps));
  }
};

/// \brief `sgl::rms_normed` of the sum of two rows, which is stored to the residual; of the rounded sum if `kRounds`.
template <bool kPlusOne, bool kRounds = false>
struct FusedAddRMSNorm {
  SGL_OPERANDS(x, residual, weight)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto residuals = row[residual];
    const auto weights = row[weight];
    const auto sum = row.keep(residual, sgl::rounded<kRounds>(row, residual, sgl::map(sgl::Plus{}, values, residuals)));
    return sgl::store(residual = sum, x = sgl::rms_normed<kPlusOne>(row, sum, weights, eps));
  }
};

/// \brief `sgl::rms_normed` of a row, added to the residual; then that of the sum, as `FusedAddRMSNorm` has it. If
/// `kRounds`, the first norm is also rounded.
template <bool kPlusOne, bool kRounds = false>
struct RMSNormAddRMSNorm {
  SGL_OPERANDS(x, residual, weight, next_weight)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto residuals = row[residual];
    const auto weights = row[weight];
    const auto next_weights = row[next_weight];
    const auto normed = m_kept(row, sgl::rms_normed<kPlusOne>(row, values, weights, eps));
    const auto sum = row.keep(residual, sgl::rounded<kRounds>(row, residual, sgl::map(sgl::Plus{}, normed, residuals)));
    return sgl::store(residual = sum, x = sgl::rms_normed<kPlusOne>(row, sum, next_weights, eps));
  }

 private:
  /// Kept, a product of float32 is not one instruction with the addition after it on the CPU.
  template <typename Row, typename Normed>
  SGL_HD auto m_kept(const Row& row, const Normed& normed) const {
    if constexpr (kRounds) return row.keep(row.round(x, normed));
    else return normed;
  }
};

/// \brief What normalises a row: (x - mean(x)) / sqrt(variance(x) + eps) for each of its values x.
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
struct Moments {
  float mean, factor, shift;

  template <typename Row, int kOperand, typename Values>
  SGL_HD static Moments of(const Row& row, sgl::Operand<kOperand> x, const Values& values, float eps) {
    const float mean = row.rough_mean(x);
    const auto sums = row.sum(
        [=](float v) {
          const float deviation = v - mean;
          return sgl::Values<2>{{deviation * deviation, deviation}};
        },
        values);
    const float missing = sums.values[1] * (1 / row.size());
    // After rounding, the variance of a constant row may be just below zero.
    const float variance = sgl::max(sums.values[0] * (1 / row.size()) - missing * missing, 0);
    const float factor = sgl::rsqrt(variance + eps);
    return {mean, factor, -missing * factor};
  }
  SGL_HD float operator()(float x) const {
    return (x - mean) * factor + shift;
  }
};

/// \brief (x - mean(x)) / sqrt(variance(x) + eps) * weight
struct LayerNorm {
  SGL_OPERANDS(x, weight, out)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const auto moments = Moments::of(row, x, values, eps);
    return sgl::store(out = sgl::map([=](float v, float w) { return moments(v) * w; }, values, weights));
  }
};

/// \brief (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
struct BiasedLayerNorm {
  SGL_OPERANDS(x, weight, bias, out)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const auto biases = row[bias];
    const auto moments = Moments::of(row, x, values, eps);
    return sgl::store(
        out = sgl::map([=](float v, float w, float b) { return moments(v) * w + b; }, values, weights, biases));
  }
};

}  // namespace norms
