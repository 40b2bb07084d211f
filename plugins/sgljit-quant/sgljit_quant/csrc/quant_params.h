#pragma once

/// \file quant_params.h
/// \brief The interface between the host part and the kernels.
///
/// Read by the host compiler and by NVRTC.

#include <sgl_kernel/signature.h>

namespace quant {

/// \brief Bytes of one load of a thread if everything is aligned to them. One load is a *unit*: these bytes, or else
/// one element.
inline constexpr unsigned kLoadBytes = 16;

/// \brief The most units that a thread holds at a time.
inline constexpr unsigned kMaxUnits = 4;

/// \brief The most threads of a block: for kernels that hold everything in registers, and for the others.
inline constexpr unsigned kMaxThreads = 1024;
inline constexpr unsigned kBlockThreads = 256;

/// \brief The parameters of every kernel: rows of `columns` elements; strides from row to row, in bytes.
struct Params {
  const void* input;
  void* output;
  float* scale;  ///< one, or one for each row
  long long input_stride;
  long long output_stride;
  long long num_rows;
  long long columns;
  SGL_FIELDS(input, output, scale, input_stride, output_stride, num_rows, columns)
};

}  // namespace quant
