/// \file qknorm.cpp
/// \brief The host part of RMSNorm over q and k, over each head or over all heads: the functions that Python calls, the
/// checks, and the choice of a kernel.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>

#include "norm.h"
#include "norm_args.h"
#include "qknorm_params.h"

namespace {

using namespace host;
using norms::Heads;

Deferred<void(const norms::QKNormParams&, DLDataType, float, bool)> qknorm_on_cpu{"qknorm_cpu.cpp", "qknorm_on_cpu"};
template <bool kPlusOne>
using QKNormKernel = Kernel<norms::QKNormParams, norms::RMSNorm<kPlusOne>>;
template <bool kPlusOne>
QKNormKernel<kPlusOne> qknorm_kernel{"qknorm.cuh", "norms::qknorm"};
template <bool kPlusOne>
QKNormKernel<kPlusOne> qknorm_generic_kernel{"qknorm.cuh", "norms::qknorm_generic"};
QKNormKernel<false> qknorm_across_heads_kernel{"qknorm.cuh", "norms::qknorm_across_heads"};

/// q or k with its weight, by their names in errors.
struct Argument {
  const char* name;
  const TensorView& x;
  const char* weight_name;
  const TensorView& weight;
};

/// A call: what q and k have in common, and the rules for both.
struct Call {
 public:
  const char* op;
  Argument q;
  Argument k;
  float eps;
  SymbolicSize num_tokens{"num_tokens"};
  SymbolicSize head_dim{"head_dim"};
  SymbolicDType dtype{};
  SymbolicDevice device{};

  /// [tokens, heads, head_dim] with a `head_dim` of 0, or [tokens, heads * head_dim] with `head_dim`.
  Heads match_heads(const Argument& of, std::int64_t given_head_dim) {
    const auto& x = of.x;
    auto heads = SymbolicSize{"num_heads"};
    auto token_stride = SymbolicSize{"token stride"};
    auto head_stride = SymbolicSize{"head stride"};
    const bool is_flat = x.dim() == 2;
    if (is_flat && given_head_dim == 0)
      throw Error(
          "ValueError", op, ": pass head_dim, because ", of.name,
          " has two dimensions: expected [tokens, heads, head_dim], ",
          "or [tokens, heads * head_dim] and head_dim, got ", x);
    if (is_flat) m_verify(TensorMatcher({num_tokens, heads}).with_strides({token_stride, 1}), of);
    else m_verify(TensorMatcher({num_tokens, heads, head_dim}).with_strides({token_stride, head_stride, 1}), of);
    if (is_flat && x.size(1) % given_head_dim != 0)
      throw Error(
          "ValueError", op, ": head_dim must divide the last dimension of ", of.name, ": got head_dim ", given_head_dim,
          " and ", x);
    TensorMatcher({head_dim}).with_dtype(dtype).with_device(device).verify(of.weight, of.weight_name);
    const auto dim = head_dim.unwrap();
    const auto num_heads = is_flat ? heads.unwrap() / dim : heads.unwrap();
    // The stride of a dimension of one element has no meaning, and must not count as a bad alignment.
    const auto next_head = is_flat || num_heads == 1 ? dim : head_stride.unwrap();
    const auto next_token = num_tokens.unwrap() == 1 ? num_heads * next_head : token_stride.unwrap();
    const auto bytes = element_bytes();
    return {x.data_ptr(), of.weight.data_ptr(), next_token * bytes, next_head * bytes, num_heads, dim};
  }

  /// [tokens, elements]: all elements of a token are one row.
  Heads match_all_heads(const Argument& of) {
    auto size = SymbolicSize{"hidden_size"};
    auto token_stride = SymbolicSize{"token stride"};
    m_verify(TensorMatcher({num_tokens, size}).with_strides({token_stride, 1}), of);
    TensorMatcher({size}).with_dtype(dtype).with_device(device).verify(of.weight, of.weight_name);
    const auto next_token = num_tokens.unwrap() == 1 ? size.unwrap() : token_stride.unwrap();
    return {of.x.data_ptr(), of.weight.data_ptr(), next_token * element_bytes(), 0, 1, size.unwrap()};
  }

