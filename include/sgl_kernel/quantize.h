#pragma once

/// \file quantize.h
/// \brief Quantisation to float8_e4m3fn or int8 as the last stage of a row program: q = value * (1 / scale).
///
/// \code
///   template <typename Scale>
///   struct Quantized {
///     SGL_OPERANDS(x, q, scale)
///
///     template <typename Row>
///     SGL_HD auto operator()(const Row& row) const {
///       return Scale::store(row, q, scale, row[x]);
///     }
///   };
/// \endcode
/// `Scale` is `sgl::GivenScale`, `sgl::RowScale`, `sgl::GroupScale<128>`, the same in powers of two, `sgl::RowPower`
/// and `sgl::GroupPower<128>`, or `sgl::GroupExponent<128>`. The dtype of `q` says what a value becomes: the conversion
/// rounds to nearest even, saturates at 448, or at -128 and 127, and keeps NaN, 0 in int8. A maximum ignores NaN.

#include <sgl_kernel/row_program.h>

namespace sgl {

/// \brief `x`, or a bound that it is below. One instruction of a device, where `sgl::max` and its NaN take three.
SGL_HD float at_least(float x, float bound) {
  return details::Reduce<true>{}(x, bound);
}

/// \brief The scale that makes `limit` of a largest magnitude, bounded so that its inverse is finite and not zero.
SGL_HD float scale_for(float largest, float limit) {
  constexpr float kSmallest = 0x1p-126f, kLargest = 0x1.fffffep127f;
  const float scale = at_least(largest / limit, kSmallest);
  return scale < kLargest ? scale : kLargest;
}

/// \brief The smallest power of two that is not below `scale_for(largest, limit)`, and 2^127 at most.
///
/// It needs no division: `largest / limit` is above 2^k, rounded or not, exactly if `largest` is above limit * 2^k. The
/// bits of `largest` less those of `limit` are the exponent of the quotient, and a fraction unless it is a power of
/// two.
SGL_HD float power_for(float largest, float limit) {
  const float bounded = at_least(largest, limit * 0x1p-126f);
  const auto quotient = __builtin_bit_cast(unsigned, bounded) - __builtin_bit_cast(unsigned, limit) + 0x3f800000;
  const auto power = __builtin_bit_cast(float, (quotient + 0x7fffff) & 0xff800000);
  return bounded > 0x1.fffffep127f ? 0x1p127f : power;
}

/// \brief 1 / x of a power of two from 2^-126 to 2^127, exactly, without a division.
SGL_HD float inverse_of_power(float x) {
  // The exponent is negated; that of 2^127 becomes the subnormal 2^-127.
  const auto bits = 0x7f000000u - __builtin_bit_cast(unsigned, x);
  return __builtin_bit_cast(float, bits == 0 ? 0x00400000u : bits);
}

/// \brief One scale for all rows, which is read.
struct GivenScale {
  /// \param others more outputs, `residual = sum`.
  template <typename Row, int kQ, int kScale, typename Value, typename... Others>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScale> scale, const Value& value, const Others&... others) {
    const float inverse = 1 / row.value(scale);
    return sgl::store(others..., q = sgl::map([=](float v) { return v * inverse; }, value));
  }
};

namespace details {

template <bool kIsPower>
SGL_HD float scale_or_power(float largest, float limit) {
  if constexpr (kIsPower) return power_for(largest, limit);
  else return scale_for(largest, limit);
}

}  // namespace details

/// \brief A scale for each row, which is written: `RowScale`, or `RowPower`, the next power of two.
template <bool kIsPower>
struct ScaleOfRow {
  template <typename Row, int kQ, int kScale, typename Value, typename... Others>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScale> scale, const Value& value, const Others&... others) {
    const float largest = row.max([](float v) { return sgl::abs(v); }, value);
    const float found = details::scale_or_power<kIsPower>(largest, row.largest_of(q));
    const float inverse = 1 / found;
    return sgl::store(others..., q = sgl::map([=](float v) { return v * inverse; }, value), scale = found);
  }
};
using RowScale = ScaleOfRow<false>;
using RowPower = ScaleOfRow<true>;

