/// \file prologues.cpp
/// \brief The host part: the functions that Python calls.

#include "prologues.h"

#include <sgl_kernel/export.h>

namespace {

using namespace host;

// All operands are `floats()`: a program would take FP8 as well, and saturate.

/// The angles of each token, for all of its heads.
Rows angles(const TensorView& cos_sin, const TensorView& positions) {
  return repeated(indexed(rows("cos_sin", cos_sin).floats(), "positions", positions));
}

Rows weight_of(const char* name, const TensorView& weight) {
  return shared_row(name, weight).floats();
}

/// Of a negative one a result could be NaN.
float checked(float eps) {
  if (!(eps >= 0)) [[unlikely]]
    throw Error("ValueError", "eps must be at least 0, got ", eps);
  return eps;
}

/// The slots of tokens in the cache of `x`, of its dtype, as FP8 would need a scale. A token with a negative slot is
/// not stored.
Rows slots_of(const Rows& x, const char* name, const TensorView& cache, const TensorView& slots) {
  return indexed(heads(name, cache).typed_as(x), "slots", slots, true);
}

// The operands of each prologue have names; what a segment does not use is not passed.
template <bool kRounds>
RowProgram<prologues::NormedHeads<false, kRounds>, 3> qwen3_program{"prologues.h"};

void qwen3(
    TensorView q, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView cos_sin,
    TensorView positions, TensorView k_cache, TensorView v_cache, TensorView slots, float eps, bool round_first) {
  using F = prologues::NormedHeads<false, false>;  // whose operands are those of both
  const auto turn = angles(cos_sin, positions);
  const auto keys = heads("k", k).floats(), values = heads("v", v).floats();
  const auto run = [&](auto& program) {
    program(
        {checked(eps)},
        {program.rows(F::x = heads("q", q).floats(), F::weight = weight_of("q_weight", q_weight), F::cos_sin = turn),
         program.rows(
             F::x = keys, F::weight = weight_of("k_weight", k_weight), F::cos_sin = turn,
             F::cache = slots_of(keys, "k_cache", k_cache, slots)),
         program.rows(F::x = values, F::cache = slots_of(values, "v_cache", v_cache, slots))});
  };
  round_first ? run(qwen3_program<true>) : run(qwen3_program<false>);
}

template <bool kRounds>
RowProgram<prologues::NormedHeads<true, kRounds>, 4> qwen3_next_program{"prologues.h"};

void qwen3_next(
    TensorView q_and_gate, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView cos_sin,
    TensorView positions, TensorView k_cache, TensorView v_cache, TensorView slots, float eps, bool round_first) {
  using F = prologues::NormedHeads<true, false>;
  const auto turn = angles(cos_sin, positions);
  const auto both = heads("q_and_gate", q_and_gate).floats(), keys = heads("k", k).floats(),
             values = heads("v", v).floats();
  const auto run = [&](auto& program) {
    program(
        {checked(eps)},
        {program.rows(F::x = both.part(0, 2), F::weight = weight_of("q_weight", q_weight), F::cos_sin = turn),
         program.rows(
             F::x = keys, F::weight = weight_of("k_weight", k_weight), F::cos_sin = turn,
             F::cache = slots_of(keys, "k_cache", k_cache, slots)),
         program.rows(F::x = values, F::cache = slots_of(values, "v_cache", v_cache, slots)),
         program.rows(F::x = both.part(1, 2))});
  };
  round_first ? run(qwen3_next_program<true>) : run(qwen3_next_program<false>);
}

RowProgram<prologues::RotatedHeads, 3> gpt_oss_program{"prologues.h"};

/// q, k and v for `gpt_oss_program`, rotated and stored.
struct Stored {
  using F = prologues::RotatedHeads;
  ProgramRows<F::kOperands> segments[3];

