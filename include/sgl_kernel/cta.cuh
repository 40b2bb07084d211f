#pragma once

#include <sgl_kernel/warp.cuh>

/// \file cta.cuh
/// \brief Reductions over all threads of a block.
///
/// `all_reduce` gives every thread the results. The others do so: every thread of a one-dimensional block calls, with
/// any block size. `smem` holds one element for each warp, rounded up, and has no other use during the call. The result
/// is returned to the threads of warp 0 and stored in `smem[0]`. The caller synchronises: after the call, before any
/// other thread reads `smem[0]`; and again before `smem` is used for the next reduction.
/// \code
///   __shared__ float smem[32];
///   cta::reduce_sum(x, smem);  // 256 threads with x = 1: 256
///   __syncthreads();
///   const float total = smem[0];
/// \endcode
/// Cost: two warp reductions and one barrier. Compiles under NVRTC.

namespace device::cta {

namespace details {

/// `reduce_warp(value, mask)` reduces over lanes. `spare(smem)` is the contribution of a lane without a warp: a value
/// that changes nothing. (For a maximum it is any warp's own result, so no smallest number is needed.)
template <typename T, typename ReduceWarp, typename Spare>
SGL_DEVICE T reduce(T value, T* smem, ReduceWarp reduce_warp, Spare spare) {
  const uint32_t warp_id = threadIdx.x / kWarpThreads;
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t num_warps = div_ceil(blockDim.x, kWarpThreads);
  const uint32_t threads_left = blockDim.x - warp_id * kWarpThreads;

  // The last warp may have fewer lanes. The full mask stays a constant, which makes the common case fast.
  if (threads_left >= kWarpThreads) {
    value = reduce_warp(value, kFullMask);
  } else {
    value = reduce_warp(value, (1u << threads_left) - 1u);
  }
  if (lane == 0) smem[warp_id] = value;
  __syncthreads();
  if (warp_id == 0) {
    if (num_warps > 1) value = reduce_warp(lane < num_warps ? smem[lane] : spare(smem), kFullMask);
    if (lane == 0) smem[0] = value;
  }
  return value;
}

/// What the results of all warps make. Every thread or warp computes it by itself, which saves the second barrier of a
/// broadcast.
template <uint32_t kThreads, typename T, typename Op>
SGL_DEVICE T merge_warps(const T* of_warps, T identity, Op op) {
  constexpr uint32_t kWarps = kThreads == 0 ? kWarpThreads : kThreads / kWarpThreads;
  if constexpr (kWarps <= 8 || (kThreads > 0 && sizeof(T) > sizeof(uint32_t))) {  // fewer cycles than shuffles
    T value = of_warps[0];
#pragma unroll
    for (uint32_t warp = 1; warp < kWarps; ++warp) value = op(value, of_warps[warp]);
    return value;
  } else {
    constexpr uint32_t kLanes = kWarps <= 16 ? 16 : kWarpThreads;
    const uint32_t num_warps = kThreads == 0 ? blockDim.x / kWarpThreads : kWarps;
    const uint32_t warp = threadIdx.x % kLanes;
    return device::warp::all_reduce<kLanes>(warp < num_warps ? of_warps[warp] : identity, op);
  }
}

}  // namespace details

/// \brief Reduces each of `N` values over the block: every thread gets the results, the same bits.
///
/// Every thread of a one-dimensional block of whole warps calls. `smem` holds N * kWarpThreads elements. It
/// synchronises once, inside; the caller synchronises before it uses `smem` again.
/// \tparam kThreads of the block; 0: known at run time alone. \tparam T what `warp::exchange` takes.
/// \param op associative and commutative; \param identity changes nothing.
template <uint32_t kThreads = 0, typename T, int N, typename Op>
SGL_DEVICE void all_reduce(T (&values)[N], T* smem, T identity, Op op) {
  static_assert(kThreads % kWarpThreads == 0, "cta::all_reduce: a block must have whole warps");
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = warp::all_reduce(values[i], op);
    if (threadIdx.x % kWarpThreads == 0) smem[i * kWarpThreads + threadIdx.x / kWarpThreads] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = details::merge_warps<kThreads>(smem + i * kWarpThreads, identity, op);
}

/// \brief The same of one value, which the lanes of each warp agree on already, as after `warp::all_reduce`.
template <uint32_t kThreads = 0, typename T, typename Op>
[[nodiscard]] SGL_DEVICE T all_reduce_warps(T value, T* smem, T identity, Op op) {
  static_assert(kThreads % kWarpThreads == 0, "cta::all_reduce: a block must have whole warps");
  if (threadIdx.x % kWarpThreads == 0) smem[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  return details::merge_warps<kThreads>(smem, identity, op);
}

/// \brief The same of one value.
template <uint32_t kThreads = 0, typename T, typename Op>
[[nodiscard]] SGL_DEVICE T all_reduce(T value, T* smem, T identity, Op op) {
  return all_reduce_warps<kThreads>(warp::all_reduce(value, op), smem, identity, op);
}

/// \brief The sum over the block: returned to warp 0, and in `smem[0]` after the caller's `__syncthreads()`.
template <typename T>
SGL_DEVICE T reduce_sum(T value, T* smem) {
  return details::reduce(
      value, smem, [](T x, uint32_t mask) { return warp::reduce_sum(x, mask); }, [](const T*) { return T{}; });
}

/// \brief The largest value of the block: returned to warp 0, and in `smem[0]` after the caller's `__syncthreads()`.
template <typename T>
SGL_DEVICE T reduce_max(T value, T* smem) {
  return details::reduce(
      value, smem, [](T x, uint32_t mask) { return warp::reduce_max(x, mask); }, [](const T* s) { return s[1]; });
}

/// \brief As above, but never below `min_value`.
template <typename T>
SGL_DEVICE T reduce_max(T value, T* smem, T min_value) {
  return reduce_max(math::max(value, min_value), smem);
}

/// \brief The smallest value of the block: returned to warp 0, and in `smem[0]` after the caller's `__syncthreads()`.
template <typename T>
SGL_DEVICE T reduce_min(T value, T* smem) {
  return details::reduce(
      value, smem, [](T x, uint32_t mask) { return warp::reduce_min(x, mask); }, [](const T* s) { return s[1]; });
}

/// \brief As above, but never above `max_value`.
template <typename T>
SGL_DEVICE T reduce_min(T value, T* smem, T max_value) {
  return reduce_min(math::min(value, max_value), smem);
}

}  // namespace device::cta
