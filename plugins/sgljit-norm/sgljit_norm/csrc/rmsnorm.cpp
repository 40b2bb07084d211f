/// \file rmsnorm.cpp
/// \brief The host part of RMSNorm: the functions that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView, host::Optional;

template <bool kPlusOne>
host::RowProgram<norms::RMSNorm<kPlusOne>> rows_of{"norm.h"};

/// y = x / sqrt(mean(x^2) + eps) * weight for each row x of `input` [..., hidden], into the same row of `out`, which
/// defaults to `input`; with 1 + weight if `kPlusOne`. On CUDA on the current stream of its device.
template <bool kPlusOne>
void rmsnorm(TensorView input, TensorView weight, Optional<TensorView> out, double eps) {
  using F = norms::RMSNorm<kPlusOne>;
  const auto x = tokens("input", input);
  rows_of<kPlusOne>(
      {checked_eps(kPlusOne ? "gemma_rmsnorm" : "rmsnorm", eps)}, F::x = x, F::weight = weight_of(x, "weight", weight),
      F::out = host::rows_like(x, "out", out.value_or(input)).typed_as(x));
}

}  // namespace

SGL_EXPORT(rmsnorm, (rmsnorm<false>))
SGL_EXPORT(gemma_rmsnorm, (rmsnorm<true>))
