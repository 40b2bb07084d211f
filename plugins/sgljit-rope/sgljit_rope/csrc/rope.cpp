/// \file rope.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "rope.h"

namespace {

using namespace host;
using rope::Norm;

template <typename Order, Norm kNorm, bool kRounds, bool kStored>
RowProgram<rope::Layer<Order, kNorm, kRounds, kStored>, kStored ? 3 : 2> program{"rope.h"};
template <typename Order>
RowProgram<rope::Given<Order>, 2> given_program{"rope.h"};
template <bool kEach>
RowProgram<rope::Apart<kEach>, 2> apart_program{"rope.h"};

/// The arguments of a call; tensors that an op has not are null.
struct Call {
  const TensorView &q, &k, &cos_sin, &positions;
  std::int64_t rope_dim;
  bool is_neox, inverse;
  const TensorView *q_weight = nullptr, *k_weight = nullptr;
  float eps = 0;
  bool gemma = false, round_first = false;
  const TensorView *v = nullptr, *k_cache = nullptr, *v_cache = nullptr, *out_loc = nullptr;
};

float sign_of(bool inverse) {
  return inverse ? -1.0f : 1.0f;
}

/// The heads of q, which have one pair at least.
Rows paired_heads(const char* name, const TensorView& tensor) {
  const auto x = heads(name, tensor).floats();
  if (x.columns < 2) [[unlikely]]
    x.raise({}, {"Size mismatch for head_dim: expected at least 2, a pair, but got ", x.columns});
  return x;
}

/// Refuses rows that are not for the tokens of q, and of its dtype.
const Rows& of_tokens(const Rows& x, const Rows& q) {
  x.typed_as(q);
  if (x.count != q.count) [[unlikely]]
    x.raise(
        {}, {"Size mismatch for the number of rows: expected ", q.count, ", that of ", q.name, ", but got ", x.count});
  return x;
}

/// Refuses rows of another size.
const Rows& sized_as(const Rows& x, const Rows& other) {
  if (x.columns != other.columns) [[unlikely]]
    x.raise(
        {}, {"Size mismatch for a row: expected ", other.columns, ", that of ", other.name, ", but got ", x.columns});
  return x;
}

/// The heads of k or v: for the tokens of q, of its dtype, and of the size of other heads.
Rows heads_like(const char* name, const TensorView& tensor, const Rows& q, const Rows& sized) {
  return sized_as(of_tokens(heads(name, tensor), q), sized);
}

/// The angles of each token, for all of its heads.
Rows angles_of(const TensorView& cos_sin, const TensorView& positions, std::int64_t rope_dim) {
  const auto table = rows("cos_sin_cache", cos_sin).floats();
  if (rope_dim != 0 && rope_dim != table.columns) [[unlikely]]
    table.raise({}, {"Size mismatch for a row: expected rope_dim, ", rope_dim, ", but got ", table.columns});
  return repeated(indexed(table, "positions", positions));
}

template <bool kStored>
using Segments = ProgramRows<rope::Layer<sgl::Neox, Norm::kNone, false, kStored>::kOperands>[kStored ? 3 : 2];

template <Norm kNorm, bool kRounds, bool kStored>
void in_order(const Call& call, const Segments<kStored>& segments) {
  const auto sign = sign_of(call.inverse);
  if (call.is_neox) return program<sgl::Neox, kNorm, kRounds, kStored>({call.eps, sign}, segments);
  return program<sgl::Interleaved, kNorm, kRounds, kStored>({call.eps, sign}, segments);
}

template <bool kRounds, bool kStored>
void by_weights(const Call& call, const Segments<kStored>& segments) {
  if (call.gemma) return in_order<Norm::kGemma, kRounds, kStored>(call, segments);
  return in_order<Norm::kPlain, kRounds, kStored>(call, segments);
}

template <bool kStored>
void run(const Call& call, const Segments<kStored>& segments) {
  if (call.q_weight == nullptr) return in_order<Norm::kNone, false, kStored>(call, segments);
  return call.round_first ? by_weights<true, kStored>(call, segments) : by_weights<false, kStored>(call, segments);
}

/// All layers have the same operands, which are bound here for whichever: this is compiled once.
template <bool kStored>
void launch(const Call& call) {
  if (!(call.eps >= 0)) [[unlikely]]
    throw Error("ValueError", "eps must be at least 0, got ", call.eps);
  using F = rope::Layer<sgl::Neox, Norm::kNone, false, kStored>;
  const auto& layer = program<sgl::Neox, Norm::kNone, false, kStored>;
  const auto q = paired_heads("q", call.q), k = heads_like("k", call.k, q, q);
  const auto angles = angles_of(call.cos_sin, call.positions, call.rope_dim);
  // An operand that a program does not use may be any.
  const auto weight_of = [](const Rows& x, const char* name, const TensorView* weight) {
    return weight != nullptr ? shared_row(name, *weight).floats() : x;
  };
  const auto q_weights = weight_of(q, "q_weight", call.q_weight), k_weights = weight_of(k, "k_weight", call.k_weight);
  if constexpr (kStored) {
    const auto slots = [&](const char* name, const TensorView& cache) {
      return indexed(heads(name, cache).typed_as(k), "out_loc", *call.out_loc, true);
    };
    const auto k_slots = slots("k_cache", *call.k_cache), v_slots = slots("v_cache", *call.v_cache);
    run<true>(
        call, {layer.rows(F::x = q, F::weight = q_weights, F::cos_sin = angles),
               layer.rows(F::x = k, F::weight = k_weights, F::cos_sin = angles, F::cache = k_slots),
               layer.rows(F::x = heads_like("v", *call.v, q, v_slots), F::cache = v_slots)});
  } else {
    run<false>(
        call, {layer.rows(F::x = q, F::weight = q_weights, F::cos_sin = angles, F::cache = q),
               layer.rows(F::x = k, F::weight = k_weights, F::cos_sin = angles, F::cache = k)});
  }
}

void apply_rope(
    TensorView q, TensorView k, TensorView cos_sin, TensorView positions, bool is_neox, int64_t rope_dim,
    bool inverse) {
  launch<false>({q, k, cos_sin, positions, rope_dim, is_neox, inverse});
}

void apply_rope_with_kvcache(
    TensorView q, TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView cos_sin,
    TensorView positions, TensorView out_loc, bool is_neox, int64_t rope_dim) {
  launch<true>(
      {q, k, cos_sin, positions, rope_dim, is_neox, false, nullptr, nullptr, 0, false, false, &v, &k_cache, &v_cache,
       &out_loc});
}

/// [tokens, size], or [tokens, 1, size].
Rows latent(const char* name, const TensorView& tensor) {
  return tensor.ndim() == 2 ? rows(name, tensor) : heads(name, tensor);
}

/// `apply_rope_with_kvcache` of a latent row: its rotated part is k, the other is v, and a slot has room for both.
void apply_rope_with_mla_kvcache(
    TensorView q_rope, TensorView k_nope, TensorView k_rope, TensorView kv_buffer, TensorView cos_sin,
    TensorView positions, TensorView out_loc, bool is_neox, int64_t rope_dim) {
  using F = rope::Layer<sgl::Neox, Norm::kNone, false, true>;
  const auto& layer = program<sgl::Neox, Norm::kNone, false, true>;
  const auto q = paired_heads("q_rope", q_rope);
  const auto nope = of_tokens(latent("k_nope", k_nope), q);
  const auto turned = sized_as(of_tokens(latent("k_rope", k_rope), q), q);
  const auto slots = indexed(latent("kv_buffer", kv_buffer).typed_as(turned), "out_loc", out_loc, true);
  const auto columns = nope.columns + turned.columns;
  if (slots.columns != columns) [[unlikely]]
    slots.raise(
        {}, {"Size mismatch for a row: expected ", columns, ", those of k_nope and k_rope, but got ", slots.columns});
  const auto angles = angles_of(cos_sin, positions, rope_dim);
  run<true>(
      {q_rope, k_rope, cos_sin, positions, rope_dim, is_neox, false},
      {layer.rows(F::x = q, F::cos_sin = angles),
       layer.rows(F::x = turned, F::cos_sin = angles, F::cache = slots.slice(nope.columns, turned.columns)),
       layer.rows(F::x = nope, F::cache = slots.slice(0, nope.columns))});
}

void norm_rope(
    TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, TensorView cos_sin, TensorView positions,
    float eps, bool is_neox, int64_t rope_dim, bool gemma, bool round_first) {
  launch<false>({q, k, cos_sin, positions, rope_dim, is_neox, false, &q_weight, &k_weight, eps, gemma, round_first});
}

void norm_rope_with_kvcache(
    TensorView q, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView k_cache,
    TensorView v_cache, TensorView cos_sin, TensorView positions, TensorView out_loc, float eps, bool is_neox,
    int64_t rope_dim, bool gemma, bool round_first) {
  launch<true>(
      {q, k, cos_sin, positions, rope_dim, is_neox, false, &q_weight, &k_weight, eps, gemma, round_first, &v, &k_cache,
       &v_cache, &out_loc});
}

template <typename Order>
void rotate(TensorView q, TensorView k, TensorView cos, TensorView sin, bool inverse) {
  using F = rope::Given<Order>;
  const auto half = [](const char* name, const TensorView& tensor) {
    return repeated(rows(name, tensor).floats().part(0, 2));
  };
  const auto of = [&](const Rows& x) {
    return given_program<Order>.rows(F::x = x, F::cos = half("cos", cos), F::sin = half("sin", sin));
  };
  const auto first = paired_heads("q", q);
  given_program<Order>({sign_of(inverse)}, {of(first), of(heads_like("k", k, first, first))});
}

void apply_rotary_pos_emb_inplace(
    TensorView q, TensorView k, TensorView cos, TensorView sin, bool is_neox, bool inverse) {
  return is_neox ? rotate<sgl::Neox>(q, k, cos, sin, inverse) : rotate<sgl::Interleaved>(q, k, cos, sin, inverse);
}

/// What a launch walks the batch with; alone, a launch is of one sequence.
enum class Batch { kWithSequence, kWithHeads, kAlone };

/// Whether one stride walks two dimensions, the second of which is the faster.
bool can_join(const TensorView& x, int slow, int fast) {
  return x.size(slow) <= 1 || x.size(fast) <= 1 || x.stride(slow) == x.size(fast) * x.stride(fast);
}

RowDimension joined(const TensorView& x, int slow, int fast) {
  return {x.size(slow) * x.size(fast), x.stride(x.size(fast) > 1 ? fast : slow)};
}

/// A row for each head of q, [batch, heads, sequence, size]; or of cos, [batch or 1, sequence, size], for all heads.
/// \param i the sequence of a launch of one.
Rows rows_of(const char* name, const TensorView& x, Batch batch, std::int64_t i) {
  const int last = x.ndim() - 1;
  RowDimension tokens = {x.size(last - 1), x.stride(last - 1)}, heads = {Rows::kForAllInner, 0};
  if (batch == Batch::kWithSequence) tokens = joined(x, 0, last - 1);
  if (last == 3) heads = batch == Batch::kWithHeads ? joined(x, 0, 1) : RowDimension{x.size(1), x.stride(1)};
  Rows result = {name, x, x.data_ptr(), tokens.count, x.size(last), tokens.stride, false, heads.count, heads.stride};
  if (batch == Batch::kAlone && x.size(0) > 1)
    result.data = static_cast<char*>(result.data) + i * x.stride(0) * result.element_bytes();
  return result;
}

/// The memory of all rows; of three dimensions that stay, with what lies between the rows of the shortest stride.
MemoryRows memory_of(const TensorView& x) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(x.dtype()));
  const int last = x.ndim() - 1;
  RowDimension by[3];
  for (int i = 0; i < last; ++i)
    if (x.size(i) != 1) by[i] = {x.size(i), x.stride(i) * bytes};
  for (const int i : {0, 1, 0}) {  // the longest stride first
    const auto one = by[i], next = by[i + 1];
    if (one.stride < next.stride) by[i] = next, by[i + 1] = one;
  }
  if (by[0].stride == by[1].count * by[1].stride)
    by[0] = {by[0].count * by[1].count, by[1].stride}, by[1] = by[2], by[2] = {};
  return {x.data_ptr(), x.size(last) * bytes + by[2].extent(), by[0], by[1]};
}

