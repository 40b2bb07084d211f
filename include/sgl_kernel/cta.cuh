#pragma once

#include <sgl_kernel/warp.cuh>

/// \file cta.cuh
/// \brief Reductions over all threads of a block.
///
/// Every thread of a one-dimensional block calls, with any block size. `smem` holds one element for each warp, rounded
/// up, and has no other use during the call. The result is returned to the threads of warp 0 and stored in `smem[0]`.
/// The caller synchronises: after the call, before any other thread reads `smem[0]`; and again before `smem` is used
/// for the next reduction.
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

}  // namespace details

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
