/// \file layernorm.cpp
/// \brief The host part of layer normalisation: the function that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView, host::Optional;

host::RowReduce<norms::LayerNorm, 1, 1> layernorm_of_rows{"norm.h"};
host::RowReduce<norms::LayerNorm, 1, 2> layernorm_with_bias{"norm.h"};

/// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias for each row x of `input` [..., hidden], into the
/// same row of `out`, which defaults to `input`; on CUDA on the current stream of its device.
void layernorm(TensorView input, TensorView weight, Optional<TensorView> bias, Optional<TensorView> out, double eps) {
  const norms::LayerNorm f = {checked_eps("layernorm", eps)};
  const auto x = tokens("input", input);
  const auto w = host::shared_row("weight", weight);
  const auto y = host::rows_like(x, "out", out.value_or(input));
  if (!bias.has_value()) return layernorm_of_rows({x}, {w}, {y}, f);
  layernorm_with_bias({x}, {w, host::shared_row("bias", *bias)}, {y}, f);
}

}  // namespace

SGL_EXPORT(layernorm, (layernorm))