/// Refuses outputs, the first two, that share memory: a launch of one sequence sees no other.
void refuse_shared(const char* const (&names)[6], const TensorView* const (&all)[6]) {
  for (int i = 0; i < 2; ++i) {
    const auto& out = *all[i];
    const auto memory = memory_of(out);
    bool overlap = rows_overlap(memory);
    for (int n = 0; n < 3; ++n) overlap = overlap || (out.size(n) > 1 && out.stride(n) < out.size(3));
    for (int j = i; j < 6; ++j)
      if (i == j ? overlap : rows_meet(memory, memory_of(*all[j]))) [[unlikely]]
        throw Error(
            "ValueError", "rows of ", names[i], " share memory with each other or with rows of ", names[j], ": ",
            names[i], " is ", out, ", ", names[j], " is ", *all[j]);
  }
}

/// Rotates what has been checked. \tparam kEach whether each element has angles of its own, or each pair.
template <bool kEach>
void rotate_apart(
    const TensorView& q, const TensorView& k, const TensorView& cos, const TensorView& sin, const TensorView& q_out,
    const TensorView& k_out) {
  const auto join = [&](int slow, int fast) {
    return can_join(q, slow, fast) && can_join(k, slow, fast) && can_join(q_out, slow, fast) &&
           can_join(k_out, slow, fast);
  };
  auto walk = Batch::kAlone;
  if (cos.size(0) == 1 && sin.size(0) == 1 && join(0, 1)) walk = Batch::kWithHeads;
  if (cos.size(0) == q.size(0) && sin.size(0) == q.size(0) && can_join(cos, 0, 1) && can_join(sin, 0, 1) && join(0, 2))
    walk = Batch::kWithSequence;
  using F = rope::Apart<kEach>;
  for (std::int64_t i = 0; i < (walk == Batch::kAlone ? q.size(0) : 1); ++i) {
    const auto of = [&](const char* name, const TensorView& x, const char* out_name, const TensorView& out) {
      return apart_program<kEach>.rows(
          F::x = rows_of(name, x, walk, i), F::cos = rows_of("cos", cos, walk, i),
          F::sin = rows_of("sin", sin, walk, i), F::out = rows_of(out_name, out, walk, i));
    };
    apart_program<kEach>({}, {of("q", q, "q_out", q_out), of("k", k, "k_out", k_out)});
  }
}

