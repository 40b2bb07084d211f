#pragma once

#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/signature.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

#include "norm_checks.h"

/// \file fused_add_args.h
/// \brief The checks of a fused_add_rmsnorm call: one set of rules and error texts for every device.

/// \brief A checked call. Strides are those of rows, in elements.
struct FusedAddArgs {
  void* input;
  void* residual;
  const void* weight;
  std::int64_t num_tokens;
  std::int64_t hidden_size;
  std::int64_t input_stride;
  std::int64_t residual_stride;
  double eps;
  bool plus_one;  ///< Gemma's form: 1 + weight
  DLDataType dtype;
  DLDevice device;
  SGL_FIELDS(
      input, residual, weight, num_tokens, hidden_size, input_stride, residual_stride, eps, plus_one, dtype, device)

  bool is_empty() const {
    return num_tokens == 0 || hidden_size == 0;
  }
};

/// \brief Checks a call and returns it in plain numbers.
/// \param op the op's name, for messages.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if rows share memory, or eps is negative.
inline FusedAddArgs match_fused_add(
    const char* op, host::TensorView input, host::TensorView residual, host::TensorView weight, double eps,
    bool plus_one) {
  using namespace host;
  check_eps(op, eps);

  auto N = SymbolicSize{"num_tokens"};
  auto D = SymbolicSize{"hidden_size"};
  auto input_stride = SymbolicSize{"input row stride"};
  auto residual_stride = SymbolicSize{"residual row stride"};
  auto dtype = SymbolicDType{};
  auto device = SymbolicDevice{};
  TensorMatcher({N, D})
      .with_strides({input_stride, 1})
      .with_dtype<float, __half, __nv_bfloat16>(dtype)
      .with_device<kDLCPU, kDLCUDA>(device)
      .verify(input, "input");
  TensorMatcher({N, D})
      .with_strides({residual_stride, 1})
      .with_dtype(dtype)
      .with_device(device)
      .verify(residual, "residual");
  TensorMatcher({D}).with_dtype(dtype).with_device(device).verify(weight, "weight");

  const auto num_tokens = N.unwrap();
  const auto hidden_size = D.unwrap();
  const bool one_row = num_tokens == 1;  // its stride has no meaning
  const auto args = FusedAddArgs{
      .input = input.data_ptr(),
      .residual = residual.data_ptr(),
      .weight = weight.data_ptr(),
      .num_tokens = num_tokens,
      .hidden_size = hidden_size,
      .input_stride = one_row ? hidden_size : input_stride.unwrap(),
      .residual_stride = one_row ? hidden_size : residual_stride.unwrap(),
      .eps = eps,
      .plus_one = plus_one,
      .dtype = dtype.unwrap(),
      .device = device.unwrap(),
  };
  if (args.is_empty()) return args;

  const auto bytes = args.dtype.bits / 8;
  check_aligned(op, bytes, {args.input, args.residual, args.weight});
  const auto rows = [&](const void* data, std::int64_t stride) {
    return host::MemoryRows(data, hidden_size * bytes, {num_tokens, stride * bytes});
  };
  const auto x = rows(args.input, args.input_stride);
  const auto r = rows(args.residual, args.residual_stride);
  if (host::rows_overlap(x) || host::rows_overlap(r) || host::rows_meet(x, r))
    throw Error(
        "ValueError", op, ": both are written, but rows of input and residual overlap: input is ", input,
        ", residual is ", residual);
  const auto w = host::MemoryRows(args.weight, hidden_size * bytes);
  if (host::rows_meet(w, x) || host::rows_meet(w, r))
    throw Error(
        "ValueError", op, ": weight shares memory with an output: input is ", input, ", residual is ", residual);
  return args;
}