/// \brief A scale for each group of `kSize` neighbours of a row, which is written: `GroupScale`, or `GroupPower`.
template <int kSize, bool kIsPower>
struct ScaleOfGroup {
  template <typename Row, int kQ, int kScales, typename Value, typename... Others>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScales> scales, const Value& value, const Others&... others) {
    const auto largest = row.max(groups_of<kSize>, [](float v) { return sgl::abs(v); }, value);
    const float limit = row.largest_of(q);
    const auto found =
        row.keep(sgl::map([=](float v) { return details::scale_or_power<kIsPower>(v, limit); }, largest));
    const auto inverse = row.keep(sgl::map([](float v) { return 1 / v; }, found));
    const auto quantized = sgl::map([](float v, float inverted) { return v * inverted; }, value, inverse);
    return sgl::store(others..., q = quantized, scales = found);
  }
};
template <int kSize>
using GroupScale = ScaleOfGroup<kSize, false>;
template <int kSize>
using GroupPower = ScaleOfGroup<kSize, true>;

/// \brief A power of two for each group of `kSize` neighbours of a row, not below the scale of `GroupScale` of a
/// magnitude of at least `least`, 0 where that is left out. Its exponent is written, plus 127, to a byte:
/// float8_e8m0fnu.
template <int kSize>
struct GroupExponent {
  template <typename Row, int kQ, int kExponents, typename Value, int... kOther, typename... T>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kExponents> exponents, const Value& value,
      const Bound<kOther, T>&... others) {
    return store(row, q, exponents, value, 0.0f, others...);
  }
  template <typename Row, int kQ, int kExponents, typename Value, int... kOther, typename... T>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kExponents> exponents, const Value& value, float least,
      const Bound<kOther, T>&... others) {
    const auto largest = row.max(groups_of<kSize>, [](float v) { return sgl::abs(v); }, value);
    const float limit = row.largest_of(q);
    const auto power = row.keep(sgl::map([=](float v) { return power_for(at_least(v, least), limit); }, largest));
    const auto inverse = row.keep(sgl::map([](float v) { return inverse_of_power(v); }, power));
    const auto biased =
        sgl::map([](float v) { return static_cast<float>(__builtin_bit_cast(unsigned, v) >> 23); }, power);
    const auto quantized = sgl::map([](float v, float inverted) { return v * inverted; }, value, inverse);
    return sgl::store(others..., q = quantized, exponents = biased);
  }
};

}  // namespace sgl

#if !defined(__CUDACC__)

namespace host {

/// \brief The rows of a tensor of float8_e4m3fn or int8, one for each of `like`.
/// \throws TensorMatchError as `rows_like`, and if the tensor has another dtype.
inline Rows quantized_rows(const Rows& like, const char* name, const TensorView& tensor, DebugInfo location = {}) {
  auto result = rows_like(like, name, tensor, location);
  if (!is_type<__nv_fp8_e4m3>(tensor.dtype()) && !is_type<std::int8_t>(tensor.dtype())) [[unlikely]]
    result.raise(location, {"DType mismatch: expected float8_e4m3fn or int8 but got ", tensor.dtype()});
  result.takes_bytes = true;
  return result;
}

/// \brief Scales, which are float32.
/// \throws TensorMatchError unless they are.
inline Rows float_scales(const Rows& rows, DebugInfo location) {
  if (!is_type<float>(rows.tensor.dtype())) [[unlikely]]
    rows.raise(location, {"DType mismatch: expected float32 but got ", rows.tensor.dtype()});
  return rows;
}

/// \brief A tensor [rows, n] of float32 with any strides: the scales of rows, or of the groups of each.
/// \throws TensorMatchError if it has another dtype or number of dimensions.
inline Rows scales(const char* name, const TensorView& tensor, int dims = 2, DebugInfo location = {}) {
  return float_scales(values(name, tensor, dims, location), location);
}

/// \brief The one scale of all rows, a tensor [1] of float32.
/// \throws TensorMatchError if it has another dtype or number of dimensions.
inline Rows given_scale(const char* name, const TensorView& tensor, DebugInfo location = {}) {
  return float_scales(shared_row(name, tensor, location), location);
}

/// \brief Each group of `size` neighbours as a row of its own.
/// \throws ValueError unless `size` is positive; TensorMatchError if it does not divide the rows.
inline Rows in_groups(const Rows& rows, std::int64_t size, DebugInfo location = {}) {
  if (size <= 0) [[unlikely]]
    throw Error("ValueError", "the size of a group must be positive, got ", size);
  if (rows.columns % size != 0) [[unlikely]]
    rows.raise(location, {"Size mismatch for a row: expected whole groups of ", size, " but got ", rows.columns});
  auto result = rows;
  result.inner = rows.columns / size;
  result.inner_stride = size;
  result.columns = size;
  return result;
}

/// \brief The scales of `in_groups`: a value for each group.
inline Rows of_groups(const Rows& scales) {
  auto result = scales;
  result.inner = scales.columns;
  result.inner_stride = scales.element_stride;
  result.columns = 1;
  result.element_stride = 1;
  return result;
}

/// \brief Refuses scales of powers of two that nobody asked for, or that are given.
/// \throws ValueError.
inline void check_powers(const char* op, const TensorView& output_s, bool is_static, bool scale_ue8m0) {
  if (is_static && scale_ue8m0) [[unlikely]]
    throw Error("ValueError", op, ": scale_ue8m0 is for scales that are computed: leave it out with is_static");
  if (is_type<std::int32_t>(output_s.dtype()) && !is_static && !scale_ue8m0) [[unlikely]]
    throw Error("ValueError", op, ": output_s of int32 holds exponents of scales, so it needs scale_ue8m0=True");
}

/// \brief A tensor [rows, ceil(groups / 4)] of int32 with any strides: the exponents of groups of 128, four to a word,
/// the first in its lowest byte. Bytes of a last word beyond the groups are left.
struct PackedExponents {
 public:
  static constexpr std::int64_t kWord = 4, kGroup = 128;