void apply_rotary_pos_emb(
    TensorView q, TensorView k, TensorView cos, TensorView sin, TensorView q_out, TensorView k_out) {
  SymbolicSize batch{"batch"}, q_heads{"heads of q"}, k_heads{"heads of k"}, sequence{"sequence"}, size{"head_dim"};
  SymbolicSize pairs{"head_dim / 2"};
  SymbolicDType dtype;
  SymbolicDevice device;
  const auto match = [&](const char* name, const TensorView& x, SymbolicSize& heads) {
    TensorMatcher({batch, heads, sequence, size})
        .with_strides({-1, -1, -1, 1})
        .with_dtype<float, __half, __nv_bfloat16>(dtype)
        .with_device<kDLCUDA, kDLCPU>(device)
        .verify(x, name);
  };
  bool each = true;
  const auto match_angles = [&](const char* name, const TensorView& x) {
    SymbolicSize one;
    TensorMatcher({x.ndim() == 3 && x.size(0) == 1 ? one : batch, sequence, each ? size : pairs})
        .with_strides({-1, -1, 1})
        .with_dtype<float, __half, __nv_bfloat16>()
        .with_device(device)
        .verify(x, name);
  };
  match("q", q, q_heads), match("k", k, k_heads);
  each = cos.ndim() != 3 || 2 * cos.size(2) != q.size(3);
  pairs.set_value(q.size(3) / 2);
  match_angles("cos", cos), match_angles("sin", sin);
  match("q_out", q_out, q_heads), match("k_out", k_out, k_heads);
  if (q.size(3) % 2 != 0) [[unlikely]]
    Rows{"q", q, nullptr, 0, 0, 0, false}.raise(
        {}, {"Size mismatch for head_dim: expected an even number, pairs, but got ", q.size(3)});
  if (q.numel() == 0 && k.numel() == 0) return;
  refuse_shared({"q_out", "k_out", "q", "k", "cos", "sin"}, {&q_out, &k_out, &q, &k, &cos, &sin});
  return each ? rotate_apart<true>(q, k, cos, sin, q_out, k_out) : rotate_apart<false>(q, k, cos, sin, q_out, k_out);
}

}  // namespace

SGL_EXPORT(apply_rope_inplace, (apply_rope))
SGL_EXPORT(apply_rope_inplace_with_kvcache, (apply_rope_with_kvcache))
SGL_EXPORT(apply_rope_inplace_with_mla_kvcache, (apply_rope_with_mla_kvcache))
SGL_EXPORT(apply_rotary_pos_emb, (apply_rotary_pos_emb))
SGL_EXPORT(apply_rotary_pos_emb_inplace, (apply_rotary_pos_emb_inplace))
SGL_EXPORT(fused_qk_norm_rope, (norm_rope))
SGL_EXPORT(fused_qk_norm_rope_with_kvcache, (norm_rope_with_kvcache))
