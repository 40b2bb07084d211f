/// \file topk.cpp
/// \brief The host part of the choice of experts.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "topk.h"

namespace {

using namespace host;

template <typename Score, bool kBiased, bool kGrouped>
RowProgram<moe::TopK<Score, kBiased, kGrouped>> program{"topk.h"};

template <typename Score>
void topk(
    TensorView topk_weights, TensorView topk_ids, TensorView gating_output, bool renormalize,
    Optional<TensorView> correction_bias, int num_expert_group, int topk_group, double routed_scaling_factor) {
  const auto gates = rows("gating_output", gating_output).floats();
  const auto weights = values("topk_weights", topk_weights).floats();
  const auto ids = values("topk_ids", topk_ids).typed<std::int32_t, std::int64_t>();
  constexpr int kMostGroups = 32;
  if (num_expert_group < 1 || num_expert_group > kMostGroups) [[unlikely]]
    throw Error("ValueError", "num_expert_group must be from 1 to ", kMostGroups, ", got ", num_expert_group);
  if (topk_group < 1 || topk_group > num_expert_group) [[unlikely]]
    throw Error(
        "ValueError", "topk_group must be from 1 to num_expert_group, ", num_expert_group, ", got ", topk_group);
  if (gating_output.ndim() != 2) [[unlikely]]
    gates.raise({}, {"Dimension mismatch: expected 2 but got ", gating_output.ndim()});
  if (gates.columns % num_expert_group != 0) [[unlikely]]
    gates.raise(
        {}, {"Size mismatch for dimension 1: expected a multiple of num_expert_group, ", num_expert_group, ", but got ",
             gates.columns});
  constexpr int kMostInGroups = 1 << 16;  // up to 92681 the product with `inverse` names the group of each expert
  if (topk_group < num_expert_group && gates.columns > kMostInGroups) [[unlikely]]
    gates.raise(
        {}, {"Size mismatch for dimension 1: expected at most ", kMostInGroups, " experts in groups, but got ",
             gates.columns});
  const auto group_size = gates.columns / num_expert_group, experts = group_size * topk_group;
  const auto most = experts < sgl::kMostListed ? experts : sgl::kMostListed;
  if (weights.columns > most) [[unlikely]]
    weights.raise(
        {}, {"Size mismatch for dimension 1: expected at most ", most, ", of ", experts,
             " experts to choose from, but got ", weights.columns});
  const auto run = [&]<bool kBiased, bool kGrouped>() {
    using F = moe::TopK<Score, kBiased, kGrouped>;
    const auto bias = kBiased ? shared_row("correction_bias", *correction_bias).floats() : gates;
    program<Score, kBiased, kGrouped>(
        {static_cast<int>(weights.columns), num_expert_group, topk_group, renormalize,
         static_cast<float>(routed_scaling_factor),
         (sgl::RankKey{1} << 32) / static_cast<sgl::RankKey>(group_size > 0 ? group_size : 1) + 1},
        F::gates = gates, F::bias = bias, F::weights = weights, F::ids = ids);
  };
  const bool is_grouped = topk_group < num_expert_group;
  if (correction_bias)
    return is_grouped ? run.template operator()<true, true>() : run.template operator()<true, false>();
  return is_grouped ? run.template operator()<false, true>() : run.template operator()<false, false>();
}

}  // namespace

SGL_EXPORT(topk_softmax, (topk<moe::Softmax>))
SGL_EXPORT(topk_sigmoid, (topk<moe::OfOneGate<sgl::Sigmoid>>))
SGL_EXPORT(topk_sqrtsoftplus, (topk<moe::OfOneGate<moe::SqrtSoftplus>>))
