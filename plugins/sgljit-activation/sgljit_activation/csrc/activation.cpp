/// \file activation.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "activation.h"

namespace {

template <typename F>
host::RowProgram<activation::Activated<F>> rows_of{"activation.h"};

/// out[r, i] = F(input[r, i], up[r, i]); without `up` each row of `input` holds both, one after the other. On CUDA on
/// the current stream of the device.
template <typename F>
void activate(host::TensorView input, host::Optional<host::TensorView> out, host::Optional<host::TensorView> up) {
  // What offers memory and is no torch.Tensor, such as a NumPy array, gets this far without an `out`.
  if (!out) [[unlikely]]
    throw host::Error("TypeError", "out is None, and a new one is made only where input is a torch.Tensor: pass out");
  const auto rows = host::rows("input", input).floats();
  const auto result = host::rows_like(rows, "out", *out).floats();  // not FP8, which needs a scale
  const auto activated = [&](const host::Rows& gate, const host::Rows& other) {
    using Op = activation::Activated<F>;
    rows_of<F>({}, Op::gate = gate, Op::up = other, Op::out = result);
  };
  if (up) return activated(rows, host::rows_like(rows, "up", *up).typed_as(rows));
  activated(rows.part(0, 2), rows.part(1, 2));
}

}  // namespace

SGL_EXPORT(silu_and_mul, (activate<activation::SiluAndMul>))
SGL_EXPORT(gelu_and_mul, (activate<activation::GeluAndMul>))
SGL_EXPORT(gelu_tanh_and_mul, (activate<activation::GeluTanhAndMul>))
