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
  const char* name;  ///< of the argument, in errors
  TensorView tensor;
  void* data;
  std::int64_t count;    ///< the number of rows
  std::int64_t columns;  ///< elements of a row
  std::int64_t stride;   ///< from row to row, in elements
  bool is_shared;        ///< one row that goes with every row of the others, see `shared_row`

  std::int64_t element_bytes() const {
    return static_cast<std::int64_t>(dtype_bytes(tensor.dtype()));
  }
  /// \brief Where the rows lie, for `rows_meet` and `rows_overlap`.
  MemoryRows memory() const {
    return {data, columns * element_bytes(), {count, stride * element_bytes()}};
  }
  /// \brief Part `i` of each row, cut into `n` parts of equal size.
  /// \param i from 0 to n - 1.
  /// \throws TensorMatchError if n does not divide the columns, or there is no such part.
  Rows part(std::int64_t i, std::int64_t n, DebugInfo location = {}) const {
    if (i < 0 || i >= n) [[unlikely]]
      raise(location, {"a row of ", n, " parts has parts 0 to ", n - 1, ", got part ", i});
    if (columns % n != 0) [[unlikely]]
      raise(location, {"each row must consist of ", n, " parts of equal size, got ", columns, " elements"});
    auto result = *this;
    result.columns = columns / n;
    result.data = static_cast<char*>(data) + i * result.columns * element_bytes();
    return result;
  }
  /// \brief Throw a TensorMatchError about this argument.
  [[noreturn, gnu::cold]] SGL_INLINE void raise(DebugInfo location, std::initializer_list<details::Piece> cause) const;
};

/// \brief The last dimension of a tensor as rows; all dimensions before it together count the rows.
/// \throws TensorMatchError if it has no dimension, gaps inside a row, or rows at more than one stride.
[[nodiscard]] SGL_INLINE Rows rows(const char* name, const TensorView& tensor, DebugInfo location = {});

/// \brief A tensor [columns] that goes with every row of the others, such as a weight.
/// \throws TensorMatchError if it has another number of dimensions, or gaps.
[[nodiscard]] SGL_INLINE Rows shared_row(const char* name, const TensorView& tensor, DebugInfo location = {});

/// \brief What the operands of a row operation have in common.
struct RowPlan {
  std::int64_t count;     ///< the number of rows
  std::int64_t columns;   ///< elements of a row
  std::int64_t elements;  ///< the most elements, a power of two, that one 16-byte load or store moves for every operand
};

/// \brief Checks the operands of a row operation, inputs first: one set of rules for every device.
///
/// All have the dtype float32, float16 or bfloat16, the inputs one and the outputs one; they are on one device, the CPU
/// or CUDA, and have the same rows and columns, but for inputs that are shared rows. An input may be an output, row by
/// row.
/// \param is_one_by_one whether the elements of a row are independent: rows without gaps are one long row then.
/// \throws TensorMatchError naming the operand and the rule; ValueError if a row that is written shares memory, or an
///   element is not aligned.
[[nodiscard]] SGL_INLINE RowPlan
match_rows(const Rows* operands, int num_inputs, int num_outputs, bool is_one_by_one, DebugInfo location);

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

SGL_INLINE Rows rows(const char* name, const TensorView& tensor, DebugInfo location) {
  Rows result = {name, tensor, tensor.data_ptr(), 1, 1, 0, false};
  const auto last = tensor.ndim() - 1;
  if (last < 0) result.raise(location, {"Dimension mismatch: expected at least 1 but got 0"});
  result.columns = tensor.size(last);
  if (result.columns > 1 && tensor.stride(last) != 1)
    result.raise(
        location, {"Stride mismatch: expected the elements of a row side by side, at a stride of 1, but got ",
                   tensor.stride(last)});
  for (auto i = last - 1; i >= 0; --i) {
    const auto size = tensor.size(i);
    if (size != 1 && result.count > 1 && tensor.stride(i) != result.count * result.stride && tensor.numel() > 0)
      result.raise(
          location, {"Stride mismatch: expected all rows at one stride, ", result.stride, ", but got ",
                     tensor.stride(i), " for dimension ", i});
    if (size != 1 && result.count == 1) result.stride = tensor.stride(i);
    result.count *= size;
  }
  if (result.count <= 1) result.stride = result.columns;  // the stride of one row has no meaning
  return result;
}

