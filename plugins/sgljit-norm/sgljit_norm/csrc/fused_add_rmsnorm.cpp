/// \file fused_add_rmsnorm.cpp
/// \brief The host part of RMSNorm after a residual addition, and before it, too: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView;

template <bool kPlusOne, bool kRounds>
host::RowProgram<norms::FusedAddRMSNorm<kPlusOne, kRounds>> rows_of{"norm.h"};

template <bool kPlusOne, bool kRounds>
host::RowProgram<norms::RMSNormAddRMSNorm<kPlusOne, kRounds>> rows_between_norms{"norm.h"};

/// residual = input + residual, then input = residual / sqrt(mean(residual^2) + eps) * weight, row by row, from the sum
/// before it is rounded, or with `round_first` after; with 1 + weight if `kPlusOne`. On CUDA on the current stream of
/// its device.
template <bool kPlusOne>
void fused_add_rmsnorm(TensorView input, TensorView residual, TensorView weight, double eps, bool round_first) {
  using F = norms::FusedAddRMSNorm<kPlusOne>;
  const auto x = tokens("input", input, 2);
  const auto r = tokens("residual", residual, 2).typed_as(x);
  const auto w = weight_of(x, "weight", weight);
  const float checked = checked_eps(kPlusOne ? "gemma_fused_add_rmsnorm" : "fused_add_rmsnorm", eps);
  const auto run = [&](auto& program) { program({checked}, F::x = x, F::residual = r, F::weight = w); };
  round_first ? run(rows_of<kPlusOne, true>) : run(rows_of<kPlusOne, false>);
}

/// residual = rmsnorm(input, weight) + residual, then input = rmsnorm(residual, next_weight), row by row. Values are
/// rounded only where they are stored, or with `round_first` after each operation. With 1 + weight if `kPlusOne`. On
/// CUDA on the current stream of its device.
template <bool kPlusOne>
void rmsnorm_add_rmsnorm(
    TensorView input, TensorView residual, TensorView weight, TensorView next_weight, double eps, bool round_first) {
  using F = norms::RMSNormAddRMSNorm<kPlusOne>;
  const auto x = tokens("input", input, 2);
  const auto r = tokens("residual", residual, 2).typed_as(x);
  const auto w = weight_of(x, "weight", weight), next = weight_of(x, "next_weight", next_weight);
  const float checked = checked_eps(kPlusOne ? "gemma_fused_rmsnorm_add_rmsnorm" : "fused_rmsnorm_add_rmsnorm", eps);
  const auto run = [&](auto& program) {
    program({checked}, F::x = x, F::residual = r, F::weight = w, F::next_weight = next);
  };
  round_first ? run(rows_between_norms<kPlusOne, true>) : run(rows_between_norms<kPlusOne, false>);
}

}  // namespace

SGL_EXPORT(fused_add_rmsnorm, (fused_add_rmsnorm<false>))
SGL_EXPORT(gemma_fused_add_rmsnorm, (fused_add_rmsnorm<true>))
SGL_EXPORT(fused_rmsnorm_add_rmsnorm, (rmsnorm_add_rmsnorm<false>))
SGL_EXPORT(gemma_fused_rmsnorm_add_rmsnorm, (rmsnorm_add_rmsnorm<true>))
