/// \file activation_quant.cpp
/// \brief The host part of the activation whose result is quantised: the function that Python calls.

#include <sgl_kernel/export.h>

#include "activation.h"

namespace {

using namespace host;
using F = activation::Activated<activation::SiluAndMul>;

QuantizedProgram<F, true> program{"activation.h"};

/// output_q = silu(gate) * up / output_s for the gate and up of each row of `input`; on CUDA on the current stream.
void silu_and_mul_quant(TensorView input, TensorView output_q, TensorView output_s, QuantizedAs as) {
  const auto x = rows("input", input).floats();
  const auto gate = x.part(0, 2);
  program({}, "silu_and_mul_quant", gate, output_q, output_s, as, F::gate = gate, F::up = x.part(1, 2));
}

}  // namespace

SGL_EXPORT(silu_and_mul_quant, (silu_and_mul_quant))
