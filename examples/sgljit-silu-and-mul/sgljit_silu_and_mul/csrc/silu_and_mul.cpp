/// \file silu_and_mul.cpp
/// \brief The host part: the function that Python calls.

#include "silu_and_mul.h"

#include <sgl_kernel/export.h>

namespace {

host::RowMap<swiglu::SiluAndMul, 2> silu_and_mul_of_rows{"silu_and_mul.h"};

/// out[t, i] = silu(input[t, i]) * input[t, hidden + i]; on CUDA on the current stream of its device.
void silu_and_mul(host::TensorView input, host::TensorView out) {
  const auto rows = host::rows("input", input);
  silu_and_mul_of_rows({rows.part(0, 2), rows.part(1, 2)}, {host::rows("out", out)});
}

}  // namespace

SGL_EXPORT(silu_and_mul, (silu_and_mul))
