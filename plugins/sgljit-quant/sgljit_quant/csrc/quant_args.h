#pragma once

#include <sgl_kernel/signature.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

/// \file quant_args.h
/// \brief The checks of a call: one set of rules and error texts for every device. Host only.

namespace quant {

/// \brief A checked call, as rows; strides are those of rows, in elements.
struct Args {
  const void* input;
  void* output;
  float* scale;
  std::int64_t num_rows = 1;
  std::int64_t columns = 1;
  std::int64_t input_stride = 0;
  std::int64_t output_stride = 0;
  DLDataType dtype;
  DLDevice device;
  bool is_static;
  bool per_row;  ///< a scale for each row; a row then is the last dimension
  SGL_FIELDS(input, output, scale, num_rows, columns, input_stride, output_stride, dtype, device, is_static, per_row)
};

/// \brief An op's tensors, by their names in errors.
struct Call {
  const char* op;
  const host::TensorView& input;
  const host::TensorView& output_q;
  const host::TensorView& output_s;

  template <typename... Parts>
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(const Parts&... parts) const {
    throw host::Error(host::kTensorMatchError, op, ": ", parts...);
  }
};

inline std::int64_t num_elements(const host::TensorView& view, std::int32_t num_dims) {
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < num_dims; ++i) count *= view.size(i);
  return count;
}

/// Whether the sizes of `a` are the first ones of `b`, and the other sizes of `b` are 1.
inline bool has_shape(const host::TensorView& a, const host::TensorView& b, std::int32_t num_dims) {
  if (a.ndim() < num_dims) return false;
  for (std::int32_t i = 0; i < a.ndim(); ++i) {
    if (a.size(i) != (i < num_dims ? b.size(i) : 1)) return false;
  }
  return true;
}

inline void match_types(const Call& call) {
  const auto& [op, input, output_q, output_s] = call;
  const auto dtype = input.dtype();
  if (!host::is_type<float>(dtype) && !host::is_type<__half>(dtype) && !host::is_type<__nv_bfloat16>(dtype))
      [[unlikely]]
    call.refuse("input must be float32, float16 or bfloat16, got ", dtype, ": ", input);
  if (!host::is_type<__nv_fp8_e4m3>(output_q.dtype())) [[unlikely]]
    call.refuse("output_q must be float8_e4m3fn, got ", output_q.dtype(), ": ", output_q);
  if (!host::is_type<float>(output_s.dtype())) [[unlikely]]
    call.refuse("output_s must be float32, got ", output_s.dtype(), ": ", output_s);
  const auto device = input.device();
  if (device.device_type != kDLCPU && device.device_type != kDLCUDA) [[unlikely]]
    call.refuse("input must be on the CPU or a CUDA device, got ", device, ": ", input);
  if (!host::operator==(output_q.device(), device)) [[unlikely]]
    call.refuse("output_q must be on the device of input, ", device, ", got ", output_q.device(), ": ", output_q);
  if (!host::operator==(output_s.device(), device)) [[unlikely]]
    call.refuse("output_s must be on the device of input, ", device, ", got ", output_s.device(), ": ", output_s);
}

inline void match_shapes(const Call& call, bool per_row) {
  const auto& [op, input, output_q, output_s] = call;
  const auto rank = input.ndim();
  if (per_row && rank == 0) [[unlikely]]
    call.refuse("input must have at least one dimension: ", input);
  if (output_q.ndim() != rank || !has_shape(output_q, input, rank)) [[unlikely]]
    call.refuse("output_q must have the shape of input: output_q is ", output_q, ", input is ", input);
  if (!output_s.is_contiguous()) [[unlikely]]
    call.refuse("output_s must be contiguous: ", output_s);
  if (!per_row && num_elements(output_s, output_s.ndim()) != 1) [[unlikely]]
    call.refuse("output_s must have one element: ", output_s);
  if (per_row && (output_s.ndim() > rank || !has_shape(output_s, input, rank - 1))) [[unlikely]]
    call.refuse(
        "output_s must have one element for each row of input, and the shape of input, with a last dimension of 1 or "
        "without it: output_s is ",
        output_s, ", input is ", input);
}

