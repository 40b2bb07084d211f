/// \file silu_and_mul.cpp
/// \brief The host part: the function that Python calls.

#include "silu_and_mul.h"

#include <sgl_kernel/export.h>

namespace {

host::RowProgram<swiglu::SiluAndMul> program{"silu_and_mul.h"};

/// out[t, i] = silu(input[t, i]) * input[t, hidden + i]; on CUDA on the current stream of its device.
void silu_and_mul(host::TensorView input, host::TensorView out) {
  using F = swiglu::SiluAndMul;
  const auto rows = host::rows("input", input).floats();
  program({}, F::gate = rows.part(0, 2), F::value = rows.part(1, 2), F::out = host::rows("out", out));
}

}  // namespace

SGL_EXPORT(silu_and_mul, (silu_and_mul))
