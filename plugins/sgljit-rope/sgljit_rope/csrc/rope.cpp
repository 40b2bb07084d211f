/// \file rope.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "rope.h"

namespace {

using namespace host;
using rope::Norm;

template <typename Order, Norm kNorm, bool kStored>
RowProgram<rope::Layer<Order, kNorm, kStored>, kStored ? 3 : 2> program{"rope.h"};
template <typename Order>
RowProgram<rope::Given<Order>, 2> given_program{"rope.h"};

/// The arguments of a call; tensors that an op has not are null.
struct Call {
  const TensorView &q, &k, &cos_sin, &positions;
  std::int64_t rope_dim;
  bool is_neox, inverse;
  const TensorView *q_weight = nullptr, *k_weight = nullptr;
  float eps = 0;
  bool gemma = false;
  const TensorView *v = nullptr, *k_cache = nullptr, *v_cache = nullptr, *out_loc = nullptr;
};

float sign_of(bool inverse) {
  return inverse ? -1.0f : 1.0f;
}

/// The heads of k or v: for the tokens of q, and of the size of other heads.
Rows heads_like(const char* name, const TensorView& tensor, const Rows& q, const Rows& sized) {
  const auto x = heads(name, tensor);
  if (x.count != q.count) [[unlikely]]
    x.raise({}, {"Size mismatch for the number of rows: expected ", q.count, ", that of q, but got ", x.count});
  if (x.columns != sized.columns) [[unlikely]]
    x.raise(
        {}, {"Size mismatch for a row: expected ", sized.columns, ", that of ", sized.name, ", but got ", x.columns});
  return x;
}

template <typename Order, Norm kNorm, bool kStored>
void launch(const Call& call) {
  auto& layer = program<Order, kNorm, kStored>;
  using F = rope::Layer<Order, kNorm, kStored>;
  const auto table = rows("cos_sin_cache", call.cos_sin);
  if (call.rope_dim != 0 && call.rope_dim != table.columns) [[unlikely]]
    table.raise({}, {"Size mismatch for a row: expected rope_dim, ", call.rope_dim, ", but got ", table.columns});
  const auto angles = repeated(indexed(table, "positions", call.positions));
  // An operand that a program does not use may be any.
  const auto of = [&](const Rows& x, const char* name, const TensorView* weight, const Rows& cache) {
    const auto weights = kNorm != Norm::kNone ? shared_row(name, *weight) : x;
    return layer.rows(F::x = x, F::weight = weights, F::cos_sin = angles, F::cache = cache);
  };
  const F f{call.eps, sign_of(call.inverse)};
  const auto q = heads("q", call.q), k = heads_like("k", call.k, q, q);
  if constexpr (kStored) {
    const auto slots = [&](const char* name, const TensorView& cache) {
      return indexed(heads(name, cache), "out_loc", *call.out_loc, true);
    };
    const auto k_slots = slots("k_cache", *call.k_cache), v_slots = slots("v_cache", *call.v_cache);
    layer(
        f, {of(q, "q_weight", call.q_weight, q), of(k, "k_weight", call.k_weight, k_slots),
            layer.rows(F::x = heads_like("v", *call.v, q, v_slots), F::cache = v_slots)});
  } else {
    layer(f, {of(q, "q_weight", call.q_weight, q), of(k, "k_weight", call.k_weight, k)});
  }
}

template <Norm kNorm, bool kStored>
void in_order(const Call& call) {
  return call.is_neox ? launch<sgl::Neox, kNorm, kStored>(call) : launch<sgl::Interleaved, kNorm, kStored>(call);
}

template <bool kStored>
void normed(const Call& call) {
  if (!(call.eps >= 0)) [[unlikely]]
    throw Error("ValueError", "eps must be at least 0, got ", call.eps);
  return call.gemma ? in_order<Norm::kGemma, kStored>(call) : in_order<Norm::kPlain, kStored>(call);
}

void apply_rope(
    TensorView q, TensorView k, TensorView cos_sin, TensorView positions, bool is_neox, int64_t rope_dim,
    bool inverse) {
  in_order<Norm::kNone, false>({q, k, cos_sin, positions, rope_dim, is_neox, inverse});
}

void apply_rope_with_kvcache(
    TensorView q, TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView cos_sin,
    TensorView positions, TensorView out_loc, bool is_neox, int64_t rope_dim) {
  in_order<Norm::kNone, true>(
      {q, k, cos_sin, positions, rope_dim, is_neox, false, nullptr, nullptr, 0, false, &v, &k_cache, &v_cache,
       &out_loc});
}

void norm_rope(
    TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, TensorView cos_sin, TensorView positions,
    float eps, bool is_neox, int64_t rope_dim, bool gemma) {
  normed<false>({q, k, cos_sin, positions, rope_dim, is_neox, false, &q_weight, &k_weight, eps, gemma});
}

void norm_rope_with_kvcache(
    TensorView q, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView k_cache,
    TensorView v_cache, TensorView cos_sin, TensorView positions, TensorView out_loc, float eps, bool is_neox,
    int64_t rope_dim, bool gemma) {
  normed<true>(
      {q, k, cos_sin, positions, rope_dim, is_neox, false, &q_weight, &k_weight, eps, gemma, &v, &k_cache, &v_cache,
       &out_loc});
}

template <typename Order>
void rotate(TensorView q, TensorView k, TensorView cos, TensorView sin, bool inverse) {
  using F = rope::Given<Order>;
  const auto half = [](const char* name, const TensorView& tensor) { return repeated(rows(name, tensor).part(0, 2)); };
  const auto of = [&](const Rows& x) {
    return given_program<Order>.rows(F::x = x, F::cos = half("cos", cos), F::sin = half("sin", sin));
  };
  const auto first = heads("q", q);
  given_program<Order>({sign_of(inverse)}, {of(first), of(heads_like("k", k, first, first))});
}

void apply_rotary_pos_emb(TensorView q, TensorView k, TensorView cos, TensorView sin, bool is_neox, bool inverse) {
  return is_neox ? rotate<sgl::Neox>(q, k, cos, sin, inverse) : rotate<sgl::Interleaved>(q, k, cos, sin, inverse);
}

}  // namespace

SGL_EXPORT(apply_rope_inplace, (apply_rope))
SGL_EXPORT(apply_rope_inplace_with_kvcache, (apply_rope_with_kvcache))
SGL_EXPORT(apply_rotary_pos_emb_inplace, (apply_rotary_pos_emb))
SGL_EXPORT(fused_qk_norm_rope, (norm_rope))
SGL_EXPORT(fused_qk_norm_rope_with_kvcache, (norm_rope_with_kvcache))
