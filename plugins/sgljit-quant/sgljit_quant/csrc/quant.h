#pragma once

#include <sgl_kernel/quantize.h>

/// \file quant.h
/// \brief The programs of quantisation to e4m3 and int8, in float: q = x * (1 / scale), where scale = max(|x|) / 448,
/// or / 127, or is given. Read by the C++ compiler for the CPU and by NVRTC.
///
/// The conversion is that of quantize.h.

namespace quant {

/// \brief A row by `sgl::GivenScale`, or by a scale of its own, `sgl::RowScale`.
template <typename Scale>
struct Quantized {
  SGL_OPERANDS(x, q, scale)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return Scale::store(row, q, scale, row[x]);
  }
};

/// \brief The same for the groups of a row, by the scale of a magnitude of at least `eps`.
template <typename Scale>
struct QuantizedGroups {
  SGL_OPERANDS(x, q, scale)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return Scale::store(row, q, scale, row[x], eps);
  }
};

using PackedGroups = QuantizedGroups<sgl::GroupExponent<128>>;

/// \brief The scale of per-tensor quantisation, to e4m3.
SGL_HD float scale_for_e4m3(float largest) {
  return sgl::scale_for(largest, sgl::largest_of(sgl::kFp8E4M3));
}

/// \brief The most vectors that a thread holds at a time, and the most threads of a block: of the kernel that holds
/// everything in registers, and of the other.
inline constexpr unsigned kMaxUnits = 4;
inline constexpr unsigned kMaxThreads = 1024;
inline constexpr unsigned kBlockThreads = 256;

/// \brief The parameters of the kernels that compute one scale: the input as rows of vectors.
struct Params {
  const void* input;
  long long stride;  ///< from row to row, in bytes
  long long num_rows;
  long long vectors;  ///< of a row
  long long chunks;   ///< of a row, for `raise_scale`
  unsigned tail;      ///< elements of a row's last vector, which may be a part of one
  void* output;       ///< of one row, for `quantize_small`
  float* scale;
  SGL_FIELDS(input, stride, num_rows, vectors, chunks, tail, output, scale)
};

}  // namespace quant
