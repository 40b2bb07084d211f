/// \file norm_quant.cpp
/// \brief The host part of normalisations whose result is quantised: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using namespace host;

QuantizedProgram<norms::RMSNorm<false>> norm{"norm.h"};
QuantizedProgram<norms::FusedAddRMSNorm<false>, false, norms::FusedAddRMSNorm<false, true>> norm_of_sum{"norm.h"};

/// output_q = rmsnorm(input) / output_s, row by row; on CUDA on the current stream of its device.
void rmsnorm_quant(
    TensorView input, TensorView weight, TensorView output_q, TensorView output_s, double eps, QuantizedAs as) {
  using F = norms::RMSNorm<false>;
  constexpr const char* kOp = "rmsnorm_quant";
  const auto x = tokens("input", input, 2);
  const auto w = shared_row("weight", weight).floats();
  norm({checked_eps(kOp, eps)}, kOp, x, output_q, output_s, as, F::x = x, F::weight = w);
}

/// residual = input + residual, then output_q = rmsnorm(residual) / output_s, from the sum before it is rounded, or
/// with `round_first` after that.
void fused_add_rmsnorm_quant(
    TensorView input, TensorView residual, TensorView weight, TensorView output_q, TensorView output_s, double eps,
    QuantizedAs as) {
  using F = norms::FusedAddRMSNorm<false>;
  constexpr const char* kOp = "fused_add_rmsnorm_quant";
  const auto x = tokens("input", input, 2);
  const auto r = rows_like(x, "residual", residual).floats();
  const auto w = shared_row("weight", weight).floats();
  norm_of_sum({checked_eps(kOp, eps)}, kOp, x, output_q, output_s, as, F::x = x, F::residual = r, F::weight = w);
}

}  // namespace

SGL_EXPORT(rmsnorm_quant, (rmsnorm_quant))
SGL_EXPORT(fused_add_rmsnorm_quant, (fused_add_rmsnorm_quant))
