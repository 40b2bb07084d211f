#pragma once

#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

/// \file rows.h
/// \brief `host::Rows`: a tensor as rows, the operand of a row operation. Host only.

namespace host {

/// \brief A tensor argument as rows of elements without gaps, at one stride. A small value; it owns nothing.
struct Rows {
  /// \brief In place of a number of inner rows: there is one, which goes with all inner rows of the others.
  static constexpr std::int64_t kForAllInner = -1;

  const char* name;  ///< of the argument, in errors
  TensorView tensor;
  void* data;
  std::int64_t count;                 ///< the number of rows
  std::int64_t columns;               ///< elements of a row
  std::int64_t stride;                ///< from row to row, in elements
  bool is_shared;                     ///< one row that goes with every row of the others, see `shared_row`
  std::int64_t inner = 1;             ///< rows of each of the `count`, or `kForAllInner`
  std::int64_t inner_stride = 0;      ///< from inner row to inner row, in elements
  const TensorView* index = nullptr;  ///< its elements count the rows, and say which ones they are
  const char* index_name = nullptr;   ///< of the argument, in errors
  bool skips_negative = false;        ///< a row whose index is negative is not written
  std::int64_t element_stride = 1;    ///< between the elements of a row, which can be more than 1 for `values`
  bool takes_bytes = false;           ///< whether a program takes int8 and uint8 here, which most would round to
  DebugInfo location = {};            ///< where the argument became rows, in errors
  DLDataType dtype = tensor.dtype();  ///< of the elements as a program takes them, see `in_words`

  std::int64_t block = 0;              ///< rows of a block, where an index counts those of all; or of a stride of 0
  std::int64_t block_stride = 0;       ///< from block to block, in elements
  bool is_packed = false;              ///< bytes for groups, four to a word, the words `element_stride` apart
  const TensorView* counts = nullptr;  ///< how many inner rows of each of the `count` there are, see `counted`
  const char* counts_name = nullptr;   ///< of the argument, in errors

