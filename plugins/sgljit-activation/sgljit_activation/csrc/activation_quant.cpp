/// \file activation_quant.cpp
/// \brief The host part of the activation whose result is quantised: the function that Python calls.

#include <sgl_kernel/export.h>

#include "activation_quant.h"

namespace {

using namespace host;

template <typename Scale, bool kRounds, int kSegments = 1>
RowProgram<activation::SiluAndMulQuant<Scale, kRounds>, kSegments> program{"activation_quant.h"};

template <typename Scale>
void run(bool round_first, const Rows& gate, const Rows& up, const Rows& q, const Rows& scale) {
  const auto call = [&]<typename F>(RowProgram<F>& rows_of) {
    rows_of({}, F::gate = gate, F::up = up, F::q = q, F::scale = scale);
  };
  if (round_first) return call(program<Scale, true>);
  call(program<Scale, false>);
}

template <bool kRounds>
void run_packed(const Rows& gate, const Rows& up, const Rows& q, const TensorView& output_s) {
  using Exponent = sgl::GroupExponent<PackedExponents::kGroup>;
  using F = activation::SiluAndMulQuant<Exponent, kRounds>;
  auto& rows_of = program<Exponent, kRounds>;
  const PackedExponents packed(gate, "output_s", output_s);
  packed.run(rows_of, program<Exponent, kRounds, 2>, {}, [&](const auto& part, const Rows& exponents) {
    return rows_of.rows(F::gate = part.of(gate), F::up = part.of(up), F::q = part.of(q), F::scale = exponents);
  });
}

/// output_q = silu(gate) * up / output_s for the gate and up of each row of `input`; on CUDA on the current stream.
void silu_and_mul_quant(
    TensorView input, TensorView output_q, TensorView output_s, bool is_static, bool round_first, bool scale_ue8m0) {
  constexpr std::int64_t kGroup = 128;
  const auto x = rows("input", input).floats();
  auto gate = x.part(0, 2), up = x.part(1, 2);
  auto q = quantized_rows(x, "output_q", output_q);
  check_powers("silu_and_mul_quant", output_s, is_static, scale_ue8m0);
  if (is_static) return run<sgl::GivenScale>(round_first, gate, up, q, given_scale("output_s", output_s));
  if (is_type<std::int32_t>(output_s.dtype()))
    return round_first ? run_packed<true>(gate, up, q, output_s) : run_packed<false>(gate, up, q, output_s);
  const auto scale = of_groups(scales("output_s", output_s));
  if (scale.inner != 1) gate = in_groups(gate, kGroup), up = in_groups(up, kGroup), q = in_groups(q, kGroup);
  if (scale_ue8m0) return run<sgl::RowPower>(round_first, gate, up, q, scale);
  run<sgl::RowScale>(round_first, gate, up, q, scale);
}

/// The same of the first `counts[e]` rows of each expert e, in groups of 128.
void silu_and_mul_masked_quant(
    TensorView input, TensorView output_q, TensorView output_s, TensorView counts, bool round_first, bool scale_ue8m0) {
  constexpr int kGroup = PackedExponents::kGroup;
  const auto x = counted(heads("input", input).floats(), "counts", counts);
  const auto q = heads("output_q", output_q);
  if (!is_type<__nv_fp8_e4m3>(output_q.dtype())) [[unlikely]]
    q.raise({}, {"DType mismatch: expected float8_e4m3fn but got ", output_q.dtype()});
  check_powers("silu_and_mul_masked_quant", output_s, false, scale_ue8m0);
  const auto run_by = [&]<typename Scale>(Scale, const Rows& scale) {
    run<Scale>(round_first, x.part(0, 2), x.part(1, 2), q, scale);
  };
  if (is_type<std::int32_t>(output_s.dtype()))
    return run_by(sgl::GroupExponent<kGroup>{}, PackedExponents(x.part(0, 2), "output_s", output_s, 3).of_rows());
  const auto scale = scales("output_s", output_s, 3);
  if (scale_ue8m0) return run_by(sgl::GroupPower<kGroup>{}, scale);
  run_by(sgl::GroupScale<kGroup>{}, scale);
}

}  // namespace

SGL_EXPORT(silu_and_mul_masked_quant, (silu_and_mul_masked_quant))
SGL_EXPORT(silu_and_mul_quant, (silu_and_mul_quant))
