/// \file qknorm.cpp
/// \brief The host part of RMSNorm over q and k, over each head or over all heads: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using namespace host;

template <bool kPlusOne>
RowProgram<norms::RMSNorm<kPlusOne>, 2> both{"norm.h"};
template <bool kPlusOne>
RowProgram<norms::RMSNorm<kPlusOne>> alone{"norm.h"};

/// The rows of q and of k, in place, each with its weight.
template <bool kPlusOne>
void run(
    const char* op, const Rows& q, const Rows& k, const TensorView& q_weight, const TensorView& k_weight, double eps) {
  using F = norms::RMSNorm<kPlusOne>;
  auto& program = both<kPlusOne>;
  if (k.typed_as(q).count != q.count) [[unlikely]]
    k.raise(k.location, {"Size mismatch for num_tokens: expected ", q.count, " but got ", k.count});
  const auto of = [&](const Rows& x, const char* name, const TensorView& weight) {
    return program.rows(F::x = x, F::weight = weight_of(q, name, weight), F::out = x);
  };
  const F f = {checked_eps(op, eps)};
  const auto of_q = of(q, "q_weight", q_weight), of_k = of(k, "k_weight", k_weight);
  // One launch gives the rows of k as many threads as those of q. Where these are far longer, most of them idle: of
  // many rows that costs more than a second launch.
  constexpr std::int64_t kManyRows = 1024, kFarLonger = 4;
  if (q.count < kManyRows || q.columns <= kFarLonger * k.columns) return program(f, {of_q, of_k}, q.location);
  program.check(f, {of_q, of_k}, q.location);
  alone<kPlusOne>(f, {of_q}, q.location);
  alone<kPlusOne>(f, {of_k}, k.location);
}

/// x / sqrt(mean(x^2) + eps) * weight for each head x of q with q_weight and of k with k_weight, in place; with
/// 1 + weight if `kPlusOne`. On CUDA on the current stream of their device.
/// \param head_dim of tensors [tokens, heads * head_dim]; it may be 0 for [tokens, heads, head_dim].
template <bool kPlusOne>
void each_head(
    TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, double eps, std::int64_t head_dim) {
  constexpr auto kOp = kPlusOne ? "gemma_fused_inplace_qknorm" : "fused_inplace_qknorm";
  if (head_dim < 0) [[unlikely]]
    throw Error("ValueError", kOp, ": head_dim must not be negative, got ", head_dim);
  const auto of = [&](const char* name, const TensorView& x) {
    if (x.ndim() == 2 && head_dim == 0) [[unlikely]]
      throw Error(
          "ValueError", kOp, ": pass head_dim, because ", name,
          " has two dimensions: expected [tokens, heads, head_dim], or [tokens, heads * head_dim] and head_dim, got ",
          x);
    return heads(name, x, x.ndim() == 2 ? head_dim : 0).floats();
  };
  const auto q_heads = of("q", q), k_heads = of("k", k);
  const auto dim = head_dim != 0 ? head_dim : q_heads.columns;
  for (const auto* x : {&q_heads, &k_heads}) {
    if (x->columns != dim) [[unlikely]]
      x->raise(x->location, {"Size mismatch for head_dim: expected ", dim, " but got ", x->columns});
  }
  run<kPlusOne>(kOp, q_heads, k_heads, q_weight, k_weight, eps);
}

/// The same with all heads of a token as one x.
void across_heads(TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, double eps) {
  const auto of = [](const char* name, const TensorView& x) { return tokens(name, x, 2); };
  run<false>("fused_inplace_qknorm_across_heads", of("q", q), of("k", k), q_weight, k_weight, eps);
}

}  // namespace

SGL_EXPORT(fused_inplace_qknorm, (each_head<false>))
SGL_EXPORT(gemma_fused_inplace_qknorm, (each_head<true>))
SGL_EXPORT(fused_inplace_qknorm_across_heads, (across_heads))