  std::int64_t element_bytes() const {
    return static_cast<std::int64_t>(dtype_bytes(dtype));
  }
  /// \brief Where the rows lie, for `rows_meet` and `rows_overlap`.
  MemoryRows memory() const {
    const auto bytes = element_bytes(), inner_rows = inner == kForAllInner ? 1 : inner;
    if (block != 0) {  // whole blocks
      const MemoryRows one(data, columns * bytes, {block, stride * bytes}, {inner_rows, inner_stride * bytes});
      const auto width = one.outer.extent() + one.inner.extent() + one.width;
      return {reinterpret_cast<const void*>(one.begin), width, {count / block, block_stride * bytes}};
    }
    const RowDimension outer = {count, stride * bytes};
    const auto size = is_packed ? 4 : bytes, sizes = is_packed ? div_ceil(columns, std::int64_t{4}) : columns;
    if (element_stride * bytes != size)  // the same element of all inner rows is side by side
      return {data, inner_rows * size, outer, {sizes, element_stride * bytes}};
    return {data, sizes * size, outer, {inner_rows, inner_stride * bytes}};
  }
  /// \brief These rows, whose elements are float32, float16 or bfloat16.
  /// \throws TensorMatchError for another dtype.
  SGL_INLINE const Rows& floats(DebugInfo location = {}) const;
  /// \brief These rows, whose elements have the dtype of another argument's.
  /// \throws TensorMatchError for another dtype.
  SGL_INLINE const Rows& typed_as(const Rows& other, DebugInfo location = {}) const;
  /// \brief These rows, whose elements have one of these types.
  /// \throws TensorMatchError for another dtype.
  template <typename... T>
  const Rows& typed(DebugInfo location = {}) const {
    if (!(is_type<T>(tensor.dtype()) || ...)) [[unlikely]]
      raise_about_dtype(location, {dtype_of<T>::value...});
    return *this;
  }
  /// \brief The bytes, 1, 2 or 4, of the widest words that these rows consist of.
  std::int64_t word_bytes() const {
    const auto bytes = element_bytes();
    const auto widest = widest_word(data, stride * bytes, inner_stride * bytes, block_stride * bytes, columns * bytes);
    return widest < 4 ? widest : 4;
  }
  /// \brief These rows as words of so many bytes, for a program that copies them: one kernel serves every dtype.
  /// \param bytes 1, 2 or 4, at most `word_bytes()`.
  /// \throws TensorMatchError if the rows do not consist of such words, or their elements not of whole bytes.
  Rows in_words(std::int64_t bytes) const {
    if (bytes > word_bytes() || element_stride != 1 || (bytes != 1 && bytes != 2 && bytes != 4)) [[unlikely]]
      raise({}, {"Size mismatch: expected rows of whole words of ", bytes, " bytes, side by side"});
    if (dtype.bits * dtype.lanes % 8 != 0) [[unlikely]]
      raise({}, {"DType mismatch: expected elements of whole bytes but got ", dtype});
    auto result = *this;
    for (auto* count : {&result.columns, &result.stride, &result.inner_stride, &result.block_stride})
      *count = *count * element_bytes() / bytes;
    result.dtype = bytes == 4   ? DLDataType{kDLFloat, 32, 1}
                   : bytes == 2 ? DLDataType{kDLBfloat, 16, 1}
                                : DLDataType{kDLUInt, 8, 1};
    result.takes_bytes = true;
    return result;
  }
  /// \brief Whether all rows together could be one.
  bool has_no_gaps() const {
    return stride == columns && inner == 1 && index == nullptr && element_stride == 1 && counts == nullptr;
  }
  /// \brief Part `i` of each row, cut into `n` parts of equal size.
  /// \param i from 0 to n - 1.
  /// \throws TensorMatchError if n does not divide the columns, or there is no such part.
  Rows part(std::int64_t i, std::int64_t n, DebugInfo location = {}) const {
    if (i < 0 || i >= n) [[unlikely]]
      raise(location, {"a row of ", n, " parts has parts 0 to ", n - 1, ", got part ", i});
    if (columns % n != 0) [[unlikely]]
      raise(location, {"each row must consist of ", n, " parts of equal size, got ", columns, " elements"});
    return slice(i * (columns / n), columns / n, location);
  }
  /// \brief Columns `first` to `first + n - 1` of each row.
  /// \throws TensorMatchError if a row has not so many.
  Rows slice(std::int64_t first, std::int64_t n, DebugInfo location = {}) const {
    if (first < 0 || n < 0 || n > columns - first) [[unlikely]]
      raise(location, {"Size mismatch for a row: expected at least ", first, " + ", n, " elements but got ", columns});
    auto result = *this;
    result.columns = n;
    result.data = static_cast<char*>(data) + first * element_bytes();
    return result;
  }
  /// \brief Throw a TensorMatchError about this argument.
  [[noreturn, gnu::cold]] SGL_INLINE void raise(DebugInfo location, std::initializer_list<details::Piece> cause) const;
  /// \brief The same about its dtype, which should be one of those that are expected.
  [[noreturn, gnu::cold]] SGL_INLINE void raise_about_dtype(
      DebugInfo location, std::initializer_list<DLDataType> expected) const;
  /// \brief The same about the argument that is its index.
  [[noreturn, gnu::cold]] SGL_INLINE void raise_about_index(
      DebugInfo location, std::initializer_list<details::Piece> cause) const;
};

/// \brief The last dimension of a tensor as rows; all dimensions before it together count the rows.
/// \throws TensorMatchError if it has no dimension, gaps inside a row, or rows at more than one stride.
[[nodiscard]] SGL_INLINE Rows rows(const char* name, const TensorView& tensor, DebugInfo location = {});

/// \brief The same with the last `row_dims` dimensions as a row.
[[nodiscard]] SGL_INLINE Rows rows(const char* name, const TensorView& tensor, int row_dims, DebugInfo location = {});

/// \brief The last dimension of a tensor as rows that go with those of `like` one by one: a row operation pairs rows by
/// their number, so a tensor of another shape with as many rows is a mistake.
/// \throws TensorMatchError as `rows`, and if a dimension before the last differs.
[[nodiscard]] SGL_INLINE Rows
rows_like(const Rows& like, const char* name, const TensorView& tensor, DebugInfo location = {});

/// \brief The heads of a tensor [tokens, heads, size], or with `size` of [tokens, heads * size]: a row for each head,
/// those of each token at one stride.
/// \throws TensorMatchError if it has other dimensions, gaps inside a row, or a last dimension that `size` does not
///   divide.
[[nodiscard]] SGL_INLINE Rows
heads(const char* name, const TensorView& tensor, std::int64_t size = 0, DebugInfo location = {});

/// \brief The heads of a tensor [blocks, tokens, heads, size], or with `heads_first` of [blocks, heads, tokens, size],
/// for `indexed`: element i of the index names token i % tokens of block i / tokens.
/// \throws TensorMatchError if it has other dimensions, gaps inside a row, or rows of a block that share memory.
[[nodiscard]] SGL_INLINE Rows
heads_of_blocks(const char* name, const TensorView& tensor, bool heads_first = false, DebugInfo location = {});

/// \brief Rows that go with all inner rows of the others, one by one: the angles of a token, for each of its heads.
[[nodiscard]] inline Rows repeated(const Rows& rows) {
  auto result = rows;
  result.inner = Rows::kForAllInner;
  result.inner_stride = 0;
  return result;
}

/// \brief Each group of `size` neighbours as a row of its own; of a row for all rows, too.
/// \throws ValueError unless `size` is positive; TensorMatchError if it does not divide the rows.
[[nodiscard]] SGL_INLINE Rows in_groups(const Rows& rows, std::int64_t size, DebugInfo location = {});

/// \brief A tensor [rows, n] with any strides: n values of each row, such as the scales of its groups. With `dims` of 3
/// a tensor [tokens, heads, n], where the n values of a head are side by side, or else for each value those of all
/// heads.
/// \throws TensorMatchError if it has another number of dimensions, or other strides.
[[nodiscard]] SGL_INLINE Rows values(const char* name, const TensorView& tensor, int dims = 2, DebugInfo location = {});

/// \brief Rows of which only the first `counts[i]` heads of token i are there, as with experts that have fewer tokens
/// than there is room for. Said of one operand, it holds for its set: no other row is read or written.
///
/// `counts` is int32, with an element for each token from 0 to the number of heads, which is checked as an index is.
/// \throws TensorMatchError if the counts have another form.
[[nodiscard]] SGL_INLINE Rows
counted(const Rows& rows, const char* name, const TensorView& counts, DebugInfo location = {});

/// \brief The rows that an index names, one for each of its elements: `index` is int32 or int64, of one dimension.
///
/// On the CPU an element out of range is refused; on a device only with SGLJIT_CHECK_INDICES=1. `skips_negative`: an
/// output's rows with a negative index are not written; a program that reads the rows is refused.
/// \param name of the index, in errors.
/// \throws TensorMatchError if the index has another form.
[[nodiscard]] SGL_INLINE Rows indexed(
    const Rows& rows, const char* name, const TensorView& index, bool skips_negative = false, DebugInfo location = {});

/// \brief How many of the last dimensions of a tensor have no gaps: they could be a row.
[[nodiscard]] SGL_INLINE int dense_dims(const TensorView& tensor);

/// \brief A tensor [columns] that goes with every row of the others, such as a weight.
/// \throws TensorMatchError if it has another number of dimensions, or gaps.
[[nodiscard]] SGL_INLINE Rows shared_row(const char* name, const TensorView& tensor, DebugInfo location = {});

}  // namespace host