  std::int64_t element_bytes() {
    return static_cast<std::int64_t>(dtype_bytes(dtype.unwrap()));
  }

  /// The elements of the widest load that divides all addresses, strides and sizes; 0 for nothing to do.
  /// \throws ValueError if rows share memory, or an element is not aligned.
  std::int64_t check_memory(const norms::QKNormParams& params) {
    const auto& [q_heads, k_heads, tokens, inverse, first] = params;
    if (tokens == 0 || q_heads.num_heads * q_heads.head_dim + k_heads.num_heads * k_heads.head_dim == 0) return 0;
    const auto bytes = element_bytes();
    const auto rows_of = [&](const Heads& x) {
      return MemoryRows(x.data, x.head_dim * bytes, {tokens, x.token_stride}, {x.num_heads, x.head_stride});
    };
    const auto q_rows = rows_of(q_heads), k_rows = rows_of(k_heads);
    if (rows_overlap(q_rows) || rows_overlap(k_rows) || rows_meet(q_rows, k_rows))
      throw Error(
          "ValueError", op, ": both are written, but rows of q and k overlap: q is ", q.x, ", k is ", k.x,
          ". Rows with different strides must not overlap, and rows that cannot be proven disjoint count as "
          "overlapping");
    std::int64_t word = sgl::kWordBytes;
    for (const auto* x : {&q_heads, &k_heads}) {
      const MemoryRows weight(x->weight, x->head_dim * bytes);
      if (rows_meet(weight, q_rows) || rows_meet(weight, k_rows))
        throw Error("ValueError", op, ": a weight shares memory with an output: q is ", q.x, ", k is ", k.x);
      const auto divides = widest_word(x->data, x->weight, x->token_stride, x->head_stride, x->head_dim * bytes);
      word = divides < word ? divides : word;
    }
    if (word < bytes)
      throw Error(
          "ValueError", op, ": the address of a tensor is not a multiple of its element size, ", bytes, " bytes");
    return word / bytes;
  }

