#pragma once

#include <sgl_kernel/warp.cuh>

/// \file cluster.cuh
/// \brief A reduction over the blocks of a cluster, for Hopper and later. Compiles under NVRTC.

namespace device::cluster {

/// \brief `op` over the `kBlocks` blocks of a cluster, 2, 4 or 8: every thread gets the result.
///
/// All threads of all blocks call, in whole warps, and all of a block have the same `value`, as after
/// `cta::all_reduce`. `smem` has room for a `T`, which may be a struct of whole words of 32 bits, at the same place in
/// each block. It synchronises the cluster once, inside. Before a block uses `smem` again, and before it ends, the
/// caller calls `ptx::cluster_sync()`, as other blocks read it.
/// \param op associative and commutative; for the same bits in every thread, as in `warp::all_reduce`.
template <uint32_t kBlocks, typename T, typename Op>
SGL_DEVICE void all_reduce(T& value, void* smem, Op op) {
#if SGL_ARCH_HOPPER_OR_GREATER
  static_assert(sizeof(T) % sizeof(uint32_t) == 0, "cluster::all_reduce takes values of whole words of 32 bits");
  if (threadIdx.x == 0) memcpy(smem, &value, sizeof(value));
  ptx::cluster_sync();
  const uint32_t address = ptx::cluster_map(smem, threadIdx.x % kBlocks);
  uint32_t words[sizeof(T) / sizeof(uint32_t)];
#pragma unroll
  for (uint32_t i = 0; i < sizeof(T) / sizeof(uint32_t); ++i)
    words[i] = ptx::load_cluster(address + i * sizeof(uint32_t));
  memcpy(&value, words, sizeof(value));
  value = warp::all_reduce<kBlocks>(value, op);
#else
  static_assert(kBlocks == 0, "cluster::all_reduce: clusters of blocks need sm_90");
#endif
}

}  // namespace device::cluster
