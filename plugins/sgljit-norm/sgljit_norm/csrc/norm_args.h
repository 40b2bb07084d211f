#pragma once

#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/rows.h>
#include <sgl_kernel/signature.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

#include "norm_checks.h"

/// \file norm_args.h
/// \brief The checks of an rmsnorm or layernorm call: one set of rules and error texts for every device.

/// \brief A checked call. Strides are those of rows, in elements.
struct NormArgs {
  const void* input;
  const void* weight;
  const void* bias;  ///< or null
  void* out;
  std::int64_t num_tokens;
  std::int64_t hidden_size;
  std::int64_t input_stride;
  std::int64_t out_stride;
  double eps;
  bool plus_one;  ///< Gemma's form: 1 + weight
  DLDataType dtype;
  DLDevice device;
  SGL_FIELDS(input, weight, bias, out, num_tokens, hidden_size, input_stride, out_stride, eps, plus_one, dtype, device)

  bool is_empty() const {
    return num_tokens == 0 || hidden_size == 0;
  }
};

/// Row i of `out` may be row i of `input`: the op then works in place.
inline void check_memory(const NormArgs& args, const char* op, host::TensorView input, host::TensorView out) {
  if (args.is_empty()) return;
  const auto bytes = args.dtype.bits / 8;
  check_aligned(op, bytes, {args.input, args.weight, args.bias, args.out});
  const auto rows = [&](const void* data, std::int64_t stride) {
    return host::MemoryRows(data, args.hidden_size * bytes, {args.num_tokens, stride * bytes});
  };
  const auto written = rows(args.out, args.out_stride);
  const auto read = rows(args.input, args.input_stride);
  if (host::rows_overlap(written) || (!(read == written) && host::rows_meet(read, written)))
    throw host::Error(
        "ValueError", op, ": rows of out overlap each other or other rows of input: input is ", input, ", out is ",
        out);
  for (const void* vector : {args.weight, args.bias}) {
    if (vector != nullptr && host::rows_meet(host::MemoryRows(vector, args.hidden_size * bytes), written))
      throw host::Error("ValueError", op, ": weight or bias shares memory with out, which is ", out);
  }
}

/// \brief A tensor of more than two dimensions as [tokens, hidden]; any other as it is. A view into this object.
struct Tokens {
  std::int64_t shape[2];
  std::int64_t strides[2];
  DLTensor tensor;

  Tokens(const char* name, const host::TensorView& x) : tensor(x.dl_tensor()) {
    if (x.dim() <= 2) return;
    const auto rows = host::rows(name, x);
    shape[0] = rows.count;
    shape[1] = rows.columns;
    strides[0] = rows.stride;
    strides[1] = 1;
    tensor.ndim = 2;
    tensor.shape = shape;
    tensor.strides = strides;
  }
  Tokens(const Tokens&) = delete;
};

/// \brief Checks a call and returns it in plain numbers.
/// \param op the op's name, for messages.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if rows share memory, or eps is negative.
inline NormArgs match_norm(
    const char* op, host::TensorView whole_input, host::TensorView weight, host::Optional<host::TensorView> bias,
    host::TensorView whole_out, double eps, bool plus_one) {
  using namespace host;
  check_eps(op, eps);
  const Tokens input_tokens("input", whole_input), out_tokens("out", whole_out);
  const TensorView input(&input_tokens.tensor), out(&out_tokens.tensor);

  auto N = SymbolicSize{"num_tokens"};
  auto D = SymbolicSize{"hidden_size"};
  auto input_stride = SymbolicSize{"input row stride"};
  auto out_stride = SymbolicSize{"out row stride"};
  auto dtype = SymbolicDType{};
  auto device = SymbolicDevice{};
  TensorMatcher({N, D})
      .with_strides({input_stride, 1})
      .with_dtype<float, __half, __nv_bfloat16>(dtype)
      .with_device<kDLCPU, kDLCUDA>(device)
      .verify(input, "input");
  TensorMatcher({D}).with_dtype(dtype).with_device(device).verify(weight, "weight");
  if (bias.has_value()) TensorMatcher({D}).with_dtype(dtype).with_device(device).verify(*bias, "bias");
  TensorMatcher({N, D}).with_strides({out_stride, 1}).with_dtype(dtype).with_device(device).verify(out, "out");

  const auto num_tokens = N.unwrap();
  const auto hidden_size = D.unwrap();
  const bool one_row = num_tokens == 1;  // its stride has no meaning
  const auto args = NormArgs{
      .input = input.data_ptr(),
      .weight = weight.data_ptr(),
      .bias = bias.has_value() ? bias->data_ptr() : nullptr,
      .out = out.data_ptr(),
      .num_tokens = num_tokens,
      .hidden_size = hidden_size,
      .input_stride = one_row ? hidden_size : input_stride.unwrap(),
      .out_stride = one_row ? hidden_size : out_stride.unwrap(),
      .eps = eps,
      .plus_one = plus_one,
      .dtype = dtype.unwrap(),
      .device = device.unwrap(),
  };
  check_memory(args, op, input, out);
  return args;
}
