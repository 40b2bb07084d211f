/// \file rmsnorm.cpp
/// \brief The host part of RMSNorm: the functions that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView, host::Optional;

host::RowReduce<norms::RMSNorm<false>, 1, 1> rmsnorm_of_rows{"norm.h"};
host::RowReduce<norms::RMSNorm<true>, 1, 1> gemma_rmsnorm_of_rows{"norm.h"};

/// y = x / sqrt(mean(x^2) + eps) * weight for each row x of `input` [..., hidden], into the same row of `out`, which
/// defaults to `input`; on CUDA on the current stream of its device.
void rmsnorm(TensorView input, TensorView weight, Optional<TensorView> out, double eps) {
  const auto x = tokens("input", input);
  const auto w = host::shared_row("weight", weight);
  rmsnorm_of_rows({x}, {w}, {host::rows_like(x, "out", out.value_or(input))}, {checked_eps("rmsnorm", eps)});
}

/// rmsnorm with 1 + weight.
void gemma_rmsnorm(TensorView input, TensorView weight, Optional<TensorView> out, double eps) {
  const auto x = tokens("input", input);
  const auto w = host::shared_row("weight", weight);
  gemma_rmsnorm_of_rows(
      {x}, {w}, {host::rows_like(x, "out", out.value_or(input))}, {checked_eps("gemma_rmsnorm", eps)});
}

}  // namespace

SGL_EXPORT(rmsnorm, (rmsnorm))
SGL_EXPORT(gemma_rmsnorm, (gemma_rmsnorm))