/// Finds the rows and their strides. With one scale for all, a row extends until input or output has a gap.
inline void match_rows(const Call& call, Args& args) {
  const auto& [op, input, output_q, output_s] = call;
  const auto last = input.ndim() - 1;
  if (num_elements(input, input.ndim()) == 0) {
    args.num_rows = args.per_row ? num_elements(input, last) : 1;
    args.columns = args.per_row ? input.size(last) : 0;
    return;
  }
  for (auto i = last; i >= 0; --i) {
    const auto size = input.size(i);
    if (size == 1) continue;  // its stride has no meaning
    const auto input_stride = input.stride(i);
    const auto output_stride = output_q.stride(i);
    const bool may_be_in_row = args.per_row ? i == last : args.num_rows == 1;
    if (may_be_in_row && input_stride == args.columns && output_stride == args.columns) {
      args.columns *= size;
    } else if (i == last) [[unlikely]] {
      constexpr auto kRule = " must have rows without gaps between their elements: ";
      if (input_stride != 1) call.refuse("input", kRule, input);
      call.refuse("output_q", kRule, output_q);
    } else if (args.num_rows == 1) {
      args.num_rows = size;
      args.input_stride = input_stride;
      args.output_stride = output_stride;
    } else if (input_stride != args.num_rows * args.input_stride) [[unlikely]] {
      call.refuse("input must have its rows at one stride: ", input);
    } else if (output_stride != args.num_rows * args.output_stride) [[unlikely]] {
      call.refuse("output_q must have its rows at one stride: ", output_q);
    } else {
      args.num_rows *= size;
    }
  }
}

/// Rows in memory, in bytes.
struct Region {
  std::intptr_t begin;
  std::int64_t num_rows;
  std::int64_t stride;
  std::int64_t width;

  std::intptr_t end() const {
    return begin + (num_rows - 1) * stride + width;
  }
  bool overlaps_itself() const {
    return num_rows > 1 && stride < width;
  }
  bool shares_memory_with(const Region& other) const {
    if (end() <= other.begin || other.end() <= begin) return false;
    if (num_rows != other.num_rows || stride != other.stride || num_rows == 1) return true;
    // Interleaved, such as two ranges of columns of one buffer: compare the columns.
    const auto distance = ((other.begin - begin) % stride + stride) % stride;
    return distance < width || stride - distance < other.width;
  }
};

/// Refuses overlaps, with which the result would depend on the order of the elements.
inline void refuse_shared_memory(const Call& call, const Args& args) {
  if (args.num_rows == 0 || args.columns == 0) return;
  const auto region = [&](const void* data, std::int64_t stride, std::int64_t bytes) {
    return Region{reinterpret_cast<std::intptr_t>(data), args.num_rows, stride * bytes, args.columns * bytes};
  };
  const auto input = region(args.input, args.input_stride, args.dtype.bits / 8);
  const auto output_q = region(args.output, args.output_stride, 1);
  const auto scale_bytes = static_cast<std::int64_t>(sizeof(float)) * (args.per_row ? args.num_rows : 1);
  const auto output_s = Region{reinterpret_cast<std::intptr_t>(args.scale), 1, 0, scale_bytes};
  const auto check = [&](bool shared, const char* what) {
    if (shared) [[unlikely]]
      throw host::Error(
          "ValueError", call.op, ": ", what, ": input is ", call.input, ", output_q is ", call.output_q,
          ", output_s is ", call.output_s);
  };
  check(output_q.overlaps_itself(), "rows of output_q overlap each other");
  check(output_q.shares_memory_with(input), "output_q shares memory with input");
  check(output_s.shares_memory_with(input), "output_s shares memory with input");
  check(output_s.shares_memory_with(output_q), "output_s shares memory with output_q");
}

/// \brief Checks a call and returns it in plain numbers.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if an output shares memory.
inline Args match(const Call& call, bool is_static, bool per_row) {
  match_types(call);
  match_shapes(call, per_row);
  auto args = Args{
      .input = call.input.data_ptr(),
      .output = call.output_q.data_ptr(),
      .scale = static_cast<float*>(call.output_s.data_ptr()),
      .dtype = call.input.dtype(),
      .device = call.input.device(),
      .is_static = is_static,
      .per_row = per_row,
  };
  match_rows(call, args);
  refuse_shared_memory(call, args);
  return args;
}

}  // namespace quant
