#pragma once

#include <sgl_kernel/quantize.h>
#include <sgl_kernel/row_map.h>

/// \file quant.h
/// \brief The functors of quantisation to e4m3, in float: q = x * (1 / scale), where scale = max(|x|) / 448 or is
/// given. Read by the C++ compiler for the CPU and by NVRTC.
///
/// The conversion rounds to nearest even, saturates at 448 and keeps NaN. A maximum ignores NaN.

namespace quant {

/// \brief A row with a scale of its own.
struct PerToken {
  SGL_OPERANDS(x, q, scale)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::RowScale::store(row, q, scale, row[x]);
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

/// \brief One scale for all.
struct PerTensor {
  float inverse;
  SGL_FIELDS(inverse)
  SGL_HD float operator()(float x) const {
    return x * inverse;
  }
};

/// \brief The most items that a thread holds at a time, and the most threads of a block: of kernels that hold
/// everything in registers, and of the others.
inline constexpr unsigned kMaxUnits = 4;
inline constexpr unsigned kMaxThreads = 1024;
inline constexpr unsigned kBlockThreads = 256;

/// \brief The parameters of the kernels for one scale: input and output as items of rows.
struct Params {
  sgl::RowMapParams<2> rows;
  float* scale;
  SGL_FIELDS(rows, scale)
};

}  // namespace quant
