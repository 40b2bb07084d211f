/// \file activation_quant.cpp
/// \brief The host part of the activation whose result is quantised: the function that Python calls.

#include <sgl_kernel/export.h>

#include "activation_quant.h"

namespace {

using namespace host;

template <typename Scale, bool kRounds>
RowProgram<activation::SiluAndMulQuant<Scale, kRounds>> program{"activation_quant.h"};

template <typename Scale>
void run(bool round_first, const Rows& gate, const Rows& up, const Rows& q, const Rows& scale) {
  const auto call = [&]<typename F>(RowProgram<F>& rows_of) {
    rows_of({}, F::gate = gate, F::up = up, F::q = q, F::scale = scale);
  };
  if (round_first) return call(program<Scale, true>);
  call(program<Scale, false>);
}

/// output_q = silu(gate) * up / output_s for the gate and up of each row of `input`; on CUDA on the current stream.
void silu_and_mul_quant(TensorView input, TensorView output_q, TensorView output_s, bool is_static, bool round_first) {
  constexpr std::int64_t kGroup = 128;
  const auto x = rows("input", input).floats();
  const auto gate = x.part(0, 2), up = x.part(1, 2);
  const auto q = quantized_rows(x, "output_q", output_q);
  if (is_static) return run<sgl::GivenScale>(round_first, gate, up, q, given_scale("output_s", output_s));
  const auto scale = of_groups(scales("output_s", output_s));
  if (scale.inner == 1) return run<sgl::RowScale>(round_first, gate, up, q, scale);
  const auto gates = in_groups(gate, kGroup), values = in_groups(up, kGroup);
  run<sgl::RowScale>(round_first, gates, values, in_groups(q, kGroup), scale);
}

}  // namespace

SGL_EXPORT(silu_and_mul_quant, (silu_and_mul_quant))
