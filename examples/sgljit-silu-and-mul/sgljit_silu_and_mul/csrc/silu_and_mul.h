#pragma once

/// \file silu_and_mul.h
/// \brief The interface of host part and kernel. Read by the C++ compiler and by NVRTC: it includes nothing.

namespace swiglu {

/// \brief The kernel's parameters: `input` has rows of 2 * hidden elements, `out` rows of hidden.
struct Params {
  const void* input;
  void* out;
  long long num_tokens;
  long long hidden;
};

}  // namespace swiglu
