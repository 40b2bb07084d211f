/// \file fused_add_rmsnorm.cpp
/// \brief The host part of RMSNorm after a residual addition: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView;

template <bool kPlusOne>
host::RowReduce<norms::FusedAddRMSNorm<kPlusOne>, 2, 1, 2> fused_add_of_rows{"norm.h"};

template <bool kPlusOne>
void run(
    const char* op, TensorView input, TensorView residual, TensorView weight, double eps,
    host::DebugInfo location = {}) {
  const auto x = tokens("input", input, 2, location);
  const auto r = tokens("residual", residual, 2, location);
  const auto w = host::shared_row("weight", weight, location);
  fused_add_of_rows<kPlusOne>({x, r}, {w}, {r, x}, {{checked_eps(op, eps)}}, location);
}

/// residual = input + residual, then input = residual / sqrt(mean(residual^2) + eps) * weight, row by row, from the sum
/// before it is rounded; on CUDA on the current stream of its device.
void fused_add_rmsnorm(TensorView input, TensorView residual, TensorView weight, double eps) {
  run<false>("fused_add_rmsnorm", input, residual, weight, eps);
}

/// fused_add_rmsnorm with 1 + weight.
void gemma_fused_add_rmsnorm(TensorView input, TensorView residual, TensorView weight, double eps) {
  run<true>("gemma_fused_add_rmsnorm", input, residual, weight, eps);
}

}  // namespace

SGL_EXPORT(fused_add_rmsnorm, (fused_add_rmsnorm))
SGL_EXPORT(gemma_fused_add_rmsnorm, (gemma_fused_add_rmsnorm))
