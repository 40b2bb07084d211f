#pragma once

#include <sgl_kernel/signature.h>

/// \file sum.h
/// \brief What the host part and the kernels of `moe_sum` share. Read by every compiler.

namespace moe {

/// \brief The sum of a token's rows, in bytes from row to row.
struct Sum {
  const void* input;
  long long token_stride;
  long long expert_stride;
  void* output;
  long long output_stride;
  const void* weights;  ///< a number for each row, or null
  long long weights_stride[2];
  long long num_tokens;
  long long vectors;  ///< of a row
  int experts;        ///< of a token
  float scale;
  SGL_FIELDS(
      input, token_stride, expert_stride, output, output_stride, weights, weights_stride, num_tokens, vectors, experts,
      scale)
};

}  // namespace moe
