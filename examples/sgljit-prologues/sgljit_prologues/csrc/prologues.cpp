/// \file prologues.cpp
/// \brief The host part: the functions that Python calls.

#include "prologues.h"

#include <sgl_kernel/export.h>

namespace {

using namespace host;

// The operands of each prologue have names; what a segment does not use is not passed.
RowProgram<prologues::NormedHeads<false>, 3> qwen3_program{"prologues.h"};
RowProgram<prologues::NormedHeads<true>, 4> qwen3_next_program{"prologues.h"};
RowProgram<prologues::RotatedHeads, 3> gpt_oss_program{"prologues.h"};
RowProgram<prologues::Latents, 3> deepseek_v3_program{"prologues.h"};
RowProgram<prologues::BothSides> gemma3_program{"prologues.h"};
RowProgram<prologues::AcrossHeads, 2> minimax_m2_program{"prologues.h"};

/// The angles of each token, for all of its heads.
Rows angles(const TensorView& cos_sin, const TensorView& positions) {
  return repeated(indexed(rows("cos_sin", cos_sin), "positions", positions));
}

/// The slots of tokens in the cache of `x`, of its dtype, as FP8 would need a scale. A token with a negative slot is
/// not stored.
Rows slots_of(const Rows& x, const char* name, const TensorView& cache, const TensorView& slots) {
  return indexed(heads(name, cache).typed_as(x), "slots", slots, true);
}

void qwen3(
    TensorView q, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView cos_sin,
    TensorView positions, TensorView k_cache, TensorView v_cache, TensorView slots, float eps) {
  using F = prologues::NormedHeads<false>;
  const auto& program = qwen3_program;
  const auto turn = angles(cos_sin, positions);
  const auto keys = heads("k", k), values = heads("v", v);
  qwen3_program(
      {eps}, {program.rows(F::x = heads("q", q), F::weight = shared_row("q_weight", q_weight), F::cos_sin = turn),
              program.rows(
                  F::x = keys, F::weight = shared_row("k_weight", k_weight), F::cos_sin = turn,
                  F::cache = slots_of(keys, "k_cache", k_cache, slots)),
              program.rows(F::x = values, F::cache = slots_of(values, "v_cache", v_cache, slots))});
}

void qwen3_next(
    TensorView q_and_gate, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView cos_sin,
    TensorView positions, TensorView k_cache, TensorView v_cache, TensorView slots, float eps) {
  using F = prologues::NormedHeads<true>;
  const auto& program = qwen3_next_program;
  const auto turn = angles(cos_sin, positions);
  const auto both = heads("q_and_gate", q_and_gate), keys = heads("k", k), values = heads("v", v);
  qwen3_next_program(
      {eps}, {program.rows(F::x = both.part(0, 2), F::weight = shared_row("q_weight", q_weight), F::cos_sin = turn),
              program.rows(
                  F::x = keys, F::weight = shared_row("k_weight", k_weight), F::cos_sin = turn,
                  F::cache = slots_of(keys, "k_cache", k_cache, slots)),
              program.rows(F::x = values, F::cache = slots_of(values, "v_cache", v_cache, slots)),
              program.rows(F::x = both.part(1, 2))});
}

/// q, k and v for `gpt_oss_program`, rotated and stored.
struct Stored {
  using F = prologues::RotatedHeads;
  ProgramRows<F::kOperands> segments[3];

  Stored(
      const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& cos_sin,
      const TensorView& positions, const TensorView& k_cache, const TensorView& v_cache, const TensorView& slots)
      : Stored(heads("q", q), heads("k", k), heads("v", v), angles(cos_sin, positions), k_cache, v_cache, slots) {}

