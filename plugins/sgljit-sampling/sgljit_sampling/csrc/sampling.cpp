/// \file sampling.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "sampling.h"

namespace {

using namespace host;

RowProgram<sampling::Softmax> softmax_program{"sampling.h"};
RowProgram<sampling::ArgMax> argmax_program{"sampling.h"};

void softmax(TensorView input, TensorView output) {
  using F = sampling::Softmax;
  const auto logits = rows("input", input).floats();
  softmax_program({}, F::input = logits, F::output = rows_like(logits, "output", output).floats());
}

void argmax(TensorView input, TensorView output) {
  using F = sampling::ArgMax;
  const auto logits = rows("input", input).floats();
  const auto vocabulary = logits.columns;
  if (vocabulary < 1 || vocabulary > 0x7fffffff) [[unlikely]]
    logits.raise({}, {"Size mismatch for a row: expected from 1 to ", 0x7fffffff, " elements but got ", vocabulary});
  const auto ids = rows("output", output, 0);
  if (output.ndim() != input.ndim() - 1) [[unlikely]]
    ids.raise({}, {"Dimension mismatch: expected ", input.ndim() - 1, " but got ", output.ndim()});
  for (int i = 0; i < output.ndim(); ++i) {
    if (output.size(i) != input.size(i)) [[unlikely]]
      ids.raise({}, {"Size mismatch for dimension ", i, ": expected ", input.size(i), " but got ", output.size(i)});
  }
  if (is_type<float>(output.dtype())) [[unlikely]]
    ids.raise({}, {"DType mismatch: expected one of [int32, int64] but got ", output.dtype()});
  argmax_program({}, F::input = logits, F::output = ids);
}

}  // namespace

SGL_EXPORT(softmax, (softmax))
SGL_EXPORT(argmax, (argmax))
