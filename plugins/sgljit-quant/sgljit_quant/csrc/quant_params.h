#pragma once

/// \file quant_params.h
/// \brief What the host part and the kernels must agree on.
///
/// Read by the host compiler and by NVRTC: it includes nothing.

namespace quant {

/// \brief Bytes that a thread loads at a time where everything is aligned to that. What it loads at a time is a *unit*:
/// so many bytes, or else one element.
inline constexpr unsigned kLoadBytes = 16;

/// \brief Units that a thread holds at a time, at most.
inline constexpr unsigned kMaxUnits = 4;

/// \brief Threads of a block, at most; of those kernels that hold everything in registers, and of the others.
inline constexpr unsigned kMaxThreads = 1024;
inline constexpr unsigned kBlockThreads = 256;

/// \brief What every kernel takes: rows of `columns` elements; strides from row to row, in bytes.
struct Params {
  const void* input;
  void* output;
  float* scale;  ///< one, or one for each row
  long long input_stride;
  long long output_stride;
  long long num_rows;
  long long columns;
};

}  // namespace quant