 private:
  Stored(
      const Rows& q, const Rows& k, const Rows& v, const Rows& turn, const TensorView& k_cache,
      const TensorView& v_cache, const TensorView& slots)
      : segments{
            gpt_oss_program.rows(F::x = q, F::cos_sin = turn),
            gpt_oss_program.rows(F::x = k, F::cos_sin = turn, F::cache = slots_of(k, "k_cache", k_cache, slots)),
            gpt_oss_program.rows(F::x = v, F::cache = slots_of(v, "v_cache", v_cache, slots))} {}
};

void gpt_oss(
    TensorView q, TensorView k, TensorView v, TensorView cos_sin, TensorView positions, TensorView k_cache,
    TensorView v_cache, TensorView slots) {
  gpt_oss_program({}, Stored(q, k, v, cos_sin, positions, k_cache, v_cache, slots).segments);
}

void deepseek_v3(
    TensorView q_latent, TensorView kv_latent, TensorView q_weight, TensorView kv_weight, TensorView cos_sin,
    TensorView positions, TensorView kv_cache, TensorView slots, float eps) {
  using F = prologues::Latents;
  const auto& program = deepseek_v3_program;
  const auto weights = shared_row("kv_weight", kv_weight);
  const auto turn = indexed(rows("cos_sin", cos_sin), "positions", positions);
  const auto kv = rows("kv_latent", kv_latent);
  const auto cache = indexed(rows("kv_cache", kv_cache).typed_as(kv), "slots", slots, true);
  const auto rank = weights.columns;
  for (const auto& one : {kv, cache}) {  // slices would take a longer row
    if (one.columns != rank + turn.columns) [[unlikely]]
      throw Error(
          "ValueError", one.name, ": expected rows of ", rank + turn.columns,
          " elements, as kv_weight and cos_sin have "
          "together, but got ",
          one.columns);
  }
  deepseek_v3_program(
      {eps}, {program.rows(F::x = rows("q_latent", q_latent), F::weight = shared_row("q_weight", q_weight)),
              program.rows(F::x = kv.slice(0, rank), F::weight = weights, F::cache = cache.slice(0, rank)),
              program.rows(
                  F::x = kv.slice(rank, turn.columns), F::cos_sin = turn, F::cache = cache.slice(rank, turn.columns))});
}

void gemma3(TensorView x, TensorView residual, TensorView after, TensorView before, float eps) {
  using F = prologues::BothSides;
  gemma3_program(
      {eps}, F::x = rows("x", x), F::residual = rows("residual", residual), F::after = shared_row("after", after),
      F::before = shared_row("before", before));
}

/// A row of the norm is no row of the rotation, so this prologue takes two launches; the first writes nothing that the
/// second would refuse.
void minimax_m2(
    TensorView q, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView cos_sin,
    TensorView positions, TensorView k_cache, TensorView v_cache, TensorView slots, float eps) {
  using F = prologues::AcrossHeads;
  const auto& program = minimax_m2_program;
  const Stored stored(q, k, v, cos_sin, positions, k_cache, v_cache, slots);
  gpt_oss_program.check({}, stored.segments);
  for (const auto& read : {heads("v", v), rows("cos_sin", cos_sin)}) {
    for (const auto& written : {heads("q", q), heads("k", k)}) {  // by the first launch; the second reads the others
      if (rows_meet(written.memory(), read.memory())) [[unlikely]]
        throw Error("ValueError", written.name, " must not share memory with ", read.name);
    }
  }
  minimax_m2_program(
      {eps}, {program.rows(F::x = rows("q", q, 2), F::weight = shared_row("q_weight", q_weight)),
              program.rows(F::x = rows("k", k, 2), F::weight = shared_row("k_weight", k_weight))});
  gpt_oss_program({}, stored.segments);
}

}  // namespace

SGL_EXPORT(qwen3, (qwen3))
SGL_EXPORT(qwen3_next, (qwen3_next))
SGL_EXPORT(gpt_oss, (gpt_oss))
SGL_EXPORT(deepseek_v3, (deepseek_v3))
SGL_EXPORT(gemma3, (gemma3))
SGL_EXPORT(minimax_m2, (minimax_m2))
