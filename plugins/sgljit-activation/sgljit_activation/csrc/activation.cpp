/// \file activation.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/optional.h>

#include "activation.h"

namespace {

template <typename F>
host::RowMap<F, 2> rows_of{"activation.h"};

/// A row map pairs rows by their number; a tensor of another shape with as many rows is a mistake.
host::Rows rows_like(const host::Rows& input, const char* name, const host::TensorView& tensor) {
  const auto result = host::rows(name, tensor);
  const auto ndim = input.tensor.ndim();
  if (tensor.ndim() != ndim) result.raise({}, {"Dimension mismatch: expected ", ndim, " but got ", tensor.ndim()});
  for (int i = 0; i < ndim - 1; ++i) {
    if (tensor.size(i) == input.tensor.size(i)) continue;
    result.raise(
        {}, {"Size mismatch for dimension ", i, ": expected ", input.tensor.size(i), " but got ", tensor.size(i)});
  }
  return result;
}

/// out[r, i] = F(input[r, i], up[r, i]); without `up` each row of `input` holds both, one after the other. On CUDA on
/// the current stream of the device.
template <typename F>
void activate(host::TensorView input, host::Optional<host::TensorView> out, host::Optional<host::TensorView> up) {
  const auto rows = host::rows("input", input);
  const auto result = rows_like(rows, "out", out.value());
  if (up) return rows_of<F>({rows, rows_like(rows, "up", *up)}, {result});
  rows_of<F>({rows.part(0, 2), rows.part(1, 2)}, {result});
}

}  // namespace