SGL_INLINE Rows shared_row(const char* name, const TensorView& tensor, DebugInfo location) {
  auto result = rows(name, tensor, location);
  if (tensor.ndim() != 1) result.raise(location, {"Dimension mismatch: expected 1 but got ", tensor.ndim()});
  result.is_shared = true;
  result.stride = 0;
  return result;
}

namespace details {

/// Refuses memory with which the result would depend on the order of the rows.
inline void refuse_shared_memory(const Rows* operands, int num_inputs, int num_operands) {
  const auto refuse = [](const Rows& written, const Rows& other) {
    raise(
        "ValueError", {"rows of ", written.name, " share memory with each other or with other rows of ", other.name,
                       ": ", written.name, " is ", written.tensor, ", ", other.name, " is ", other.tensor});
  };
  for (int i = num_inputs; i < num_operands; ++i) {
    const auto written = operands[i].memory();
    if (rows_overlap(written)) refuse(operands[i], operands[i]);
    for (int j = 0; j < i; ++j) {
      const auto other = operands[j].memory();
      const bool is_in_place = j < num_inputs && other == written;
      if (!is_in_place && rows_meet(other, written)) refuse(operands[i], operands[j]);
    }
  }
}

}  // namespace details

SGL_INLINE RowPlan
match_rows(const Rows* operands, int num_inputs, int num_outputs, bool is_one_by_one, DebugInfo location) {
  const int num_operands = num_inputs + num_outputs;
  const Rows* like = operands;  // the others are compared with the first that has rows of its own
  while (like->is_shared && like < operands + num_inputs) ++like;
  const Rows& first = *like;
  RowPlan plan = {first.count, first.columns, 16};
  bool is_whole = is_one_by_one;
  for (int i = 0; i < num_operands; ++i) {
    const Rows& rows = operands[i];
    const auto dtype = rows.tensor.dtype();
    const auto expected = operands[i < num_inputs ? 0 : num_inputs].tensor.dtype();
    if (!is_type<float>(dtype) && !is_type<__half>(dtype) && !is_type<__nv_bfloat16>(dtype))
      rows.raise(location, {"DType mismatch: expected one of [float32, float16, bfloat16] but got ", dtype});
    if (!::host::operator==(dtype, expected))
      rows.raise(location, {"DType mismatch: expected ", expected, " but got ", dtype});
    const auto device = rows.tensor.device();
    if (device.device_type != kDLCPU && device.device_type != kDLCUDA)
      rows.raise(location, {"Device mismatch: expected one of [cpu, cuda] but got ", device});
    if (!::host::operator==(device, first.tensor.device()))
      rows.raise(location, {"Device mismatch: expected ", first.tensor.device(), " but got ", device});
    if (rows.columns != plan.columns)
      rows.raise(location, {"Size mismatch for a row: expected ", plan.columns, " but got ", rows.columns});
    const bool is_for_all = rows.is_shared && i < num_inputs;  // the rows would write to one by turns
    if (!is_for_all && rows.count != plan.count)
      rows.raise(location, {"Size mismatch for the number of rows: expected ", plan.count, " but got ", rows.count});
    is_whole = is_whole && rows.stride == rows.columns;
  }
  if (plan.count == 0 || plan.columns == 0) return plan;
  details::refuse_shared_memory(operands, num_inputs, num_operands);
  for (int i = 0; i < num_operands; ++i) {
    const Rows& rows = operands[i];
    const auto bytes = rows.element_bytes();
    auto bits = 16 | reinterpret_cast<std::uintptr_t>(rows.data);
    if (!is_whole && plan.count > 1) bits |= static_cast<std::uintptr_t>(rows.stride * bytes);
    const auto word = static_cast<std::int64_t>(bits & (~bits + 1));  // the lowest bit
    if (word < bytes)
      details::raise(
          "ValueError",
          {rows.name, ": its address is not a multiple of its element size, ", bytes, " bytes: ", rows.tensor});
    if (word / bytes < plan.elements) plan.elements = word / bytes;
  }
  if (is_whole) plan = {1, plan.count * plan.columns, plan.elements};
  return plan;
}

}  // namespace host

#endif  // SGL_BODIES