 private:
  void m_verify(TensorMatcher&& matcher, const Argument& of) {
    static_cast<TensorMatcher&&>(matcher)
        .with_dtype<float, __half, __nv_bfloat16>(dtype)
        .with_device<kDLCPU, kDLCUDA>(device)
        .verify(of.x, of.name);
  }
};

/// Launches on CUDA: a row is a head.
template <bool kPlusOne>
void launch(Call& call, norms::QKNormParams& params, std::int64_t elements, bool is_across, DebugInfo location) {
  const auto& [q, k, num_tokens, inverse_heads, triggers_first] = params;
  const auto device = call.device.unwrap();
  const auto dtype = call.dtype.unwrap();
  const auto num_heads = num_tokens * (q.num_heads + k.num_heads);
  const auto chip = runtime::get_chip(device.device_id, location);
  const auto layout_for = [&](std::int64_t columns, std::int64_t num_rows) {
    return sgl::layout_rows(columns, elements, call.element_bytes(), sgl::RowWork::kOneInput, num_rows, chip);
  };
  const auto run = [&](std::int64_t blocks, std::int64_t threads, const auto& kernel) {
    const norms::RMSNorm<kPlusOne> f = {call.eps};
    LaunchKernel(blocks, threads, device, 0, location).enable_pdl(chip.has_pdl())(kernel, params, f);
  };
  if (is_across) {
    const auto longer = q.head_dim > k.head_dim ? q.head_dim : k.head_dim;
    const bool has_both = q.head_dim > 0 && k.head_dim > 0;
    if constexpr (!kPlusOne) {
      if (layout_for(longer, 2 * num_tokens).is_resident() && has_both && num_tokens <= sgl::kMaxBlocks / 2) {
        const auto threads = norms::threads_across_heads(longer / elements, num_tokens, chip.num_sms);
        return run(
            2 * num_tokens, threads, qknorm_across_heads_kernel.get(q.head_dim, k.head_dim, elements, threads, dtype));
      }
    }
  } else {
    const auto layout = layout_for(q.head_dim, num_heads);
    params.triggers_first = layout.triggers_first;
    // The kernel's own limits: it counts heads in 32 bits, and the inverse of one head would be 2^64.
    if (layout.is_resident() && num_heads <= std::int64_t{1} << 31 && num_heads > num_tokens)
      return run(
          layout.num_blocks(num_heads), layout.block_threads,
          qknorm_kernel<kPlusOne>.get(
              kPlusOne, q.head_dim, elements, layout.threads_per_row, layout.block_threads, dtype));
  }
  const sgl::RowLayout layout = sgl::generic_layout((q.head_dim > k.head_dim ? q.head_dim : k.head_dim) / elements);
  run(layout.num_blocks(num_heads), layout.block_threads,
      qknorm_generic_kernel<kPlusOne>.get(kPlusOne, elements, dtype));
}

template <bool kPlusOne>
void run(Call&& call, const Heads& q, const Heads& k, bool is_across, DebugInfo location = {}) {
  const auto num_tokens = call.num_tokens.unwrap();
  const auto heads = static_cast<std::uint64_t>(q.num_heads + k.num_heads);
  norms::QKNormParams params = {q, k, num_tokens, heads == 0 ? 0 : ~std::uint64_t{0} / heads + 1, false};
  const auto elements = call.check_memory(params);
  if (elements == 0) return;
  if (call.device.unwrap().device_type == kDLCPU) return qknorm_on_cpu(params, call.dtype.unwrap(), call.eps, kPlusOne);
  launch<kPlusOne>(call, params, elements, is_across, location);
}

template <bool kPlusOne>
void run_each_head(Call&& call, std::int64_t head_dim, DebugInfo location = {}) {
  if (head_dim < 0) throw Error("ValueError", call.op, ": head_dim must not be negative, got ", head_dim);
  if (head_dim != 0) call.head_dim.set_value(head_dim);
  const auto q = call.match_heads(call.q, head_dim);
  const auto k = call.match_heads(call.k, head_dim);
  run<kPlusOne>(static_cast<Call&&>(call), q, k, false, location);
}

/// x / sqrt(mean(x^2) + eps) * weight for each head x of q with q_weight and of k with k_weight, in place; on CUDA on
/// the current stream of their device.
void fused_inplace_qknorm(
    TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, double eps, std::int64_t head_dim) {
  constexpr auto kOp = "fused_inplace_qknorm";
  run_each_head<false>(
      {kOp, {"q", q, "q_weight", q_weight}, {"k", k, "k_weight", k_weight}, checked_eps(kOp, eps)}, head_dim);
}

/// fused_inplace_qknorm with 1 + weight.
void gemma_fused_inplace_qknorm(
    TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, double eps, std::int64_t head_dim) {
  constexpr auto kOp = "gemma_fused_inplace_qknorm";
  run_each_head<true>(
      {kOp, {"q", q, "q_weight", q_weight}, {"k", k, "k_weight", k_weight}, checked_eps(kOp, eps)}, head_dim);
}

/// fused_inplace_qknorm with all heads of a token as one x.
void fused_inplace_qknorm_across_heads(
    TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, double eps) {
  constexpr auto kOp = "fused_inplace_qknorm_across_heads";
  Call call = {kOp, {"q", q, "q_weight", q_weight}, {"k", k, "k_weight", k_weight}, checked_eps(kOp, eps)};
  const auto q_row = call.match_all_heads(call.q);
  const auto k_row = call.match_all_heads(call.k);
  run<false>(static_cast<Call&&>(call), q_row, k_row, true);
}

}  // namespace

SGL_EXPORT(fused_inplace_qknorm, (fused_inplace_qknorm))
SGL_EXPORT(gemma_fused_inplace_qknorm, (gemma_fused_inplace_qknorm))
SGL_EXPORT(fused_inplace_qknorm_across_heads, (fused_inplace_qknorm_across_heads))
