#pragma once

#include <sgl_kernel/device.cuh>
#include <sgl_kernel/vec.cuh>

#include "align.h"

/// \file align.cuh
/// \brief The kernels of `moe_align_block_size` and `sort_by_expert`. Compiles under NVRTC.
///
/// A stable counting sort. Each warp has a chunk of neighbouring pairs: it counts them by expert, and later takes them
/// in their order to the places that follow those of the warps before it. No place depends on which warp is first.

namespace moe {

using namespace device;

inline constexpr uint32_t kAlignThreads = 1024;
inline constexpr uint32_t kAtOnce = 4;  // loads that a warp waits for together

/// \brief The experts of 32 pairs after another, from `first` up to `end`; -1 for none.
template <typename Id>
struct Experts {
  int of[kAtOnce];

  SGL_DEVICE void load(const Align& params, uint32_t first, uint32_t end) {
    Id ids[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t pair = first + i * kWarpThreads + threadIdx.x % kWarpThreads;
      ids[i] = pair < end ? static_cast<const Id*>(params.ids)[pair] : -1;
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i)
      of[i] = ids[i] >= 0 && ids[i] < params.num_experts ? static_cast<int>(ids[i]) : -1;
  }
};

/// \brief Calls `body(pair, expert)` for the pairs of a chunk, 32 at a time, with an expert of -1 for none. `experts`
/// are those of its first pairs: what a warp has loaded it need not load again.
template <typename Id, typename Body>
SGL_DEVICE void for_each_pair(
    const Align& params, uint32_t begin, uint32_t end, Experts<Id> experts, const Body& body) {
  for (uint32_t first = begin; first < end; first += kAtOnce * kWarpThreads) {
    if (first != begin) experts.load(params, first, end);
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i)
      if (first + i * kWarpThreads < end) body(first + i * kWarpThreads + threadIdx.x % kWarpThreads, experts.of[i]);
  }
}

