/// \file layernorm.cpp
/// \brief The host part of layer normalisation: the function that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView, host::Optional;

host::RowProgram<norms::LayerNorm> rows_of{"norm.h"};
host::RowProgram<norms::BiasedLayerNorm> biased_rows_of{"norm.h"};

/// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias for each row x of `input` [..., hidden], into the
/// same row of `out`, which defaults to `input`; on CUDA on the current stream of its device.
void layernorm(TensorView input, TensorView weight, Optional<TensorView> bias, Optional<TensorView> out, double eps) {
  const float epsilon = checked_eps("layernorm", eps);
  const auto x = tokens("input", input);
  const auto w = weight_of(x, "weight", weight);
  const auto y = host::rows_like(x, "out", out.value_or(input)).typed_as(x);
  using Plain = norms::LayerNorm;
  using Biased = norms::BiasedLayerNorm;
  if (!bias.has_value()) return rows_of({epsilon}, Plain::x = x, Plain::weight = w, Plain::out = y);
  biased_rows_of(
      {epsilon}, Biased::x = x, Biased::weight = w, Biased::bias = weight_of(x, "bias", *bias), Biased::out = y);
}

}  // namespace

SGL_EXPORT(layernorm, (layernorm))