  Stored(
      const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& cos_sin,
      const TensorView& positions, const TensorView& k_cache, const TensorView& v_cache, const TensorView& slots)
      : Stored(
            heads("q", q).floats(), heads("k", k).floats(), heads("v", v).floats(), angles(cos_sin, positions), k_cache,
            v_cache, slots) {}

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

RowProgram<prologues::Latents, 3> deepseek_v3_program{"prologues.h"};

void deepseek_v3(
    TensorView q_latent, TensorView kv_latent, TensorView q_weight, TensorView kv_weight, TensorView cos_sin,
    TensorView positions, TensorView kv_cache, TensorView slots, float eps) {
  using F = prologues::Latents;
  const auto& program = deepseek_v3_program;
  const auto weights = weight_of("kv_weight", kv_weight);
  const auto turn = indexed(rows("cos_sin", cos_sin).floats(), "positions", positions);
  const auto kv = rows("kv_latent", kv_latent).floats();
  const auto cache = indexed(rows("kv_cache", kv_cache).typed_as(kv), "slots", slots, true);
  const auto rank = weights.columns;
  for (const auto& one : {kv, cache}) {  // slices would take a longer row
    if (one.columns != rank + turn.columns) [[unlikely]]
      one.raise(
          {}, {"Size mismatch for a row: expected ", rank + turn.columns, ", those of kv_weight and cos_sin, but got ",
               one.columns});
  }
  deepseek_v3_program(
      {checked(eps)},
      {program.rows(F::x = rows("q_latent", q_latent).floats(), F::weight = weight_of("q_weight", q_weight)),
       program.rows(F::x = kv.slice(0, rank), F::weight = weights, F::cache = cache.slice(0, rank)),
       program.rows(
           F::x = kv.slice(rank, turn.columns), F::cos_sin = turn, F::cache = cache.slice(rank, turn.columns))});
}

RowProgram<prologues::BothSides> gemma3_program{"prologues.h"};

void gemma3(TensorView x, TensorView residual, TensorView after, TensorView before, float eps) {
  using F = prologues::BothSides;
  gemma3_program(
      {checked(eps)}, F::x = rows("x", x).floats(), F::residual = rows("residual", residual).floats(),
      F::after = weight_of("after", after), F::before = weight_of("before", before));
}

RowProgram<prologues::AcrossHeads, 2> minimax_m2_program{"prologues.h"};

/// A row of the norm is no row of the rotation, so this prologue takes two launches; the first writes nothing that the
/// second would refuse.
void minimax_m2(
    TensorView q, TensorView k, TensorView v, TensorView q_weight, TensorView k_weight, TensorView cos_sin,
    TensorView positions, TensorView k_cache, TensorView v_cache, TensorView slots, float eps) {
  using F = prologues::AcrossHeads;
  const auto& program = minimax_m2_program;
  const Stored stored(q, k, v, cos_sin, positions, k_cache, v_cache, slots);
  gpt_oss_program.check({}, stored.segments);
  const auto refuse = [](std::initializer_list<Rows> written, std::initializer_list<Rows> read) {
    for (const auto& one : written) {
      for (const auto& other : read) {
        if (rows_meet(one.memory(), other.memory())) [[unlikely]]
          throw Error("ValueError", one.name, " must not share memory with ", other.name);
      }
    }
  };
  // Written by the first launch, and read by the second.
  refuse(
      {heads("q", q), heads("k", k)},
      {heads("v", v), rows("cos_sin", cos_sin), rows("positions", positions), rows("slots", slots)});
  // Read by the first launch, and written by the second.
  refuse(
      {heads("k_cache", k_cache), heads("v_cache", v_cache)}, {rows("q_weight", q_weight), rows("k_weight", k_weight)});
  minimax_m2_program(
      {checked(eps)}, {program.rows(F::x = rows("q", q, 2), F::weight = weight_of("q_weight", q_weight)),
                       program.rows(F::x = rows("k", k, 2), F::weight = weight_of("k_weight", k_weight))});
  gpt_oss_program({}, stored.segments);
}

}  // namespace

SGL_EXPORT(qwen3, (qwen3))
SGL_EXPORT(qwen3_next, (qwen3_next))
SGL_EXPORT(gpt_oss, (gpt_oss))
SGL_EXPORT(deepseek_v3, (deepseek_v3))
SGL_EXPORT(gemma3, (gemma3))
SGL_EXPORT(minimax_m2, (minimax_m2))
