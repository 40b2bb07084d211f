/// \file align_cpu.cpp
/// \brief `moe_align_block_size` and `sort_by_expert` on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>

#include <algorithm>
#include <vector>

#include "align.h"

namespace moe {

namespace {

template <typename Id>
void align(const Align& params) {
  const auto for_each_pair = [&](const auto& body) {
    for (unsigned pair = 0; pair < params.num_pairs; ++pair) {
      const auto expert = static_cast<const Id*>(params.ids)[pair];
      if (expert >= 0 && expert < params.num_experts) body(static_cast<int>(pair), static_cast<std::size_t>(expert));
    }
  };
  std::vector<unsigned> counts(static_cast<std::size_t>(params.num_experts));
  for_each_pair([&](int, std::size_t expert) { ++counts[expert]; });
  unsigned num_blocks = 0;
  for (int expert = 0; expert < params.num_experts; ++expert) {
    auto& count = counts[static_cast<std::size_t>(expert)];
    const auto blocks = count / params.block_size + (count % params.block_size != 0);
    count = num_blocks * params.block_size;  // from here on the place of the next pair
    std::fill_n(params.block_experts + num_blocks, blocks, expert);
    num_blocks += blocks;
    if (params.ends != nullptr) params.ends[expert] = static_cast<int>(num_blocks * params.block_size);
  }
  std::fill(params.block_experts + num_blocks, params.block_experts + params.num_blocks, -1);
  std::fill_n(params.sorted, params.sorted_size, static_cast<int>(params.num_pairs));
  if (params.places != nullptr) std::fill_n(params.places, params.num_pairs, -1);
  for_each_pair([&](int pair, std::size_t expert) {
    const auto place = counts[expert]++;
    params.sorted[place] = pair;
    if (params.places != nullptr) params.places[pair] = static_cast<int>(place);
  });
  if (params.num_padded != nullptr) *params.num_padded = static_cast<int>(num_blocks * params.block_size);
}

}  // namespace

void align_on_cpu(const Align& params, DLDataType type) {
  if (host::is_type<std::int32_t>(type)) align<std::int32_t>(params);
  else align<std::int64_t>(params);
}

}  // namespace moe
