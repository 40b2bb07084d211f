#pragma once

#include <sgl_kernel/atomic.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

#include "quant_params.h"

/// \file quant.cuh
/// \brief The device code of quantisation to e4m3: q = x * (1 / scale), where scale = max(|x|) / 448 or is given.
///
/// All arithmetic is in float; the conversion rounds to nearest even, saturates at 448 and keeps NaN. A maximum ignores
/// NaN. `kElements` make up a unit, which is a 16-byte load or one element. Base addresses and strides of input and
/// output must be multiples of a unit. Rows may have any length. Compiles under NVRTC.

namespace quant {

using namespace device;

/// \brief The bounds of a computed scale: its inverse is finite and not zero.
inline constexpr float kSmallestScale = 0x1p-126f;
inline constexpr float kLargestScale = 0x1.fffffep127f;

/// \brief The scale for a largest magnitude.
SGL_DEVICE float scale_of(float largest) {
  return math::min(math::max(largest / math::FP8_E4M3_MAX, kSmallestScale), kLargestScale);
}

/// \brief A thread's part of a stretch of `columns` elements that several threads share: up to kUnits whole units,
/// `num_threads` apart, and up to one element of the incomplete unit at the end. The end then costs one scalar load
/// instead of a second version of every load.
template <typename T, size_t kElements, int kUnits>
struct Held {
  using unit_t = AlignedVector<T, kElements>;

  SGL_DEVICE Held(const void* stretch, uint32_t columns, uint32_t thread, uint32_t num_threads)
      : m_num_units(columns / kElements), m_thread(thread), m_num_threads(num_threads) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (m_has(i)) {
        m_units[i].load(stretch, m_at(i));
      } else {
        m_units[i].fill(T{});
      }
    }
    if constexpr (kElements > 1) {
      m_has_end = m_end() < columns;
      m_end_element = m_has_end ? load_as<T>(stretch, m_end()) : T{};
    }
  }

  /// \brief The largest magnitude, ignoring NaN; two at a time if there is an instruction for it.
  SGL_DEVICE float largest() const {
    float result = 0.0f;
    if constexpr (kElements > 1) result = math::max(result, math::abs(cast<fp32_t>(m_end_element)));
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const unit_t& x = m_units[i];
      if constexpr (sizeof(T) == 2 && kElements > 1) {
        using pair_t = packed_t<T>;
        pair_t pair = math::abs(pair_t{x[0], x[1]});
#pragma unroll
        for (int j = 2; j < int{kElements}; j += 2) pair = math::max(pair, math::abs(pair_t{x[j], x[j + 1]}));
        const auto [a, b] = cast<fp32x2_t>(pair);
        result = math::max(math::max(result, a), b);  // `result` is a number, even if `a` and `b` are not
      } else {
#pragma unroll
        for (int j = 0; j < int{kElements}; ++j) result = math::max(result, math::abs(cast<fp32_t>(x[j])));
      }
    }
    return result;
  }

  /// \brief Quantise, and store to the same positions of another stretch.
  SGL_DEVICE void store(void* stretch, float inverse) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!m_has(i)) continue;
      const auto scaled = [&](int j) { return cast<fp32_t>(m_units[i][j]) * inverse; };
      if constexpr (kElements > 1) {
        AlignedVector<fp8x2_e4m3_t, kElements / 2> q;
#pragma unroll
        for (int j = 0; j < int{kElements / 2}; ++j)
          q[j] = cast<fp8x2_e4m3_t>(fp32x2_t{scaled(2 * j), scaled(2 * j + 1)});
        q.store(stretch, m_at(i));
      } else {
        store_as(stretch, cast<fp8_e4m3_t>(scaled(0)), m_at(i));
      }
    }
    if constexpr (kElements > 1) {
      if (m_has_end) store_as(stretch, cast<fp8_e4m3_t>(cast<fp32_t>(m_end_element) * inverse), m_end());
    }
  }

 private:
  SGL_DEVICE uint32_t m_at(int i) const {
    return m_thread + i * m_num_threads;
  }
  SGL_DEVICE bool m_has(int i) const {
    return m_at(i) < m_num_units;
  }
  SGL_DEVICE uint32_t m_end() const {
    return m_num_units * kElements + m_thread;
  }

  uint32_t m_num_units;
  uint32_t m_thread;
  uint32_t m_num_threads;
  bool m_has_end = false;
  T m_end_element = T{};
  unit_t m_units[kUnits];
};

