#pragma once

#include <sgl_kernel/tensor.h>

#include <cstdint>

/// \file rmsnorm_args.h
/// \brief What a call of rmsnorm must satisfy: one set of rules and error texts for every device.

/// \brief A call that satisfies them. Strides are those of rows, in elements.
struct RMSNormArgs {
  const void* input;
  const void* weight;
  void* out;
  std::int64_t num_tokens;
  std::int64_t hidden_size;
  std::int64_t input_stride;
  std::int64_t out_stride;
  double eps;
  DLDataType dtype;
  DLDevice device;

  bool is_empty() const {
    return num_tokens == 0 || hidden_size == 0;
  }
};

/// Whether a row of `out` shares memory with another row, of `out` or of `input`: the result would then depend on the
/// order in which rows are done. Row i of `out` being row i of `input` is fine, that is the op in place.
inline bool rows_collide(const RMSNormArgs& args) {
  if (args.num_tokens > 1 && args.out_stride < args.hidden_size) return true;
  const bool same_stride = args.input_stride == args.out_stride;
  if (args.input == args.out && same_stride) return false;

  const auto bytes = args.dtype.bits / 8;
  const auto input = reinterpret_cast<std::intptr_t>(args.input);
  const auto out = reinterpret_cast<std::intptr_t>(args.out);
  const auto input_end = input + ((args.num_tokens - 1) * args.input_stride + args.hidden_size) * bytes;
  const auto out_end = out + ((args.num_tokens - 1) * args.out_stride + args.hidden_size) * bytes;
  if (input_end <= out || out_end <= input) return false;
  if (!same_stride) return true;
  // Interleaved, such as two column ranges of one buffer: compare the columns.
  const auto width = args.hidden_size * bytes;
  const auto stride = args.out_stride * bytes;
  const auto distance = ((out - input) % stride + stride) % stride;
  return distance < width || stride - distance < width;
}

/// \brief Checks a call and returns it in plain numbers.
/// \tparam kDevices the device types that the caller serves.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if rows share memory.
template <DLDeviceType... kDevices>
RMSNormArgs match_rmsnorm(host::TensorView input, host::TensorView weight, host::TensorView out, double eps) {
  using namespace host;

  auto N = SymbolicSize{"num_tokens"};
  auto D = SymbolicSize{"hidden_size"};
  auto input_stride = SymbolicSize{"input row stride"};
  auto out_stride = SymbolicSize{"out row stride"};
  auto dtype = SymbolicDType{};
  auto device = SymbolicDevice{};
  TensorMatcher({N, D})  // input
      .with_strides({input_stride, 1})
      .with_dtype<float, __half, __nv_bfloat16>(dtype)
      .with_device<kDevices...>(device)
      .verify(input);
  TensorMatcher({D})  // weight
      .with_dtype(dtype)
      .with_device(device)
      .verify(weight);
  TensorMatcher({N, D})  // out
      .with_strides({out_stride, 1})
      .with_dtype(dtype)
      .with_device(device)
      .verify(out);

  const auto num_tokens = N.unwrap();
  const auto hidden_size = D.unwrap();
  const bool one_row = num_tokens == 1;  // whose stride has no meaning
  const auto args = RMSNormArgs{
      .input = input.data_ptr(),
      .weight = weight.data_ptr(),
      .out = out.data_ptr(),
      .num_tokens = num_tokens,
      .hidden_size = hidden_size,
      .input_stride = one_row ? hidden_size : input_stride.unwrap(),
      .out_stride = one_row ? hidden_size : out_stride.unwrap(),
      .eps = eps,
      .dtype = dtype.unwrap(),
      .device = device.unwrap(),
  };
  if (!args.is_empty() && rows_collide(args))
    throw Error(
        "ValueError", "rmsnorm: rows of out overlap each other or other rows of input: input is ", input, ", out is ",
        out);
  return args;
}