/// \brief The sum of `value` over the lanes up to this one.
SGL_DEVICE uint32_t sum_up_to_lane(uint32_t value) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
#pragma unroll
  for (uint32_t distance = 1; distance < kWarpThreads; distance *= 2) {
    const uint32_t before = __shfl_up_sync(kFullMask, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

/// \brief The pairs in the order of their experts. With `kInCluster` the grid is one cluster of `kAlignBlocks`. Else it
/// is one block, or one and others that only pad: these count for themselves, so that no block waits for another. A
/// block has whole warps, and in shared memory a word for each expert and each of them, and three more.
template <bool kInCluster, typename Id>
__global__ __launch_bounds__(kAlignThreads) void align(const __grid_constant__ Align params) {
#if !SGL_ARCH_HOPPER_OR_GREATER
  static_assert(!kInCluster, "align: clusters of blocks need sm_90");
#endif
  extern __shared__ uint32_t smem[];
  __shared__ uint32_t of_warps[kWarpThreads];
  const uint32_t num_experts = static_cast<uint32_t>(params.num_experts);
  const uint32_t warps = blockDim.x / kWarpThreads, warp = threadIdx.x / kWarpThreads;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t thread = (kInCluster ? blockIdx.x * blockDim.x : 0) + threadIdx.x;
  const uint32_t threads = (kInCluster ? gridDim.x : 1) * blockDim.x;
  uint32_t* counts = smem + warp * num_experts;   // of the warp's pairs, by expert
  uint32_t* totals = smem + warps * num_experts;  // of the block's pairs
  uint32_t* places = totals + num_experts;        // of the block's first pair of each expert
  uint32_t* first_blocks = places + num_experts;  // of each expert

  for (uint32_t expert = lane; expert < num_experts; expert += kWarpThreads) counts[expert] = 0;
  __syncwarp();
  PDLWaitPrimary();
  const uint32_t begin = thread / kWarpThreads * params.chunk;
  const uint32_t end = begin < params.num_pairs ? min(params.num_pairs, begin + params.chunk) : begin;
  Experts<Id> experts;
  experts.load(params, begin, end);
  for_each_pair(params, begin, end, experts, [&](uint32_t, int expert) {
    if (expert >= 0) atomicAdd(counts + expert, 1u);
  });

  const bool others_pad = !kInCluster && gridDim.x > 1;
  if (!others_pad) {  // all is padding at first
    using Vector = AlignedVector<int32_t, 4>;
    Vector padding;
    padding.fill(static_cast<int32_t>(params.num_pairs));
    const bool is_aligned = reinterpret_cast<uintptr_t>(params.sorted) % sizeof(Vector) == 0;
    const int64_t vectors = is_aligned ? params.sorted_size / 4 : 0;
    for (int64_t i = thread; i < vectors; i += threads) padding.store(params.sorted, i);
    for (int64_t i = 4 * vectors + thread; i < params.sorted_size; i += threads)
      params.sorted[i] = static_cast<int>(params.num_pairs);
  }
  __syncthreads();

  for (uint32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x) {
    uint32_t sum = 0;
#pragma unroll 8
    for (uint32_t i = expert; i < warps * num_experts; i += num_experts) {
      const uint32_t count = smem[i];
      smem[i] = sum;
      sum += count;
    }
    totals[expert] = sum;
  }
#if SGL_ARCH_HOPPER_OR_GREATER
  if constexpr (kInCluster) ptx::cluster_sync();
#endif
  __syncthreads();

  uint32_t num_blocks = 0;  // of the experts so far
  for (uint32_t first = 0; first < num_experts; first += blockDim.x) {
    const uint32_t expert = first + threadIdx.x;
    uint32_t before = 0, total = 0;  // the expert's pairs in the thread blocks before this one, and in all
    if (expert < num_experts) {
      total = totals[expert];
#if SGL_ARCH_HOPPER_OR_GREATER
      if constexpr (kInCluster) {
        total = 0;
#pragma unroll
        for (uint32_t rank = 0; rank < kAlignBlocks; ++rank) {
          const uint32_t count = ptx::load_cluster(ptx::cluster_map(totals + expert, rank));
          before += rank < blockIdx.x ? count : 0;
          total += count;
        }
      }
#endif
    }
    const uint32_t blocks = div_ceil(total, params.block_size), up_to_here = sum_up_to_lane(blocks);
    if (lane == kWarpThreads - 1) of_warps[warp] = up_to_here;
    __syncthreads();
    uint32_t first_block = num_blocks + up_to_here - blocks;
    const uint32_t with_experts = min(warps, div_ceil(num_experts - first, kWarpThreads));
    for (uint32_t i = 0; i < with_experts; ++i) {
      first_block += i < warp ? of_warps[i] : 0;
      num_blocks += of_warps[i];
    }
    if (expert < num_experts) {
      first_blocks[expert] = first_block;
      if (blockIdx.x == 0 && params.ends != nullptr)
        params.ends[expert] = static_cast<int>((first_block + blocks) * params.block_size);
      places[expert] = first_block * params.block_size + before;
    }
    __syncthreads();
  }
  PDLTriggerSecondary();

  if (others_pad && blockIdx.x > 0) {  // behind the pairs of each expert, and behind the last block
    const uint32_t of_padding = (blockIdx.x - 1) * blockDim.x + threadIdx.x, that_pad = (gridDim.x - 1) * blockDim.x;
    const auto pad = [&](int64_t begin, int64_t end, uint32_t first, uint32_t step) {
      for (int64_t i = begin + first; i < end; i += step) params.sorted[i] = static_cast<int>(params.num_pairs);
    };
    for (uint32_t expert = of_padding / kWarpThreads; expert < num_experts; expert += that_pad / kWarpThreads) {
      const uint32_t behind = expert + 1 < num_experts ? first_blocks[expert + 1] : num_blocks;
      const int64_t begin = int64_t{first_blocks[expert]} * params.block_size + totals[expert];
      pad(begin, int64_t{behind} * params.block_size, lane, kWarpThreads);
    }
    pad(int64_t{num_blocks} * params.block_size, params.sorted_size, of_padding, that_pad);
    return;
  }
  if (thread == 0 && params.num_padded != nullptr)
    *params.num_padded = static_cast<int>(num_blocks * params.block_size);
  for (int64_t block = thread; block < params.num_blocks; block += threads) {
    uint32_t expert = 0, behind = num_experts;  // the last expert that begins at the block or before it
    while (behind - expert > 1) {
      const uint32_t middle = (expert + behind) / 2;
      (first_blocks[middle] <= block ? expert : behind) = middle;
    }
    params.block_experts[block] = block < num_blocks ? static_cast<int>(expert) : -1;
  }
  for_each_pair(params, begin, end, experts, [&](uint32_t pair, int expert) {
    const uint32_t same = __match_any_sync(kFullMask, expert);
    const auto before = static_cast<uint32_t>(__popc(same & ((1u << lane) - 1)));
    const auto place = expert >= 0 ? static_cast<int>(places[expert] + counts[expert] + before) : -1;
    if (expert >= 0) params.sorted[place] = static_cast<int>(pair);
    if (params.places != nullptr && pair < params.num_pairs) params.places[pair] = place;
    __syncwarp();
    if (expert >= 0 && before == 0) counts[expert] += static_cast<uint32_t>(__popc(same));
    __syncwarp();
  });
#if SGL_ARCH_HOPPER_OR_GREATER
  if constexpr (kInCluster) ptx::cluster_sync();  // no block ends while others may read its shared memory
#endif
}

/// \brief As `align` with blocks of one pair, for at most `kFewPairs` pairs: each thread counts what comes before its
/// pair, and what belongs to its experts or those before them. The grid is one block, with a thread for each pair.
template <typename Id>
__global__ __launch_bounds__(kAlignThreads) void sort_few(const __grid_constant__ Align params) {
  constexpr int kNone = 0x7fffffff;  // behind all experts
  __shared__ int experts[kFewPairs];
  const uint32_t pair = threadIdx.x, pairs = params.num_pairs;
  PDLWaitPrimary();
  int own = kNone;
  if (pair < pairs) {
    const Id id = static_cast<const Id*>(params.ids)[pair];
    if (id >= 0 && id < params.num_experts) own = static_cast<int>(id);
    experts[pair] = own;
  }
  __syncthreads();
  PDLTriggerSecondary();

  if (pair < pairs) {
    uint32_t place = 0;
    for (uint32_t i = 0; i < pairs; ++i) place += experts[i] < own || (experts[i] == own && i < pair) ? 1 : 0;
    params.sorted[place] = static_cast<int>(own == kNone ? pairs : pair);
    params.block_experts[place] = own == kNone ? -1 : own;
    params.places[pair] = own == kNone ? -1 : static_cast<int>(place);
  }
  for (int expert = static_cast<int>(threadIdx.x); expert < params.num_experts;
       expert += static_cast<int>(blockDim.x)) {
    int end = 0;
    for (uint32_t i = 0; i < pairs; ++i) end += experts[i] <= expert ? 1 : 0;
    params.ends[expert] = end;
  }
}

}  // namespace moe
