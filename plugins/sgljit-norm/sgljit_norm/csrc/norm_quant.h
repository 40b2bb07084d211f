#pragma once

#include <sgl_kernel/quantize.h>

#include "norm.h"

/// \file norm_quant.h
/// \brief Normalisations whose result is quantised. Read by the C++ compiler for the CPU and by NVRTC.

namespace norms {

/// \brief RMSNorm in FP8; rounded to the dtype of x before that, or not.
template <typename Scale, bool kRounds>
struct RMSNormQuant {
  SGL_OPERANDS(x, weight, q, scale)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const auto normed = sgl::rms_normed<false>(row, values, weights, eps);
    if constexpr (kRounds) return Scale::store(row, q, scale, row.round(x, normed));
    else return Scale::store(row, q, scale, normed);
  }
};

/// \brief The same of the sum of two rows, before that is rounded and stored to the residual.
template <typename Scale, bool kRounds>
struct FusedAddRMSNormQuant {
  SGL_OPERANDS(x, residual, weight, q, scale)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto residuals = row[residual];
    const auto weights = row[weight];
    const auto added = row.keep(residual, sgl::map(sgl::Plus{}, values, residuals));
    const auto normed = sgl::rms_normed<false>(row, added, weights, eps);
    if constexpr (kRounds) return Scale::store(row, q, scale, row.round(x, normed), residual = added);
    else return Scale::store(row, q, scale, normed, residual = added);
  }
};

}  // namespace norms
