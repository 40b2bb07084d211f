#pragma once

#include <sgl_kernel/atomic.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/math.cuh>

#include "quant.h"

/// \file quant.cuh
/// \brief The kernels of quantisation with one scale for all rows. Compiles under NVRTC.
///
/// A computed scale takes one launch if everything fits into the registers of a block or a cluster (`quantize_small`),
/// else three. Each waits for the completion of the kernel before it before it reads anything. Nothing is kept between
/// calls: the blocks combine their results in the scale itself.

namespace quant {

using namespace device;

/// \brief Items number first, first + step, ... of one row of `T`, held by a thread.
template <typename T, uint32_t kElements, bool kTail, uint32_t kUnits>
struct Items {
 public:
  SGL_DEVICE Items(const sgl::RowMapParams<2>& rows, uint32_t row, uint32_t first, uint32_t step)
      : m_rows(rows), m_row(row), m_first(first), m_step(step) {
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      m_units[i].fill(T{});
      if (m_has(i)) m_item(i).load(m_units[i], rows.operands[0]);
    }
  }
  /// \brief Chunk number `index` of all rows: kUnits items of one row for each thread of the block.
  SGL_DEVICE static Items of_chunk(const sgl::RowMapParams<2>& rows, uint32_t index) {
    uint32_t row = 0;
    if (rows.items_per_row < rows.num_items) {  // one row is the usual case, and a division takes long
      row = index / s_chunks_per_row(rows);
      index -= row * s_chunks_per_row(rows);
    }
    return {rows, row, index * (blockDim.x * kUnits) + threadIdx.x, blockDim.x};
  }
  SGL_DEVICE static uint32_t num_chunks(const sgl::RowMapParams<2>& rows) {
    return rows.num_items / rows.items_per_row * s_chunks_per_row(rows);
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

  SGL_DEVICE void store(float inverse) const {
    const PerTensor f = {inverse};
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      if (!m_has(i)) continue;
      const auto place = m_item(i);
      if constexpr (kElements > 1) {
        AlignedVector<fp8x2_e4m3_t, kElements / 2> q;
#pragma unroll
        for (uint32_t j = 0; j < kElements; j += 2)
          q[j / 2] = cast<fp8x2_e4m3_t>(fp32x2_t{f(cast<fp32_t>(m_units[i][j])), f(cast<fp32_t>(m_units[i][j + 1]))});
        AlignedVector<fp8_e4m3_t, kElements> bytes;
        memcpy(&bytes, &q, sizeof(q));
        place.store(bytes, m_rows.operands[1]);
      } else {
        AlignedVector<fp8_e4m3_t, 1> q;
        q[0] = cast<fp8_e4m3_t>(f(cast<fp32_t>(m_units[i][0])));
        place.store(q, m_rows.operands[1]);
      }
    }
  }

 private:
  SGL_DEVICE static uint32_t s_chunks_per_row(const sgl::RowMapParams<2>& rows) {
    return div_ceil(rows.items_per_row, blockDim.x * kUnits);
  }
  SGL_DEVICE uint32_t m_at(uint32_t i) const {
    return m_first + i * m_step;
  }
  SGL_DEVICE bool m_has(uint32_t i) const {
    return m_at(i) < m_rows.items_per_row;
  }
  SGL_DEVICE RowItem m_item(uint32_t i) const {
    return {m_row, m_at(i), kTail && m_at(i) == m_rows.items_per_row - 1 ? m_rows.tail : 0};
  }

  const sgl::RowMapParams<2>& m_rows;
  uint32_t m_row, m_first, m_step;
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
  *params.scale = sgl::fp8_scale(0);
}

/// \brief Second of three: raise the scale to that of the whole tensor. The blocks of any grid share the chunks.
template <uint32_t kElements, bool kTail, typename T>
__global__ __launch_bounds__(kBlockThreads) void raise_scale(const __grid_constant__ Params params) {
  using items_t = Items<T, kElements, kTail, kMaxUnits>;
  PDLWaitPrimary();
  float largest = 0.0f;
  const uint32_t num_chunks = items_t::num_chunks(params.rows);
  for (uint32_t chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x)
    largest = math::max(largest, items_t::of_chunk(params.rows, chunk).largest());
  largest = block_max(largest);
  PDLTriggerSecondary();
  if (threadIdx.x == 0) {
    const float scale = sgl::fp8_scale(largest);
    // Most blocks no longer change the scale: a read is cheaper than a turn at the atomic.
    if (scale > *static_cast<volatile float*>(params.scale)) atomic::max(params.scale, scale);
  }
}

/// \brief Third of three, or the only one: quantise by an existing scale. A block for each chunk.
///
/// It goes from the end to the beginning: the caches still hold the data that was read or written last.
template <uint32_t kElements, bool kTail, uint32_t kUnits, typename T>
__global__ __launch_bounds__(kBlockThreads) void quantize(const __grid_constant__ Params params) {
  PDLWaitPrimary();
  const auto x = Items<T, kElements, kTail, kUnits>::of_chunk(params.rows, gridDim.x - 1 - blockIdx.x);
  const float scale = *static_cast<volatile float*>(params.scale);
  PDLTriggerSecondary();
  x.store(1.0f / scale);
}

/// \brief All three in one, for one row. The grid is one block or, with `kInCluster`, one cluster of up to 8; each
/// thread holds up to kMaxUnits items.
template <uint32_t kElements, bool kTail, bool kInCluster, typename T>
__global__ __launch_bounds__(kMaxThreads) void quantize_small(const __grid_constant__ Params params) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  PDLWaitPrimary();
  const Items<T, kElements, kTail, kMaxUnits> x(params.rows, 0, thread, gridDim.x * blockDim.x);
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
  const float scale = sgl::fp8_scale(largest);
  if (thread == 0) *params.scale = scale;
  x.store(1.0f / scale);
#if SGL_ARCH_HOPPER_OR_GREATER
  if constexpr (kInCluster) ptx::cluster_sync();  // no block ends while others may read its shared memory
#endif
}

}  // namespace quant