  /// Words of each row, from number `first` on, which have `groups` groups each.
  struct Part {
    std::int64_t first, words, groups;

    /// \brief The groups of each word as a row of its own.
    Rows of(const Rows& rows) const {
      const auto size = groups * kGroup;
      return in_groups(rows.slice(first * kWord * kGroup, words * size), size);
    }
  };

  /// \param dims as in `values`.
  /// \throws TensorMatchError if it does not fit to `like`.
  PackedExponents(const Rows& like, const char* name, const TensorView& tensor, int dims = 2, DebugInfo location = {})
      : m_groups(div_ceil(like.columns, kGroup)), m_bytes(values(name, tensor, dims, location)) {
    const auto count = div_ceil(m_groups, kWord);
    if (like.columns % kGroup != 0 || m_bytes.count != like.count || m_bytes.columns != count) [[unlikely]]
      m_bytes.raise(
          location, {"Size mismatch: expected [", like.count, ", ", count, "], a word for each ", kWord * kGroup,
                     " elements of a row of whole groups of ", kGroup, "; ", like.name, " has ", like.columns});
    m_bytes.dtype = dtype_of<std::uint8_t>::value;
    m_bytes.takes_bytes = true;
    for (auto* stride : {&m_bytes.stride, &m_bytes.inner_stride, &m_bytes.element_stride}) *stride *= kWord;
  }

  /// \brief For a program of whole rows.
  Rows of_rows() const {
    auto result = m_bytes;
    result.columns = m_groups;
    result.is_packed = true;
    return result;
  }
  /// \brief For a program of rows of up to four groups: calls it with the rows `bind(part, exponents)`, in one launch.
  template <typename F, typename Bind>
  void run(RowProgram<F>& of_one, RowProgram<F, 2>& of_two, const F& f, const Bind& bind) const {
    const auto rest = m_groups % kWord;
    const Part whole = {0, m_groups / kWord, kWord}, last = {whole.words, 1, rest};
    const auto rows = [&](const Part& part) {
      auto bytes = m_bytes;
      bytes.columns = part.groups;
      bytes.inner = part.words;
      bytes.inner_stride = m_bytes.element_stride;
      bytes.element_stride = 1;
      bytes.data = static_cast<char*>(m_bytes.data) + part.first * bytes.inner_stride;
      return bind(part, bytes);
    };
    if (rest == 0) return of_one(f, {rows(whole)});
    if (whole.words == 0) return of_one(f, {rows(last)});
    of_two(f, {rows(whole), rows(last)});
  }

 private:
  std::int64_t m_groups;
  Rows m_bytes;
};

}  // namespace host

#endif
