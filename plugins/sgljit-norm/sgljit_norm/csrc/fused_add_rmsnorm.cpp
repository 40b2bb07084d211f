/// \file fused_add_rmsnorm.cpp
/// \brief The host part of RMSNorm after a residual addition, and before it, too: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView;

template <bool kPlusOne>
host::RowProgram<norms::FusedAddRMSNorm<kPlusOne>> rows_of{"norm.h"};

template <bool kPlusOne>
host::RowProgram<norms::RMSNormAddRMSNorm<kPlusOne>> rows_between_norms{"norm.h"};

/// residual = input + residual, then input = residual / sqrt(mean(residual^2) + eps) * weight, row by row, from the sum
/// before it is rounded; with 1 + weight if `kPlusOne`. On CUDA on the current stream of its device.
template <bool kPlusOne>
void fused_add_rmsnorm(TensorView input, TensorView residual, TensorView weight, double eps) {
  using F = norms::FusedAddRMSNorm<kPlusOne>;
  const auto x = tokens("input", input, 2);
  const auto r = tokens("residual", residual, 2).typed_as(x);
  rows_of<kPlusOne>(
      {checked_eps(kPlusOne ? "gemma_fused_add_rmsnorm" : "fused_add_rmsnorm", eps)}, F::x = x, F::residual = r,
      F::weight = weight_of(x, "weight", weight));
}

/// residual = rmsnorm(input, weight) + residual, then input = rmsnorm(residual, next_weight), row by row. Values are
/// rounded only where they are stored. With 1 + weight if `kPlusOne`. On CUDA on the current stream of its device.
template <bool kPlusOne>
void rmsnorm_add_rmsnorm(TensorView input, TensorView residual, TensorView weight, TensorView next_weight, double eps) {
  using F = norms::RMSNormAddRMSNorm<kPlusOne>;
  const auto x = tokens("input", input, 2);
  const auto r = tokens("residual", residual, 2).typed_as(x);
  rows_between_norms<kPlusOne>(
      {checked_eps(kPlusOne ? "gemma_fused_rmsnorm_add_rmsnorm" : "fused_rmsnorm_add_rmsnorm", eps)}, F::x = x,
      F::residual = r, F::weight = weight_of(x, "weight", weight),
      F::next_weight = weight_of(x, "next_weight", next_weight));
}

}  // namespace

SGL_EXPORT(fused_add_rmsnorm, (fused_add_rmsnorm<false>))
SGL_EXPORT(gemma_fused_add_rmsnorm, (fused_add_rmsnorm<true>))
SGL_EXPORT(fused_rmsnorm_add_rmsnorm, (rmsnorm_add_rmsnorm<false>))
SGL_EXPORT(gemma_fused_rmsnorm_add_rmsnorm, (rmsnorm_add_rmsnorm<true>))
