#pragma once

#include <sgl_kernel/quantize.h>

/// \file quant.h
/// \brief The programs of quantisation to e4m3, in float: q = x * (1 / scale), where scale = max(|x|) / 448 or is
/// given. Read by the C++ compiler for the CPU and by NVRTC.
///
/// The conversion rounds to nearest even, saturates at 448 and keeps NaN. A maximum ignores NaN.

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

/// \brief A group of a row, as a row with a scale of its own.
struct PerGroup {
  SGL_OPERANDS(x, q, scale)
  float eps;
  bool rounds_up;  ///< whether the scale becomes a power of two
  SGL_FIELDS(eps, rounds_up)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const float exact = sgl::fp8_scale(sgl::max(row.max([](float v) { return sgl::abs(v); }, values), eps));
    // Its exponent, one more if the fraction has a bit; the largest power of two is 2^127.
    const auto bits = __builtin_bit_cast(unsigned, sgl::min(exact, 0x1p127f)) + 0x7fffff;
    const float found = rounds_up ? __builtin_bit_cast(float, bits & 0xff800000) : exact;
    const float inverse = 1 / found;
    return sgl::store(q = sgl::map([=](float v) { return v * inverse; }, values), scale = found);
  }
};

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
