#pragma once

#include <sgl_kernel/atomic.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/fp8.cuh>
#include <sgl_kernel/math.cuh>

#include "quant.h"

/// \file quant.cuh
/// \brief The kernels that compute one scale for all rows. Compiles under NVRTC.
///
/// A computed scale takes one launch if everything fits into the registers of a block or a cluster (`quantize_small`),
/// else three: two that compute it, and the row program that quantises by it. Each waits for the completion of the
/// kernel before it before it reads anything. Nothing is kept between calls: the blocks combine their results in the
/// scale itself.

namespace quant {

using namespace device;

/// \brief Vectors number first, first + step, ... of one row of `T`, held by a thread.
/// \tparam kTail whether the last vector of a row is a part of one.
template <typename T, uint32_t kElements, bool kTail, uint32_t kUnits>
struct Vectors {
 public:
  SGL_DEVICE Vectors(const Params& params, int64_t row, int64_t first, uint32_t step)
      : m_params(params), m_first(first), m_step(step) {
    const void* begin = pointer::offset(params.input, row * params.stride);
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      m_units[i].fill(T{});
      if (!m_has(i)) continue;
      if (!m_is_tail(i)) {
        m_units[i].load(begin, m_at(i));
        continue;
      }
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        if (j < params.tail) m_units[i][j] = load_as<T>(begin, m_at(i) * kElements + j);
      }
    }
  }

  /// \brief The largest magnitude, ignoring NaN; two at a time if there is an instruction for it.
  SGL_DEVICE float largest() const {
    float result = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      const auto& x = m_units[i];
      if constexpr (sizeof(T) == 2 && kElements > 1) {
        using pair_t = packed_t<T>;
        pair_t pair = math::abs(pair_t{x[0], x[1]});
#pragma unroll
        for (uint32_t j = 2; j < kElements; j += 2) pair = math::max(pair, math::abs(pair_t{x[j], x[j + 1]}));
        const auto [a, b] = cast<fp32x2_t>(pair);
        result = math::max(math::max(result, a), b);  // `result` is a number, even if `a` and `b` are not
      } else {
#pragma unroll
        for (uint32_t j = 0; j < kElements; ++j) result = math::max(result, math::abs(cast<fp32_t>(x[j])));
      }
    }
    return result;
  }

  /// \brief The only row by a scale.
  SGL_DEVICE void store(float inverse) const {
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      if (!m_has(i)) continue;
      AlignedVector<fp8_e4m3_t, kElements> q;
      if constexpr (kElements > 1) {
        AlignedVector<fp8x2_e4m3_t, kElements / 2> pairs;
#pragma unroll
        for (uint32_t j = 0; j < kElements; j += 2)
          pairs[j / 2] = cast<fp8x2_e4m3_t>(
              fp32x2_t{cast<fp32_t>(m_units[i][j]) * inverse, cast<fp32_t>(m_units[i][j + 1]) * inverse});
        memcpy(&q, &pairs, sizeof(q));
      } else {
        q[0] = cast<fp8_e4m3_t>(cast<fp32_t>(m_units[i][0]) * inverse);
      }
      if (!m_is_tail(i)) {
        q.store(m_params.output, m_at(i));
        continue;
      }
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        if (j < m_params.tail) store_as(m_params.output, q[j], m_at(i) * kElements + j);
      }
    }
  }

 private:
  SGL_DEVICE int64_t m_at(uint32_t i) const {
    return m_first + static_cast<int64_t>(i) * m_step;
  }
  SGL_DEVICE bool m_has(uint32_t i) const {
    return m_at(i) < m_params.vectors;
  }
  SGL_DEVICE bool m_is_tail(uint32_t i) const {
    return kTail && m_at(i) == m_params.vectors - 1;
  }

  const Params& m_params;
  int64_t m_first;
  uint32_t m_step;
  AlignedVector<T, kElements> m_units[kUnits];
};

/// \brief The largest value of a block of whole warps, for every thread.
SGL_DEVICE float block_max(float value) {
  __shared__ float smem[kWarpThreads];
  float values[] = {value};
  cta::all_reduce(values, smem, 0.0f, [](float a, float b) { return math::max(a, b); });
  return values[0];
}

/// \brief First of three. One thread.
__global__ void set_smallest_scale(const __grid_constant__ Params params) {
  PDLWaitPrimary();
  *params.scale = scale_for_e4m3(0);
}

/// \brief Second of three: raise the scale to that of the whole tensor. The blocks of any grid share the chunks, each
/// of which is kMaxUnits vectors of one row for each thread of a block.
///
/// They go from the end to the beginning: the caches still hold what was written last, and then what the third kernel
/// reads first.
template <uint32_t kElements, bool kTail, typename T>
__global__ __launch_bounds__(kBlockThreads) void raise_scale(const __grid_constant__ Params params) {
  PDLWaitPrimary();
  float largest = 0.0f;
  for (int64_t chunk = params.num_rows * params.chunks - 1 - blockIdx.x; chunk >= 0; chunk -= gridDim.x) {
    // One row is the usual case, and a division takes long.
    const int64_t row = params.num_rows == 1 ? 0 : chunk / params.chunks;
    const int64_t first = (chunk - row * params.chunks) * (blockDim.x * kMaxUnits) + threadIdx.x;
    largest = math::max(largest, Vectors<T, kElements, kTail, kMaxUnits>(params, row, first, blockDim.x).largest());
  }
  largest = block_max(largest);
  PDLTriggerSecondary();
  if (threadIdx.x == 0) {
    const float scale = scale_for_e4m3(largest);
    // Most blocks no longer change the scale: a read is cheaper than a turn at the atomic.
    if (scale > *static_cast<volatile float*>(params.scale)) atomic::max(params.scale, scale);
  }
}

/// \brief All three in one, for one row. The grid is one block or, with `kInCluster`, one cluster of up to 8; each
/// thread holds up to kMaxUnits vectors.
template <uint32_t kElements, bool kTail, bool kInCluster, typename T>
__global__ __launch_bounds__(kMaxThreads) void quantize_small(const __grid_constant__ Params params) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  PDLWaitPrimary();
  const Vectors<T, kElements, kTail, kMaxUnits> x(params, 0, thread, gridDim.x * blockDim.x);
  PDLTriggerSecondary();
  float largest = block_max(x.largest());
  if constexpr (kInCluster) {
#if SGL_ARCH_HOPPER_OR_GREATER
    __shared__ float of_block;
    if (threadIdx.x == 0) of_block = largest;
    ptx::cluster_sync();
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const uint32_t rank = lane < gridDim.x ? lane : 0;
    largest = warp::reduce_max(__uint_as_float(ptx::load_cluster(ptx::cluster_map(&of_block, rank))));
#else
    static_assert(!kInCluster, "quantize_small: clusters of blocks need sm_90");
#endif
  }
  const float scale = scale_for_e4m3(largest);
  if (thread == 0) *params.scale = scale;
  x.store(1.0f / scale);
#if SGL_ARCH_HOPPER_OR_GREATER
  if constexpr (kInCluster) ptx::cluster_sync();  // no block ends while others may read its shared memory
#endif
}

}  // namespace quant
