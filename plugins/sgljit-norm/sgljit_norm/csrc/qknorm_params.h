#pragma once

/// \file qknorm_params.h
/// \brief The interface between the host part of qknorm and its kernels. Read by every compiler.

#include <sgl_kernel/signature.h>

namespace norms {

/// \brief The heads of q or of k: rows of head_dim elements. Strides are in bytes.
struct Heads {
  void* data;
  void* weight;
  long long token_stride;
  long long head_stride;
  long long num_heads;
  long long head_dim;
  SGL_FIELDS(data, weight, token_stride, head_stride, num_heads, head_dim)
};

/// \brief The parameters of the normalisations of q and k.
struct QKNormParams {
  Heads q;
  Heads k;
  long long num_tokens;
  unsigned long long inverse_heads;  ///< 2^64 / (heads of q and k), rounded up, to divide by multiplication
  bool triggers_first;               ///< see sgl::RowLayout
  SGL_FIELDS(q, k, num_tokens, inverse_heads, triggers_first)
};

/// \brief The threads of a block of `qknorm_across_heads`, whole warps, by the vectors of the longer row: each holds
/// three of them, or four where there are many tokens. Measured on an H200 with rows of 2048 to 6144 elements.
constexpr unsigned threads_across_heads(unsigned vectors, long long num_tokens, unsigned num_sms) {
  const unsigned held = num_tokens > 4ll * num_sms || vectors > 3 * 1024 ? 4 : 3;
  return ((vectors + held - 1) / held + 31) / 32 * 32;
}

}  // namespace norms