/// \brief A chunk: the stretch of one row that a block holds, with kUnits units per thread.
template <typename T, size_t kElements, int kUnits>
struct Chunk {
  using held_t = Held<T, kElements, kUnits>;

  SGL_DEVICE static uint32_t max_columns() {
    return blockDim.x * uint32_t{kUnits * kElements};
  }
  SGL_DEVICE static int64_t per_row(const Params& params) {
    return div_ceil(int64_t{params.columns}, int64_t{max_columns()});
  }
  /// \brief Chunk number `index` of all rows.
  SGL_DEVICE Chunk(const Params& params, int64_t index) {
    int64_t row = 0;
    if (params.num_rows > 1) {  // one row is the usual case, and a 64-bit division takes as long as a load from L2
      row = index / per_row(params);
      index -= row * per_row(params);
    }
    m_set(
        pointer::offset(params.input, row * params.input_stride),
        pointer::offset(params.output, row * params.output_stride), params.columns, index);
  }
  /// \brief Chunk number `index` of a row.
  SGL_DEVICE Chunk(const void* input, void* output, int64_t columns, int64_t index) {
    m_set(input, output, columns, index);
  }

  [[nodiscard]] SGL_DEVICE held_t load() const {
    return {m_input, m_columns, threadIdx.x, blockDim.x};
  }
  SGL_DEVICE void store(const held_t& x, float inverse) const {
    x.store(m_output, inverse);
  }

 private:
  SGL_DEVICE void m_set(const void* input, void* output, int64_t columns, int64_t index) {
    const int64_t first = index * max_columns();
    m_input = pointer::offset(input, first * sizeof(T));
    m_output = pointer::offset(output, first);
    m_columns = static_cast<uint32_t>(math::min(columns - first, int64_t{max_columns()}));
  }

  const void* m_input;
  void* m_output;
  uint32_t m_columns;
};

/// \brief The largest value of the block, for every thread. `smem` holds a float for each warp and has no other use.
SGL_DEVICE float block_max(float value, float* smem) {
  cta::reduce_max(value, smem);
  __syncthreads();
  return smem[0];
}

// ---- one scale for all rows ----
//
// A computed scale takes three launches. Each waits for the completion of the one before it. The first waits for all
// earlier work and ends only then, so the other two may load the input before they wait. Nothing is kept between calls:
// the blocks combine their results in the scale itself.

/// \brief First of three. One thread.
__global__ void set_smallest_scale(const __grid_constant__ Params params) {
  PDLWaitPrimary();
  *params.scale = kSmallestScale;
}

/// \brief Second of three: raise the scale to that of the whole tensor. The blocks of any grid share the chunks.
template <uint32_t kElements, typename T>
__global__ __launch_bounds__(kBlockThreads) void raise_scale(const __grid_constant__ Params params) {
  __shared__ float smem[kWarpThreads];
  using chunk_t = Chunk<T, kElements, kMaxUnits>;
  const int64_t num_chunks = params.num_rows * chunk_t::per_row(params);
  float largest = 0.0f;
  for (int64_t index = blockIdx.x; index < num_chunks; index += gridDim.x)
    largest = math::max(largest, chunk_t(params, index).load().largest());
  cta::reduce_max(largest, smem);
  PDLTriggerSecondary();
  PDLWaitPrimary();
  if (threadIdx.x == 0) {
    const float scale = scale_of(smem[0]);
    // Most blocks no longer change the scale: a read is cheaper than a turn at the atomic.
    if (scale > *static_cast<volatile float*>(params.scale)) atomic::max(params.scale, scale);
  }
}

/// \brief Third of three, or the only one: quantise by an existing scale. One block for each chunk.
///
/// It goes from the end to the beginning: the caches still hold the data that was read or written last.
/// \tparam kUnits units that a thread holds: one spreads a small input over many threads.
/// \tparam kPreload whether the input is complete when the kernel starts, as after `raise_scale`; then it is loaded
///   before the wait.
template <uint32_t kElements, uint32_t kUnits, bool kPreload, typename T>
__global__ __launch_bounds__(kBlockThreads) void quantize(const __grid_constant__ Params params) {
  if constexpr (!kPreload) PDLWaitPrimary();
  const auto chunk = Chunk<T, kElements, kUnits>(params, int64_t{gridDim.x} - 1 - blockIdx.x);
  const auto x = chunk.load();
  if constexpr (kPreload) PDLWaitPrimary();
  const float scale = *static_cast<volatile float*>(params.scale);
  PDLTriggerSecondary();
  chunk.store(x, 1.0f / scale);
}

