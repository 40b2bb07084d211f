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

/// \brief A group of a row, as a row with a scale of its own.
struct PerGroup {
  SGL_OPERANDS(x, q, scale)
  float eps;
  bool rounds_up;  ///< whether the scale becomes a power of two
  SGL_FIELDS(eps, rounds_up)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const float largest = row.max([](float v) { return sgl::abs(v); }, values);
    const float bounded = sgl::at_least(largest, eps), limit = row.largest_of(q);
    const float found = rounds_up ? sgl::power_for(bounded, limit) : sgl::scale_for(bounded, limit);
    const float inverse = 1 / found;
    return sgl::store(q = sgl::map([=](float v) { return v * inverse; }, values), scale = found);
  }
};

/// \brief A row of groups of `kGroup` elements, whose scales are exponents, four bytes to a word.
struct PackedGroups {
  static constexpr int kGroup = 128;

  SGL_OPERANDS(x, q, exponents)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::GroupExponent<kGroup>::store(row, q, exponents, row[x], eps);
  }
};

/// \brief A row whose groups of `kGroup` elements have a scale each; of experts, whose scales lie in any layout.
struct GroupsOfRow {
  static constexpr int kGroup = 128;

  SGL_OPERANDS(x, q, scale)
  float eps;
  bool rounds_up;  ///< whether scales become powers of two
  SGL_FIELDS(eps, rounds_up)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto largest = row.max(sgl::groups_of<kGroup>, [](float v) { return sgl::abs(v); }, values);
    const float limit = row.largest_of(q);
    const auto scale_of = [=, *this](float v) {
      const float bounded = sgl::at_least(v, eps);
      return rounds_up ? sgl::power_for(bounded, limit) : sgl::scale_for(bounded, limit);
    };
    const auto found = row.keep(sgl::map(scale_of, largest));
    const auto inverse = row.keep(sgl::map([](float v) { return 1 / v; }, found));
    return sgl::store(
        q = sgl::map([](float v, float inverted) { return v * inverted; }, values, inverse), scale = found);
  }
};

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
