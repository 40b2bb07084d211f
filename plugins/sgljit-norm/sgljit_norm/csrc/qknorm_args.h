#pragma once

#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/signature.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

#include "norm_checks.h"

/// \file qknorm_args.h
/// \brief The checks of a call that normalises q and k: one set of rules and error texts for every device.

/// \brief The rows of q, or of k. Strides are in elements.
struct HeadsArgs {
  void* data;
  const void* weight;
  std::int64_t num_heads;
  std::int64_t head_dim;
  std::int64_t token_stride;
  std::int64_t head_stride;
  SGL_FIELDS(data, weight, num_heads, head_dim, token_stride, head_stride)
};

/// \brief A checked call.
struct QKNormArgs {
  HeadsArgs q;
  HeadsArgs k;
  std::int64_t num_tokens;
  double eps;
  bool plus_one;  ///< Gemma's form: 1 + weight
  DLDataType dtype;
  DLDevice device;
  SGL_FIELDS(q, k, num_tokens, eps, plus_one, dtype, device)

  bool is_empty() const {
    return num_tokens == 0 || q.num_heads * q.head_dim + k.num_heads * k.head_dim == 0;
  }
};

/// The sizes that q and k share.
struct QKSymbols {
  host::SymbolicSize num_tokens{"num_tokens"};
  host::SymbolicSize head_dim{"head_dim"};
  host::SymbolicDType dtype;
  host::SymbolicDevice device;
};

/// One of q and k: [tokens, heads, head_dim] with a `head_dim` of 0, or [tokens, heads * head_dim] with `head_dim`.
inline HeadsArgs match_heads(
    QKSymbols& symbols, const char* op, const char* name, const char* weight_name, host::TensorView x,
    host::TensorView weight, std::int64_t head_dim) {
  using namespace host;
  auto heads = SymbolicSize{"num_heads"};
  auto token_stride = SymbolicSize{"token stride"};
  auto head_stride = SymbolicSize{"head stride"};
  if (x.dim() == 2) {
    if (head_dim == 0)
      throw Error(
          "ValueError", op, ": pass head_dim, because ", name,
          " has two dimensions: expected [tokens, heads, head_dim], ",
          "or [tokens, heads * head_dim] and head_dim, got ", x);
    TensorMatcher({symbols.num_tokens, heads})
        .with_strides({token_stride, 1})
        .with_dtype<float, __half, __nv_bfloat16>(symbols.dtype)
        .with_device<kDLCPU, kDLCUDA>(symbols.device)
        .verify(x, name);
    if (x.size(1) % head_dim != 0)
      throw Error(
          "ValueError", op, ": head_dim must divide the last dimension of ", name, ": got head_dim ", head_dim, " and ",
          x);
  } else {
    TensorMatcher({symbols.num_tokens, heads, symbols.head_dim})
        .with_strides({token_stride, head_stride, 1})
        .with_dtype<float, __half, __nv_bfloat16>(symbols.dtype)
        .with_device<kDLCPU, kDLCUDA>(symbols.device)
        .verify(x, name);
  }
  TensorMatcher({symbols.head_dim}).with_dtype(symbols.dtype).with_device(symbols.device).verify(weight, weight_name);
  const auto dim = symbols.head_dim.unwrap();
  const bool is_flat = x.dim() == 2;
  const auto num_heads = is_flat ? heads.unwrap() / dim : heads.unwrap();
  // The stride of a dimension of one element has no meaning, and must not count as a bad alignment.
  const auto next_head = is_flat || num_heads == 1 ? dim : head_stride.unwrap();
  const bool one_token = symbols.num_tokens.unwrap() == 1;
  return {
      .data = x.data_ptr(),
      .weight = weight.data_ptr(),
      .num_heads = num_heads,
      .head_dim = dim,
      .token_stride = one_token ? num_heads * next_head : token_stride.unwrap(),
      .head_stride = next_head,
  };
}

