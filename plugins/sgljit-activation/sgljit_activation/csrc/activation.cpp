/// \file activation.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "activation_args.h"

namespace {

template <typename Op>
host::RowProgram<Op> rows_of{"activation.h"};

/// out[r, i] = F(input[r, i], up[r, i]) for the program of a row `Op`; without `up` each row of `input` holds both, one
/// after the other, or in turn. On CUDA on the current stream of the device.
template <typename Op>
void run(
    host::TensorView input, host::Optional<host::TensorView> out, host::Optional<host::TensorView> up,
    const Op& op = {}, bool is_interleaved = false) {
  // What offers memory and is no torch.Tensor, such as a NumPy array, gets this far without an `out`.
  if (!out) [[unlikely]]
    throw host::Error("TypeError", "out is None, and a new one is made only where input is a torch.Tensor: pass out");
  const auto rows = host::rows("input", input).floats();
  const auto result = host::rows_like(rows, "out", *out).floats();  // not FP8, which needs a scale
  const auto activated = [&](const host::Rows& gate, const host::Rows& other, const host::Rows& to) {
    rows_of<Op>(op, Op::gate = gate, Op::up = other, Op::out = to);
  };
  if (is_interleaved) {  // a row for each element
    if (rows.columns % 2 == 0 && 2 * result.columns != rows.columns) [[unlikely]]
      result.raise({}, {"Size mismatch for a row: expected ", rows.columns / 2, " but got ", result.columns});
    const auto pairs = host::in_groups(rows, 2);
    return activated(pairs.slice(0, 1), pairs.slice(1, 1), host::in_groups(result, 1));
  }
  if (up) return activated(rows, host::rows_like(rows, "up", *up).typed_as(rows), result);
  activated(rows.part(0, 2), rows.part(1, 2), result);
}

/// F(gate, up), or with `round_first` the gate's `Alone`, rounded, times up.
template <typename F, typename Alone>
void activate(
    host::TensorView input, host::Optional<host::TensorView> out, host::Optional<host::TensorView> up,
    bool round_first) {
  if (round_first) return run<activation::RoundedActivated<Alone>>(input, out, up);
  run<activation::Activated<F>>(input, out, up);
}

template <typename F>
constexpr auto gelu = activate<F, activation::Gelu<F>>;

void clamped_swiglu(
    host::TensorView input, host::Optional<host::TensorView> out, host::Optional<host::TensorView> up, double alpha,
    double limit, bool is_interleaved, bool round_first) {
  const auto op = checked_swiglu("clamped_swiglu", alpha, limit);
  if (up && is_interleaved) [[unlikely]]
    throw host::Error(
        "ValueError", "clamped_swiglu: is_interleaved is for an input of gates and values in turn: leave up out");
  if (round_first) return run(input, out, up, activation::RoundedClampedSwiGLU{op}, is_interleaved);
  run(input, out, up, op, is_interleaved);
}

}  // namespace

SGL_EXPORT(silu_and_mul, (activate<activation::SiluAndMul, activation::Silu>))
SGL_EXPORT(gelu_and_mul, (gelu<activation::GeluAndMul>))
SGL_EXPORT(gelu_tanh_and_mul, (gelu<activation::GeluTanhAndMul>))
SGL_EXPORT(clamped_swiglu, (clamped_swiglu))
