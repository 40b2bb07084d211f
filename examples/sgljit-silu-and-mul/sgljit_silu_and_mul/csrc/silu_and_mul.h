#pragma once

/// \file silu_and_mul.h
/// \brief What the host part and the kernel must agree on. Read by the C++ compiler and by NVRTC: it includes nothing.

namespace swiglu {

/// \brief What a kernel takes: `input` has rows of 2 * hidden elements, `out` rows of hidden.
struct Params {
  const void* input;
  void* out;
  long long num_tokens;
  long long hidden;
};

}  // namespace swiglu
