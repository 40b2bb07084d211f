/// \file tune.cpp
/// \brief The normalisations with a given layout in place of the rule's, for `python -m sgljit_norm.bench.tune`.

#include <sgl_kernel/export.h>

#include "norm.h"
#include "norm_args.h"

namespace {

using host::TensorView;

/// The layout of the calls of one thread.
struct GivenLayout {
  static inline thread_local sgl::RowLayout layout = {};

  sgl::RowLayout operator()(unsigned, sgl::RowWork, long long, const host::runtime::Chip&) const {
    return layout;
  }
};

host::RowProgram<norms::RMSNorm<false>, 1, GivenLayout> rmsnorm_of_rows{"norm.h"};
host::RowProgram<norms::FusedAddRMSNorm<false>, 1, GivenLayout> fused_add_of_rows{"norm.h"};
host::RowProgram<norms::BiasedLayerNorm, 1, GivenLayout> layernorm_of_rows{"norm.h"};

void set_layout(unsigned threads_per_row, unsigned block_threads, bool triggers_first) {
  GivenLayout::layout = {threads_per_row, block_threads, triggers_first};
}

host::runtime::Chip chip_of(unsigned num_sms, unsigned threads_per_sm, unsigned cc_major, unsigned cc_minor) {
  const auto narrow = [](unsigned number) { return static_cast<std::uint16_t>(number); };
  return {narrow(num_sms), narrow(threads_per_sm), narrow(cc_major), narrow(cc_minor)};
}

/// The layout on a chip, as triggers_first * 2^32 + threads_per_row * 2^16 + block_threads.
std::int64_t chosen_layout(
    unsigned vectors, sgl::RowWork work, std::int64_t num_rows, unsigned num_sms, unsigned threads_per_sm,
    unsigned cc_major, unsigned cc_minor) {
  const auto chip = chip_of(num_sms, threads_per_sm, cc_major, cc_minor);
  const auto layout = sgl::ChooseRowLayout{}(vectors, work, num_rows, chip);
  return std::int64_t{layout.triggers_first} << 32 | std::int64_t{layout.threads_per_row} << 16 | layout.block_threads;
}

void rmsnorm(TensorView x, TensorView weight, TensorView out) {
  using F = norms::RMSNorm<false>;
  const auto rows = tokens("x", x);
  rmsnorm_of_rows({1e-6f}, F::x = rows, F::weight = weight_of(rows, "weight", weight), F::out = tokens("out", out));
}

void fused_add_rmsnorm(TensorView x, TensorView residual, TensorView weight) {
  using F = norms::FusedAddRMSNorm<false>;
  const auto rows = tokens("x", x);
  fused_add_of_rows(
      {1e-6f}, F::x = rows, F::residual = tokens("residual", residual), F::weight = weight_of(rows, "weight", weight));
}

void layernorm(TensorView x, TensorView weight, TensorView bias, TensorView out) {
  using F = norms::BiasedLayerNorm;
  const auto rows = tokens("x", x);
  layernorm_of_rows(
      {1e-5f}, F::x = rows, F::weight = weight_of(rows, "weight", weight), F::bias = weight_of(rows, "bias", bias),
      F::out = tokens("out", out));
}

}  // namespace

SGL_EXPORT(set_layout, (set_layout))
SGL_EXPORT(chosen_layout, (chosen_layout))
SGL_EXPORT(rmsnorm, (rmsnorm))
SGL_EXPORT(fused_add_rmsnorm, (fused_add_rmsnorm))
SGL_EXPORT(layernorm, (layernorm))