#if SGL_BODIES

namespace host {

SGL_INLINE void Rows::raise(DebugInfo location, std::initializer_list<details::Piece> cause) const {
  Message text;
  for (const auto& piece : cause) text << piece;
  details::raise(
      kTensorMatchError,
      {"Tensor match failed for ", name, ", ", tensor, " at ", location, "\n- Root cause: ", text.c_str()});
}

SGL_INLINE void Rows::raise_about_index(DebugInfo location, std::initializer_list<details::Piece> cause) const {
  auto argument = *this;
  argument.name = index_name;
  argument.tensor = *index;
  argument.raise(location, cause);
}

SGL_INLINE void Rows::raise_about_dtype(DebugInfo location, std::initializer_list<DLDataType> expected) const {
  const bool is_one = expected.size() == 1;
  Message list;
  for (const auto& dtype : expected) list << (&dtype == expected.begin() ? "" : ", ") << dtype;
  raise(
      location, {"DType mismatch: expected ", is_one ? "" : "one of [", list.c_str(), is_one ? "" : "]", " but got ",
                 tensor.dtype()});
}

SGL_INLINE const Rows& Rows::floats(DebugInfo location) const {
  const auto dtype = tensor.dtype();
  if (!is_type<float>(dtype) && !is_type<__half>(dtype) && !::host::operator==(dtype, DLDataType{kDLBfloat, 16, 1}))
      [[unlikely]]
    raise(location, {"DType mismatch: expected one of [float32, float16, bfloat16] but got ", dtype});
  return *this;
}

SGL_INLINE const Rows& Rows::typed_as(const Rows& other, DebugInfo location) const {
  const auto expected = other.tensor.dtype(), dtype = tensor.dtype();
  if (!::host::operator==(dtype, expected)) [[unlikely]]
    raise(location, {"DType mismatch: expected ", expected, ", the dtype of ", other.name, ", but got ", dtype});
  return *this;
}

SGL_INLINE Rows rows(const char* name, const TensorView& tensor, DebugInfo location) {
  return rows(name, tensor, 1, location);
}

SGL_INLINE int dense_dims(const TensorView& tensor) {
  int count = 0;
  for (std::int64_t size = 1; count < tensor.ndim(); ++count) {
    const auto i = tensor.ndim() - 1 - count;
    if (tensor.size(i) != 1 && tensor.stride(i) != size) break;
    size *= tensor.size(i);
  }
  return count;
}

SGL_INLINE Rows rows(const char* name, const TensorView& tensor, int row_dims, DebugInfo location) {
  Rows result = {name, tensor, tensor.data_ptr(), 1, 1, 0, false};
  result.location = location;
  const auto sizes = tensor.shape();
  if (tensor.ndim() < row_dims)
    result.raise(location, {"Dimension mismatch: expected at least ", row_dims, " but got ", tensor.ndim()});
  const auto first = tensor.ndim() - row_dims;
  std::int64_t columns = 1, count = 1, stride = 0;
  for (auto i = tensor.ndim() - 1; i >= first; --i) {
    if (sizes[i] > 1 && tensor.stride(i) != columns)
      result.raise(
          location, {"Stride mismatch: expected the elements of a row side by side, at a stride of ", columns,
                     ", but got ", tensor.stride(i)});
    columns *= sizes[i];
  }
  for (auto i = first - 1; i >= 0; --i) {
    if (sizes[i] == 1) continue;
    if (count == 1) stride = tensor.stride(i);
    else if (count > 1 && tensor.stride(i) != count * stride && tensor.numel() > 0)
      result.raise(
          location, {"Stride mismatch: expected all rows at one stride, ", stride, ", but got ", tensor.stride(i),
                     " for dimension ", i});
    count *= sizes[i];
  }
  result.columns = columns;
  result.count = count;
  result.stride = count <= 1 ? columns : stride;  // the stride of one row has no meaning
  return result;
}

SGL_INLINE Rows rows_like(const Rows& like, const char* name, const TensorView& tensor, DebugInfo location) {
  const auto result = rows(name, tensor, location);
  const auto& expected = like.tensor;
  if (tensor.ndim() != expected.ndim())
    result.raise(location, {"Dimension mismatch: expected ", expected.ndim(), " but got ", tensor.ndim()});
  const auto sizes = tensor.shape(), expected_sizes = expected.shape();
  for (std::int32_t i = 0; i < tensor.ndim() - 1; ++i) {
    if (sizes[i] != expected_sizes[i])
      result.raise(
          location, {"Size mismatch for dimension ", i, ": expected ", expected_sizes[i], " but got ", sizes[i]});
  }
  return result;
}

SGL_INLINE Rows shared_row(const char* name, const TensorView& tensor, DebugInfo location) {
  auto result = rows(name, tensor, location);
  if (tensor.ndim() != 1) result.raise(location, {"Dimension mismatch: expected 1 but got ", tensor.ndim()});
  result.is_shared = true;
  result.stride = 0;
  return result;
}

SGL_INLINE Rows heads(const char* name, const TensorView& tensor, std::int64_t size, DebugInfo location) {
  Rows result = {name, tensor, tensor.data_ptr(), 0, 0, 0, false};
  result.location = location;
  const bool is_flat = size > 0;
  if (tensor.ndim() != (is_flat ? 2 : 3))
    result.raise(location, {"Dimension mismatch: expected ", is_flat ? 2 : 3, " but got ", tensor.ndim()});
  const auto last = tensor.ndim() - 1;
  if (tensor.size(last) > 1 && tensor.stride(last) != 1)
    result.raise(
        location,
        {"Stride mismatch: expected the elements of a row side by side, but got a stride of ", tensor.stride(last)});
  if (is_flat && tensor.size(1) % size != 0)
    result.raise(
        location, {"Size mismatch for dimension 1: expected a multiple of ", size, " but got ", tensor.size(1)});
  result.count = tensor.size(0);
  result.columns = is_flat ? size : tensor.size(2);
  result.inner = is_flat ? tensor.size(1) / size : tensor.size(1);
  // The stride of a dimension of one element has no meaning, and must not count as a bad alignment.
  result.inner_stride = is_flat || result.inner <= 1 ? result.columns : tensor.stride(1);
  result.stride = result.count <= 1 ? result.inner * result.inner_stride : tensor.stride(0);
  return result;
}

SGL_INLINE Rows heads_of_blocks(const char* name, const TensorView& tensor, bool heads_first, DebugInfo location) {
  Rows result = {name, tensor, tensor.data_ptr(), 0, 0, 0, false};
  result.location = location;
  if (tensor.ndim() != 4) result.raise(location, {"Dimension mismatch: expected 4 but got ", tensor.ndim()});
  if (tensor.size(3) > 1 && tensor.stride(3) != 1)
    result.raise(
        location,
        {"Stride mismatch: expected the elements of a row side by side, but got a stride of ", tensor.stride(3)});
  const int of_tokens = heads_first ? 2 : 1, of_heads = heads_first ? 1 : 2;
  const auto blocks = tensor.size(0), tokens = tensor.size(of_tokens);
  result.count = blocks * tokens;
  result.columns = tensor.size(3);
  result.inner = tensor.size(of_heads);
  result.inner_stride = result.inner <= 1 ? result.columns : tensor.stride(of_heads);
  result.stride = tokens > 1 ? tensor.stride(of_tokens) : tensor.stride(0);
  if (blocks <= 1 || tokens <= 1 || tensor.stride(0) == tokens * result.stride) return result;
  if (rows_overlap({result.data, result.columns, {tokens, result.stride}, {result.inner, result.inner_stride}}))
    result.raise(location, {"Stride mismatch: rows of a block share memory"});
  result.block = tokens;
  result.block_stride = tensor.stride(0);
  return result;
}

SGL_INLINE Rows in_groups(const Rows& rows, std::int64_t size, DebugInfo location) {
  if (size <= 0) [[unlikely]]
    throw Error("ValueError", "the size of a group must be positive, got ", size);
  if (rows.columns % size != 0) [[unlikely]]
    rows.raise(location, {"Size mismatch for a row: expected whole groups of ", size, " but got ", rows.columns});
  auto result = rows;
  result.inner = rows.columns / size;
  result.inner_stride = result.columns = size;
  return result;
}

SGL_INLINE Rows values(const char* name, const TensorView& tensor, int dims, DebugInfo location) {
  Rows result = {name, tensor, tensor.data_ptr(), 0, 0, 0, false};
  result.location = location;
  if (tensor.ndim() != dims)
    result.raise(location, {"Dimension mismatch: expected ", dims, " but got ", tensor.ndim()});
  result.count = tensor.size(0);
  result.columns = tensor.size(-1);
  result.stride = tensor.stride(0);
  result.element_stride = tensor.stride(-1);
  if (dims == 2) return result;
  result.inner = tensor.size(1);
  result.inner_stride = result.inner > 1 ? tensor.stride(1) : 1;
  if (result.columns <= 1) result.element_stride = 1;
  if (result.inner_stride != 1 && result.element_stride != 1)
    result.raise(
        location, {"Stride mismatch: expected a stride of 1 for dimension 1 or 2, but got ", result.inner_stride,
                   " and ", result.element_stride});
  return result;
}

SGL_INLINE Rows counted(const Rows& rows, const char* name, const TensorView& counts, DebugInfo location) {
  auto result = rows;
  result.counts = indexed(rows, name, counts, false, location).index;  // they have its form
  result.counts_name = name;
  return result;
}

SGL_INLINE Rows
indexed(const Rows& rows, const char* name, const TensorView& index, bool skips_negative, DebugInfo location) {
  auto result = rows;
  result.index = &index;
  result.index_name = name;
  result.skips_negative = skips_negative;
  if (index.ndim() != 1) result.raise_about_index(location, {"Dimension mismatch: expected 1 but got ", index.ndim()});
  if (index.numel() > 1 && index.stride(0) != 1)
    result.raise_about_index(
        location, {"Stride mismatch: expected the elements side by side, but got a stride of ", index.stride(0)});
  return result;
}

}  // namespace host

#endif  // SGL_BODIES
