/// \file activation.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/optional.h>

#include "activation.h"

namespace {

template <typename F>
host::RowMap<F, 2> rows_of{"activation.h"};

/// out[r, i] = F(input[r, i], up[r, i]); without `up` each row of `input` holds both, one after the other. On CUDA on
/// the current stream of the device.
template <typename F>
void activate(host::TensorView input, host::Optional<host::TensorView> out, host::Optional<host::TensorView> up) {
  const auto rows = host::rows("input", input);
  const auto result = host::rows_like(rows, "out", out.value());
  if (up) return rows_of<F>({rows, host::rows_like(rows, "up", *up)}, {result});
  rows_of<F>({rows.part(0, 2), rows.part(1, 2)}, {result});
}

}  // namespace
