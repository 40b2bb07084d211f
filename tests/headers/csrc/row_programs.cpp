/// \file row_programs.cpp
/// \brief Row programs on all of their operands, for test_row_program.py.

#include "row_programs.h"

namespace {

using namespace host;
using namespace programs;

host::RowProgram<programs::Softmax> softmax_program{"row_programs.h"};

void softmax(host::TensorView x, host::TensorView out) {
  using F = programs::Softmax;
  softmax_program({}, F::x = host::rows("x", x), F::out = host::rows("out", out));
}

RowProgram<Softmax, 1, sgl::AnyColumns> any_softmax_program{"row_programs.h"};
RowProgram<PerGroup<128>, 1, sgl::AnyColumns> any_per_group_program{"row_programs.h"};
RowProgram<RMSNorm> rmsnorm_program{"row_programs.h"};
RowProgram<RMSNorm, 2> qknorm_program{"row_programs.h"};
RowProgram<FusedAddRMSNorm> fused_add_program{"row_programs.h"};
RowProgram<LayerNorm> layernorm_program{"row_programs.h"};
RowProgram<PerToken> per_token_program{"row_programs.h"};
template <int kSize>
RowProgram<PerGroup<kSize>> per_group_program{"row_programs.h"};
RowProgram<Copy> gather_program{"row_programs.h"};
RowProgram<Scaled> scaled_program{"row_programs.h"};
template <typename Order>
RowProgram<Rope<Order>, 2> rope_program{"row_programs.h"};

void any_softmax(TensorView x, TensorView out) {
  any_softmax_program({}, Softmax::x = rows("x", x), Softmax::out = rows("out", out));
}

void per_group_of_words(TensorView x, TensorView out, TensorView scales) {
  using F = PerGroup<128>;
  per_group_program<128>({}, F::x = rows("x", x), F::out = rows("out", out), F::scales = heads("scales", scales));
}

void any_per_group(TensorView x, TensorView out, TensorView scales) {
  using F = PerGroup<128>;
  any_per_group_program({}, F::x = rows("x", x), F::out = rows("out", out), F::scales = values("scales", scales));
}

void rmsnorm(TensorView x, TensorView weight, TensorView out, float eps) {
  using F = RMSNorm;
  rmsnorm_program({eps}, F::x = rows("x", x), F::weight = shared_row("weight", weight), F::out = rows("out", out));
}

void group_rmsnorm(TensorView x, TensorView weight, TensorView out, std::int64_t size, float eps) {
  using F = RMSNorm;
  rmsnorm_program(
      {eps}, F::x = in_groups(rows("x", x), size), F::weight = in_groups(shared_row("weight", weight), size),
      F::out = in_groups(rows("out", out), size));
}

void qknorm(TensorView q, TensorView k, TensorView q_weight, TensorView k_weight, float eps) {
  using F = RMSNorm;
  const auto of = [](const Rows& x, const Rows& weight) {
    return qknorm_program.rows(F::x = x, F::weight = weight, F::out = x);
  };
  qknorm_program(
      {eps},
      {of(heads("q", q), shared_row("q_weight", q_weight)), of(heads("k", k), shared_row("k_weight", k_weight))});
}

void fused_add_rmsnorm(TensorView x, TensorView residual, TensorView weight, float eps) {
  using F = FusedAddRMSNorm;
  fused_add_program(
      {eps}, F::x = rows("x", x), F::residual = rows("residual", residual), F::weight = shared_row("weight", weight));
}

void layernorm(TensorView x, TensorView weight, TensorView bias, TensorView out, float eps) {
  using F = LayerNorm;
  layernorm_program(
      {eps}, F::x = rows("x", x), F::weight = shared_row("weight", weight), F::bias = shared_row("bias", bias),
      F::out = rows("out", out));
}

void per_token(TensorView x, TensorView out, TensorView scale) {
  using F = PerToken;
  per_token_program({}, F::x = rows("x", x), F::out = rows("out", out), F::scale = rows("scale", scale));
}

template <int kSize>
void per_group(TensorView x, TensorView out, TensorView scales) {
  using F = PerGroup<kSize>;
  per_group_program<kSize>({}, F::x = rows("x", x), F::out = rows("out", out), F::scales = values("scales", scales));
}

// example: row_program_sets
host::RowProgram<programs::Copy, 2> copy_program{"row_programs.h"};

void store(
    host::TensorView k, host::TensorView v, host::TensorView k_cache, host::TensorView v_cache,
    host::TensorView slots) {
  using F = programs::Copy;
  const auto of = [&](const host::Rows& x, const host::Rows& cache) {
    return copy_program.rows(F::x = x, F::out = host::indexed(cache.typed_as(x), "slots", slots, true));
  };
  copy_program(
      {}, {of(host::heads("k", k), host::heads("k_cache", k_cache)),
           of(host::heads("v", v), host::heads("v_cache", v_cache))});
}
// end

// example: row_program_counts
host::RowProgram<programs::Softmax> counted_program{"row_programs.h"};

void counted_softmax(host::TensorView x, host::TensorView out, host::TensorView counts) {
  using F = programs::Softmax;
  counted_program({}, F::x = host::counted(host::heads("x", x), "counts", counts), F::out = host::heads("out", out));
}
// end

void counted_twice(TensorView x, TensorView out, TensorView counts, TensorView others) {
  using F = programs::Softmax;
  counted_program(
      {}, F::x = counted(heads("x", x), "counts", counts), F::out = counted(heads("out", out), "others", others));
}

void counted_copies(TensorView k, TensorView k_out, TensorView counts, TensorView v, TensorView v_out) {
  using F = Copy;
  copy_program(
      {}, {copy_program.rows(F::x = heads("k", k), F::out = counted(heads("k_out", k_out), "counts", counts)),
           copy_program.rows(F::x = heads("v", v), F::out = heads("v_out", v_out))});
}

void gather(TensorView table, TensorView index, TensorView out) {
  using F = Copy;
  gather_program({}, F::x = indexed(rows("table", table), "index", index), F::out = rows("out", out));
}

/// Reads rows by an index, elements, angles or a value for each.
void gather_some(TensorView table, TensorView index, TensorView out) {
  using F = Copy;
  gather_program({}, F::x = indexed(rows("table", table), "index", index, true), F::out = rows("out", out));
}

void scale_some(TensorView x, TensorView scale, TensorView index, TensorView out) {
  using F = Scaled;
  const auto scales = indexed(rows("scale", scale), "index", index, true);
  scaled_program({}, F::x = rows("x", x), F::scale = scales, F::out = rows("out", out));
}

void rope_some(TensorView x, TensorView cos_sin, TensorView index) {
  using F = Rope<sgl::Neox>;
  const auto angles = repeated(indexed(rows("cos_sin", cos_sin), "index", index, true));
  const auto of = rope_program<sgl::Neox>.rows(F::x = heads("x", x), F::cos_sin = angles, F::out = heads("x", x));
  rope_program<sgl::Neox>({}, {of, of});
}

void scaled(TensorView x, TensorView scale, TensorView out) {
  using F = Scaled;
  scaled_program({}, F::x = rows("x", x), F::scale = rows("scale", scale), F::out = rows("out", out));
}

RowProgram<ArgMax> argmax_program{"row_programs.h"};
RowProgram<Ranked> ranked_program{"row_programs.h"};
RowProgram<Largest> largest_program{"row_programs.h"};
RowProgram<Chained> chained_program{"row_programs.h"};

void argmax(TensorView x, TensorView largest, TensorView index) {
  using F = ArgMax;
  argmax_program({}, F::x = rows("x", x), F::largest = rows("largest", largest), F::index = rows("index", index));
}

void ranked(TensorView x, TensorView largest, TensorView columns, int size) {
  using F = Ranked;
  ranked_program(
      {size}, F::x = rows("x", x), F::largest = values("largest", largest), F::columns = values("columns", columns));
}

void largest(TensorView x, TensorView columns, int k) {
  largest_program({k}, Largest::x = rows("x", x), Largest::columns = values("columns", columns));
}

void chained(TensorView x, TensorView out, TensorView scale, float eps) {
  using F = Chained;
  chained_program({{eps}}, F::x = rows("x", x), F::out = rows("out", out), F::scale = rows("scale", scale));
}

RowProgram<RoundedPrologue> rounded_program{"row_programs.h"};
RowProgram<Affine> affine_program{"row_programs.h"};
RowProgram<Mean> mean_program{"row_programs.h"};

void rounded_prologue(TensorView x, TensorView weight, TensorView cos_sin, TensorView positions, float eps) {
  using F = RoundedPrologue;
  rounded_program(
      {eps}, F::x = heads("x", x), F::weight = shared_row("weight", weight),
      F::cos_sin = repeated(indexed(rows("cos_sin", cos_sin), "positions", positions)));
}

void affine(TensorView x, TensorView shift, TensorView out, float scale) {
  using F = Affine;
  affine_program(
      {scale}, F::x = rows("x", x), F::shift = shift.ndim() == 1 ? shared_row("shift", shift) : rows("shift", shift),
      F::out = rows("out", out));
}

void affine_heads(TensorView x, TensorView shift, TensorView out, float scale) {
  using F = Affine;
  affine_program({scale}, F::x = heads("x", x), F::shift = shared_row("shift", shift), F::out = heads("out", out));
}

RowProgram<OnlineSoftmax> online_softmax_program{"row_programs.h"};
RowProgram<Moments> moments_program{"row_programs.h"};

void online_softmax(TensorView x, TensorView out) {
  using F = OnlineSoftmax;
  online_softmax_program({}, F::x = rows("x", x), F::out = rows("out", out));
}

void moments(TensorView x, TensorView mean, TensorView variance) {
  using F = Moments;
  moments_program({}, F::x = rows("x", x), F::mean = rows("mean", mean), F::variance = rows("variance", variance));
}

/// A row of `shift` for each group of rows.
void affine_groups(TensorView x, TensorView shift, TensorView out, float scale) {
  using F = Affine;
  affine_program({scale}, F::x = heads("x", x), F::shift = repeated(rows("shift", shift)), F::out = heads("out", out));
}

RowProgram<Forgetful> forgetful_program{"row_programs.h"};

void forgetful(TensorView x, TensorView out) {
  using F = Forgetful;
  forgetful_program({}, F::x = rows("x", x), F::out = rows("out", out));
}

RowProgram<ReadsLate> reads_late_program{"row_programs.h"};

void reads_late(TensorView x, TensorView other, TensorView out, int way) {
  using F = ReadsLate;
  const auto others = other.dim() == 1 ? shared_row("other", other) : rows("other", other);
  reads_late_program({way}, F::x = rows("x", x), F::other = others, F::out = rows("out", out));
}

template <bool kRounds>
RowProgram<Unused<kRounds>> unused_program{"row_programs.h"};

template <bool kRounds>
void unused(TensorView x, TensorView other, TensorView out) {
  using F = Unused<kRounds>;
  unused_program<kRounds>({}, F::x = rows("x", x), F::other = rows("other", other), F::out = rows("out", out));
}

void mean(TensorView x, TensorView out) {
  using F = Mean;
  mean_program({}, F::x = rows("x", x), F::out = rows("out", out));
}

template <typename Order>
void rope(TensorView q, TensorView k, TensorView cos_sin, TensorView positions) {
  using F = Rope<Order>;
  const auto angles = repeated(indexed(rows("cos_sin", cos_sin), "positions", positions));
  const auto of = [&](const Rows& x) { return rope_program<Order>.rows(F::x = x, F::cos_sin = angles, F::out = x); };
  rope_program<Order>({}, {of(heads("q", q)), of(heads("k", k))});
}

template <typename F>
RowProgram<F, 3> attention_program{"row_programs.h"};

template <typename F>
void attention(
    TensorView q, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView cos_sin,
    TensorView positions, TensorView k_cache, TensorView v_cache, TensorView slots, float eps) {
  const auto& program = attention_program<F>;
  const auto angles = repeated(indexed(rows("cos_sin", cos_sin), "positions", positions));
  const auto cache = [&](const char* name, const TensorView& tensor) {
    return indexed(heads(name, tensor), "slots", slots, true);
  };
  attention_program<F>(
      {eps}, {program.rows(F::x = heads("q", q), F::weight = shared_row("q_weight", q_weight), F::cos_sin = angles),
              program.rows(
                  F::x = heads("k", k), F::weight = shared_row("k_weight", k_weight), F::cos_sin = angles,
                  F::cache = cache("k_cache", k_cache)),
              program.rows(F::x = heads("v", v), F::cache = cache("v_cache", v_cache))});
}

template <typename F>
void attention_without_weight(TensorView q) {
  const auto x = attention_program<F>.rows(F::x = heads("q", q));
  attention_program<F>({0}, {x, x, x});
}

void alike_attention_without_caches(
    TensorView q, TensorView weight, TensorView cos_sin, TensorView cache, TensorView slots) {
  using F = AlikeAttention;
  const auto& program = attention_program<F>;
  const auto x = heads("q", q);
  const auto of =
      program.rows(F::x = x, F::weight = shared_row("weight", weight), F::cos_sin = repeated(rows("", cos_sin)));
  const auto stored = indexed(heads("cache", cache), "slots", slots, true);
  attention_program<F>({0}, {of, of, program.rows(F::x = x, F::cache = stored)});
}

void attention_without_slots(TensorView q, TensorView weight, TensorView cos_sin, TensorView cache) {
  using F = AlikeAttention;
  const auto& program = attention_program<F>;
  const auto x = heads("q", q);
  const auto of =
      program.rows(F::x = x, F::weight = shared_row("weight", weight), F::cos_sin = repeated(rows("", cos_sin)));
  attention_program<F>({0}, {of, of, program.rows(F::x = x, F::cache = heads("cache", cache))});
}

// example: row_program_prologue_host
host::RowProgram<programs::Prologue> prologue_program{"row_programs.h"};

void prologue(
    host::TensorView k, host::TensorView weight, host::TensorView cos_sin, host::TensorView positions,
    host::TensorView cache, host::TensorView slots, float eps) {
  using F = programs::Prologue;
  prologue_program(
      {eps}, F::x = host::heads("k", k), F::weight = host::shared_row("weight", weight),
      F::cos_sin = host::repeated(host::indexed(host::rows("cos_sin", cos_sin), "positions", positions)),
      F::cache = host::indexed(host::heads("cache", cache), "slots", slots, true));
}
// end

}  // namespace

