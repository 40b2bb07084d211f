/// \file norm_quant.cpp
/// \brief The host part of normalisations whose result is quantised: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "norm_args.h"
#include "norm_quant.h"

namespace {

using namespace host;

template <typename F>
RowProgram<F> program{"norm_quant.h"};

/// Calls `body` with the program for the scales that `output_s` is for, and with these as rows.
template <template <typename, bool> typename F, typename Body>
void with_scales(
    const char* op, const Rows& x, const TensorView& output_s, bool is_static, bool round_first, bool scale_ue8m0,
    const Body& body) {
  const auto choose = [&]<typename Scale>(Scale, const Rows& scale) {
    if (round_first) return body(program<F<Scale, true>>, scale);
    body(program<F<Scale, false>>, scale);
  };
  check_powers(op, output_s, is_static, scale_ue8m0);
  if (is_static) return choose(sgl::GivenScale{}, given_scale("output_s", output_s));
  if (is_type<std::int32_t>(output_s.dtype()))
    return choose(sgl::GroupExponent<128>{}, PackedExponents(x, "output_s", output_s).of_rows());
  const auto scale = scales("output_s", output_s);
  if (scale_ue8m0 && scale.columns == 1) return choose(sgl::RowPower{}, of_groups(scale));
  if (scale_ue8m0) return choose(sgl::GroupPower<128>{}, scale);
  if (scale.columns == 1) return choose(sgl::RowScale{}, of_groups(scale));
  choose(sgl::GroupScale<128>{}, scale);
}

/// output_q = rmsnorm(input) / output_s, row by row; on CUDA on the current stream of its device.
void rmsnorm_quant(
    TensorView input, TensorView weight, TensorView output_q, TensorView output_s, double eps, bool is_static,
    bool round_first, bool scale_ue8m0) {
  constexpr const char* kOp = "rmsnorm_quant";
  const auto x = tokens("input", input, 2);
  const auto w = shared_row("weight", weight).floats();
  const auto q = quantized_rows(x, "output_q", output_q);
  const auto least = checked_eps(kOp, eps);
  const auto call = [&]<typename F>(RowProgram<F>& rows_of, const Rows& scale) {
    rows_of({least}, F::x = x, F::weight = w, F::q = q, F::scale = scale);
  };
  with_scales<norms::RMSNormQuant>(kOp, x, output_s, is_static, round_first, scale_ue8m0, call);
}

/// residual = input + residual, then output_q = rmsnorm(residual) / output_s, from the sum before it is rounded.
void fused_add_rmsnorm_quant(
    TensorView input, TensorView residual, TensorView weight, TensorView output_q, TensorView output_s, double eps,
    bool is_static, bool round_first, bool scale_ue8m0) {
  constexpr const char* kOp = "fused_add_rmsnorm_quant";
  const auto x = tokens("input", input, 2);
  const auto r = rows_like(x, "residual", residual).floats();
  const auto w = shared_row("weight", weight).floats();
  const auto q = quantized_rows(x, "output_q", output_q);
  const auto least = checked_eps(kOp, eps);
  const auto call = [&]<typename F>(RowProgram<F>& rows_of, const Rows& scale) {
    rows_of({least}, F::x = x, F::residual = r, F::weight = w, F::q = q, F::scale = scale);
  };
  with_scales<norms::FusedAddRMSNormQuant>(kOp, x, output_s, is_static, round_first, scale_ue8m0, call);
}

}  // namespace

SGL_EXPORT(rmsnorm_quant, (rmsnorm_quant))
SGL_EXPORT(fused_add_rmsnorm_quant, (fused_add_rmsnorm_quant))
