#pragma once

/// \file quantize.h
/// \brief Quantisation to float8_e4m3fn as the last stage of a row program: q = value * (1 / scale).
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
/// `Scale` is `sgl::GivenScale`, `sgl::RowScale` or `sgl::GroupScale<128>`. The conversion rounds to nearest even,
/// saturates at 448 and keeps NaN. A maximum ignores NaN.

#include <sgl_kernel/row_program.h>

namespace sgl {

/// \brief The scale that makes 448 of a largest magnitude, bounded so that its inverse is finite and not zero.
SGL_HD float fp8_scale(float largest) {
  constexpr float kSmallest = 0x1p-126f, kLargest = 0x1.fffffep127f;
  return sgl::min(sgl::max(largest / 448.0f, kSmallest), kLargest);
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

/// \brief A scale for each row, which is written.
struct RowScale {
  template <typename Row, int kQ, int kScale, typename Value, typename... Others>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScale> scale, const Value& value, const Others&... others) {
    const float found = fp8_scale(row.max([](float v) { return sgl::abs(v); }, value));
    const float inverse = 1 / found;
    return sgl::store(others..., q = sgl::map([=](float v) { return v * inverse; }, value), scale = found);
  }
};

/// \brief A scale for each group of `kSize` neighbours of a row, which is written.
template <int kSize>
struct GroupScale {
  template <typename Row, int kQ, int kScales, typename Value, typename... Others>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScales> scales, const Value& value, const Others&... others) {
    const auto largest = row.max(groups_of<kSize>, [](float v) { return sgl::abs(v); }, value);
    const auto found = row.keep(sgl::map([](float v) { return fp8_scale(v); }, largest));
    const auto inverse = row.keep(sgl::map([](float v) { return 1 / v; }, found));
    const auto quantized = sgl::map([](float v, float inverted) { return v * inverted; }, value, inverse);
    return sgl::store(others..., q = quantized, scales = found);
  }
};

}  // namespace sgl

#if !defined(__CUDACC__)

namespace host {

/// \brief The rows of a tensor of float8_e4m3fn, one for each of `like`.
/// \throws TensorMatchError as `rows_like`, and if the tensor has another dtype.
inline Rows fp8_rows(const Rows& like, const char* name, const TensorView& tensor, DebugInfo location = {}) {
  const auto result = rows_like(like, name, tensor, location);
  if (!is_type<__nv_fp8_e4m3>(tensor.dtype())) [[unlikely]]
    result.raise(location, {"DType mismatch: expected float8_e4m3fn but got ", tensor.dtype()});
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
inline Rows scales(const char* name, const TensorView& tensor, DebugInfo location = {}) {
  return float_scales(values(name, tensor, location), location);
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

}  // namespace host

#endif