#include <sgl_kernel/export.h>
SGL_EXPORT(softmax, (softmax))
SGL_EXPORT(any_softmax, (any_softmax))
SGL_EXPORT(any_per_group, (any_per_group))
SGL_EXPORT(per_group_of_words, (per_group_of_words))
SGL_EXPORT(rmsnorm, (rmsnorm))
SGL_EXPORT(group_rmsnorm, (group_rmsnorm))
SGL_EXPORT(qknorm, (qknorm))
SGL_EXPORT(fused_add_rmsnorm, (fused_add_rmsnorm))
SGL_EXPORT(layernorm, (layernorm))
SGL_EXPORT(per_token, (per_token))
SGL_EXPORT(per_group_128, (per_group<128>))
SGL_EXPORT(per_group_16, (per_group<16>))
SGL_EXPORT(per_group_32, (per_group<32>))
SGL_EXPORT(per_group_256, (per_group<256>))
SGL_EXPORT(store, (store))
SGL_EXPORT(counted_softmax, (counted_softmax))
SGL_EXPORT(counted_twice, (counted_twice))
SGL_EXPORT(counted_copies, (counted_copies))
SGL_EXPORT(gather, (gather))
SGL_EXPORT(gather_some, (gather_some))
SGL_EXPORT(scale_some, (scale_some))
SGL_EXPORT(rope_some, (rope_some))
SGL_EXPORT(scaled, (scaled))
SGL_EXPORT(argmax, (argmax))
SGL_EXPORT(online_softmax, (online_softmax))
SGL_EXPORT(moments, (moments))
SGL_EXPORT(ranked, (ranked))
SGL_EXPORT(largest, (largest))
SGL_EXPORT(chained, (chained))
SGL_EXPORT(rounded_prologue, (rounded_prologue))
SGL_EXPORT(affine, (affine))
SGL_EXPORT(affine_heads, (affine_heads))
SGL_EXPORT(affine_groups, (affine_groups))
SGL_EXPORT(mean, (mean))
SGL_EXPORT(forgetful, (forgetful))
SGL_EXPORT(reads_late, (reads_late))
SGL_EXPORT(unused, (unused<false>))
SGL_EXPORT(unused_but_for_its_dtype, (unused<true>))
SGL_EXPORT(rope_neox, (rope<sgl::Neox>))
SGL_EXPORT(rope_interleaved, (rope<sgl::Interleaved>))
SGL_EXPORT(prologue, (prologue))
SGL_EXPORT(attention, (attention<Attention>))
SGL_EXPORT(alike_attention, (attention<AlikeAttention>))
SGL_EXPORT(attention_without_weight, (attention_without_weight<Attention>))
SGL_EXPORT(alike_attention_without_weight, (attention_without_weight<AlikeAttention>))
SGL_EXPORT(alike_attention_without_caches, (alike_attention_without_caches))
SGL_EXPORT(attention_without_slots, (attention_without_slots))
