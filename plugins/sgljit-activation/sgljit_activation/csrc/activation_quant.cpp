/// \file activation_quant.cpp
/// \brief The host part of the activations whose result is quantised: the functions that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "activation_args.h"

namespace {

using namespace host;
using F = activation::Activated<activation::SiluAndMul>;

QuantizedProgram<F, true> program{"activation.h"};
QuantizedProgram<activation::ClampedSwiGLU, true> clamped_program{"activation.h"};

template <typename Scale, bool kRounds>
QuantizedRowProgram<F, Scale, kRounds, true> masked{"activation.h"};

/// output_q = silu(gate) * up / output_s for the gate and up of each row of `input`; on CUDA on the current stream.
void silu_and_mul_quant(TensorView input, TensorView output_q, TensorView output_s, QuantizedAs as) {
  const auto x = rows("input", input).floats();
  const auto gate = x.part(0, 2);
  program({}, "silu_and_mul_quant", gate, output_q, output_s, as, F::gate = gate, F::up = x.part(1, 2));
}

/// output_q = clamped_swiglu(gate, up) / output_s, likewise; with `up`, `input` is the gate alone.
void clamped_swiglu_quant(
    TensorView input, TensorView output_q, TensorView output_s, Optional<TensorView> up, double alpha, double limit,
    QuantizedAs as) {
  using F = activation::ClampedSwiGLU;
  constexpr const char* kOp = "clamped_swiglu_quant";
  const auto op = checked_swiglu(kOp, alpha, limit);
  const auto x = rows("input", input).floats();
  const auto gate = up ? x : x.part(0, 2), values = up ? rows_like(x, "up", *up).typed_as(x) : x.part(1, 2);
  clamped_program(op, kOp, gate, output_q, output_s, as, F::gate = gate, F::up = values);
}

/// `silu_and_mul_quant` of the first `counts[e]` rows of each expert e, in groups of 128.
void silu_and_mul_masked_quant(
    TensorView input, TensorView output_q, TensorView output_s, TensorView counts, bool round_first, bool scale_ue8m0) {
  using Names = sgl::Quantized<F, sgl::GivenScale, false>;
  constexpr int kGroup = PackedExponents::kGroup;
  const auto x = counted(heads("input", input).floats(), "counts", counts);
  const auto gate = x.part(0, 2), up = x.part(1, 2);
  const auto q = heads("output_q", output_q).typed<__nv_fp8_e4m3>();
  check_powers("silu_and_mul_masked_quant", output_s, scale_ue8m0);
  const auto run = [&](auto& rows_of, const Rows& scale) {
    rows_of({}, F::gate = gate, F::up = up, Names::q = q, Names::scale = scale);
  };
  const auto run_by = [&]<typename Scale>(Scale, const Rows& scale) {
    round_first ? run(masked<Scale, true>, scale) : run(masked<Scale, false>, scale);
  };
  if (is_type<std::int32_t>(output_s.dtype()))
    return run_by(sgl::GroupExponent<kGroup>{}, PackedExponents(gate, "output_s", output_s, 3).of_rows());
  const auto scale = scales("output_s", output_s, 3);
  if (scale_ue8m0) return run_by(sgl::GroupPower<kGroup>{}, scale);
  run_by(sgl::GroupScale<kGroup>{}, scale);
}

}  // namespace

SGL_EXPORT(clamped_swiglu_quant, (clamped_swiglu_quant))
SGL_EXPORT(silu_and_mul_masked_quant, (silu_and_mul_masked_quant))
SGL_EXPORT(silu_and_mul_quant, (silu_and_mul_quant))