/// \brief All three in one, for a row that fits into the registers of a block or, with `kInCluster`, of a cluster.
///
/// The grid is one block, or one cluster of up to 8; each thread holds up to kMaxUnits units.
template <uint32_t kElements, bool kInCluster, typename T>
__global__ __launch_bounds__(kMaxThreads) void quantize_small(const __grid_constant__ Params params) {
  __shared__ float smem[kWarpThreads];
  const uint32_t num_threads = gridDim.x * blockDim.x;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;

  PDLWaitPrimary();
  const Held<T, kElements, kMaxUnits> x(params.input, params.columns, thread, num_threads);
  PDLTriggerSecondary();
  float largest = x.largest();

  if constexpr (kInCluster) {
#if SGL_ARCH_HOPPER_OR_GREATER
    cta::reduce_max(largest, smem);
    ptx::cluster_sync();  // every block's maximum is in its smem[0]
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const uint32_t rank = lane < gridDim.x ? lane : 0;
    largest = warp::reduce_max(__uint_as_float(ptx::load_cluster(ptx::cluster_map(smem, rank))));
#else
    static_assert(details::always_false<T>, "quantize_small: clusters of blocks need sm_90");
#endif
  } else {
    largest = block_max(largest, smem);
  }
  const float scale = scale_of(largest);
  if (thread == 0) *params.scale = scale;
  x.store(params.output, 1.0f / scale);
#if SGL_ARCH_HOPPER_OR_GREATER
  if constexpr (kInCluster) ptx::cluster_sync();  // no block ends while others may read its shared memory
#endif
}

// ---- one scale for each row ----

/// \brief Rows that fit into registers: one read, one write.
///
/// \tparam kUnits units that a thread holds.
/// \tparam kRowThreads the number of lanes of a warp that share a row, a power of two, and a block has as many rows as
///   fit; or 0: a block for each row. kUnits times these threads must cover a row.
template <uint32_t kElements, uint32_t kUnits, uint32_t kRowThreads, typename T>
__global__ __launch_bounds__(kRowThreads == 0 ? kMaxThreads : kBlockThreads) void quantize_rows(
    const __grid_constant__ Params params) {
  const uint32_t row_threads = kRowThreads == 0 ? blockDim.x : kRowThreads;
  const uint32_t thread = threadIdx.x % row_threads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / row_threads) + threadIdx.x / row_threads;
  const bool has_row = row < params.num_rows;
  // Threads without a row see an empty one: they take part in the reductions.
  const uint32_t columns = has_row ? params.columns : 0;
  const void* input = pointer::offset(params.input, row * params.input_stride);
  void* output = pointer::offset(params.output, row * params.output_stride);

  PDLWaitPrimary();
  const Held<T, kElements, kUnits> x(input, columns, thread, row_threads);
  PDLTriggerSecondary();
  float largest = x.largest();
  if constexpr (kRowThreads == 0) {
    __shared__ float smem[kWarpThreads];
    largest = block_max(largest, smem);
  } else {
    largest = warp::reduce_max<float, kRowThreads>(largest);
  }
  const float scale = scale_of(largest);
  if (has_row && thread == 0) params.scale[row] = scale;
  x.store(output, 1.0f / scale);
}

/// \brief Rows of any length, read twice. The blocks of any grid, with any number of threads, share the rows.
template <uint32_t kElements, typename T>
__global__ __launch_bounds__(kMaxThreads) void quantize_long_rows(const __grid_constant__ Params params) {
  __shared__ float smem[kWarpThreads];
  using chunk_t = Chunk<T, kElements, 1>;
  const int64_t num_chunks = chunk_t::per_row(params);

  PDLWaitPrimary();
  for (int64_t row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
    const void* input = pointer::offset(params.input, row * params.input_stride);
    void* output = pointer::offset(params.output, row * params.output_stride);
    float largest = 0.0f;
    for (int64_t i = 0; i < num_chunks; ++i)
      largest = math::max(largest, chunk_t(input, output, params.columns, i).load().largest());
    const float scale = scale_of(block_max(largest, smem));
    __syncthreads();  // every thread has read smem before the next row writes it
    if (threadIdx.x == 0) params.scale[row] = scale;
    const float inverse = 1.0f / scale;
    for (int64_t i = num_chunks - 1; i >= 0; --i) {  // the caches still hold the end of the row
      const chunk_t chunk(input, output, params.columns, i);
      chunk.store(chunk.load(), inverse);
    }
  }
}

}  // namespace quant