/// One of q and k as [tokens, elements]: all elements of a token are one row.
inline HeadsArgs match_all_heads(
    QKSymbols& symbols, const char* name, const char* weight_name, host::TensorView x, host::TensorView weight) {
  using namespace host;
  auto size = SymbolicSize{"hidden_size"};
  auto token_stride = SymbolicSize{"token stride"};
  TensorMatcher({symbols.num_tokens, size})
      .with_strides({token_stride, 1})
      .with_dtype<float, __half, __nv_bfloat16>(symbols.dtype)
      .with_device<kDLCPU, kDLCUDA>(symbols.device)
      .verify(x, name);
  TensorMatcher({size}).with_dtype(symbols.dtype).with_device(symbols.device).verify(weight, weight_name);
  const bool one_token = symbols.num_tokens.unwrap() == 1;  // its stride has no meaning
  return {x.data_ptr(), weight.data_ptr(), 1, size.unwrap(), one_token ? size.unwrap() : token_stride.unwrap(), 0};
}

/// The remaining checks, once q and k have matched.
/// \throws ValueError if rows share memory, or eps is negative.
inline QKNormArgs check_qknorm(
    const QKSymbols& symbols, const char* op, host::TensorView q, host::TensorView k, const HeadsArgs& q_heads,
    const HeadsArgs& k_heads, double eps, bool plus_one) {
  check_eps(op, eps);
  const auto args = QKNormArgs{
      q_heads, k_heads, symbols.num_tokens.unwrap(), eps, plus_one, symbols.dtype.unwrap(), symbols.device.unwrap()};
  if (args.is_empty()) return args;
  const auto bytes = args.dtype.bits / 8;
  check_aligned(op, bytes, {args.q.data, args.q.weight, args.k.data, args.k.weight});
  const auto rows = [&](const HeadsArgs& x) {
    return host::MemoryRows(
        x.data, x.head_dim * bytes, {args.num_tokens, x.token_stride * bytes}, {x.num_heads, x.head_stride * bytes});
  };
  const auto q_rows = rows(args.q);
  const auto k_rows = rows(args.k);
  if (host::rows_overlap(q_rows) || host::rows_overlap(k_rows) || host::rows_meet(q_rows, k_rows))
    throw host::Error("ValueError", op, ": both are written, but rows of q and k overlap: q is ", q, ", k is ", k);
  for (const auto* x : {&args.q, &args.k}) {
    const auto weight = host::MemoryRows(x->weight, x->head_dim * bytes);
    if (host::rows_meet(weight, q_rows) || host::rows_meet(weight, k_rows))
      throw host::Error("ValueError", op, ": a weight shares memory with an output: q is ", q, ", k is ", k);
  }
  return args;
}

/// \brief Checks a call that normalises each head and returns it in plain numbers.
/// \param op the op's name, for messages.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if rows share memory, or head_dim does not fit.
inline QKNormArgs match_qknorm(
    const char* op, host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight,
    double eps, std::int64_t head_dim, bool plus_one) {
  if (head_dim < 0) throw host::Error("ValueError", op, ": head_dim must not be negative, got ", head_dim);
  QKSymbols symbols;
  if (head_dim != 0) symbols.head_dim.set_value(head_dim);
  const auto q_heads = match_heads(symbols, op, "q", "q_weight", q, q_weight, head_dim);
  const auto k_heads = match_heads(symbols, op, "k", "k_weight", k, k_weight, head_dim);
  return check_qknorm(symbols, op, q, k, q_heads, k_heads, eps, plus_one);
}

/// \brief Checks a call that normalises all heads of a token together and returns it in plain numbers.
/// \param op the op's name, for messages.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if rows share memory.
inline QKNormArgs match_qknorm_across_heads(
    const char* op, host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight,
    double eps) {
  QKSymbols symbols;
  const auto q_heads = match_all_heads(symbols, "q", "q_weight", q, q_weight);
  const auto k_heads = match_all_heads(symbols, "k", "k_weight", k, k_weight);
  return check_qknorm(symbols, op, q, k, q_heads, k_heads, eps, false);
}
