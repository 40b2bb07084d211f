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
/// All arithmetic is in float; the conversion rounds to nearest even, saturates at 448 and keeps NaN. A maximum leaves
/// NaN out. Template arguments: `kElements` make up a unit, which is all of a 16-byte load or one element; base
/// addresses and strides must be multiples of a unit, input and output alike. Rows of any length: the last unit may be
/// incomplete. Compiles under NVRTC.

namespace quant {

using namespace device;

/// \brief The bounds of a scale that is computed: one over it is finite and not zero.
inline constexpr float kSmallestScale = 0x1p-126f;
inline constexpr float kLargestScale = 0x1.fffffep127f;

/// \brief The scale for a largest magnitude.
SGL_DEVICE float scale_of(float largest) {
  return math::min(math::max(largest / math::FP8_E4M3_MAX, kSmallestScale), kLargestScale);
}

/// \brief Unit number `unit` of a row; zeros where the row has ended.
template <typename T, size_t kElements>
SGL_DEVICE AlignedVector<T, kElements> load_unit(const void* row, int64_t unit, int64_t columns) {
  AlignedVector<T, kElements> x;
  const int64_t left = columns - unit * int64_t{kElements};
  if (left >= int64_t{kElements}) {
    x.load(row, unit);
  } else {
#pragma unroll
    for (int i = 0; i < int{kElements}; ++i) x[i] = i < left ? load_as<T>(row, unit * int64_t{kElements} + i) : T{};
  }
  return x;
}

/// \brief Quantise unit number `unit` of a row and store what of it is in the row.
template <typename T, size_t kElements>
SGL_DEVICE void store_unit(
    void* row, int64_t unit, int64_t columns, const AlignedVector<T, kElements>& x, float inverse) {
  const int64_t left = columns - unit * int64_t{kElements};
  const auto scaled = [&](int i) { return cast<fp32_t>(x[i]) * inverse; };
  if constexpr (kElements > 1) {
    if (left >= int64_t{kElements}) {
      AlignedVector<fp8x2_e4m3_t, kElements / 2> q;
#pragma unroll
      for (int i = 0; i < int{kElements / 2}; ++i)
        q[i] = cast<fp8x2_e4m3_t>(fp32x2_t{scaled(2 * i), scaled(2 * i + 1)});
      q.store(row, unit);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < int{kElements}; ++i) {
    if (i < left) store_as(row, cast<fp8_e4m3_t>(scaled(i)), unit * int64_t{kElements} + i);
  }
}

/// \brief The largest magnitude of a unit, but for NaN; two at a time where there is an instruction for it.
template <typename T, size_t kElements>
SGL_DEVICE float largest_of(const AlignedVector<T, kElements>& x) {
  if constexpr (sizeof(T) == 2 && kElements > 1) {
    using pair_t = packed_t<T>;
    pair_t largest = math::abs(pair_t{x[0], x[1]});
#pragma unroll
    for (int i = 2; i < int{kElements}; i += 2) largest = math::max(largest, math::abs(pair_t{x[i], x[i + 1]}));
    const auto [a, b] = cast<fp32x2_t>(largest);
    return math::max(math::max(0.0f, a), b);  // zero first: where every one is NaN, the result still is a number
  } else {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < int{kElements}; ++i) largest = math::max(largest, math::abs(cast<fp32_t>(x[i])));
    return largest;
  }
}

/// \brief A chunk: as many units of one row as the block's threads hold, kMaxUnits each, `blockDim.x` apart.
template <typename T, size_t kElements>
struct Chunk {
  int64_t row;
  int64_t first_unit;  ///< this thread's

  SGL_DEVICE static int64_t per_row(const Params& params) {
    return div_ceil(div_ceil(params.columns, int64_t{kElements}), int64_t{blockDim.x * kMaxUnits});
  }
  SGL_DEVICE Chunk(const Params& params, int64_t index) : row(0), first_unit(0) {
    // One row is the usual case, and a 64-bit division takes as long as a load from L2.
    if (params.num_rows > 1) row = index / per_row(params);
    first_unit = (index - row * per_row(params)) * (blockDim.x * kMaxUnits) + threadIdx.x;
  }
  SGL_DEVICE void load(const Params& params, AlignedVector<T, kElements> (&x)[kMaxUnits]) const {
    const void* input = pointer::offset(params.input, row * params.input_stride);
#pragma unroll
    for (uint32_t i = 0; i < kMaxUnits; ++i)
      x[i] = load_unit<T, kElements>(input, first_unit + i * blockDim.x, params.columns);
  }
  SGL_DEVICE void store(const Params& params, const AlignedVector<T, kElements> (&x)[kMaxUnits], float inverse) const {
    void* output = pointer::offset(params.output, row * params.output_stride);
#pragma unroll
    for (uint32_t i = 0; i < kMaxUnits; ++i)
      store_unit<T, kElements>(output, first_unit + i * blockDim.x, params.columns, x[i], inverse);
  }
};

/// \brief The largest value of the block, to every thread. `smem` holds a float for each warp and is not used again.
SGL_DEVICE float block_max(float value, float* smem) {
  cta::reduce_max(value, smem);
  __syncthreads();
  return smem[0];
}

// ---- one scale for all rows ----
//
// A scale that is computed takes three launches. Each waits for the one before it to complete, and the first one for
// what came before and only then ends: so the other two may load the input before they wait. Nothing is kept between
// calls, the scale itself is where blocks meet.

/// \brief First of three. One thread.
template <bool kUsePDL>
__global__ void set_smallest_scale(const __grid_constant__ Params params) {
  PDLWaitPrimary<kUsePDL>();
  *params.scale = kSmallestScale;
}

/// \brief Second of three: raise the scale to that of the whole tensor. Any grid, whose blocks share the chunks.
template <uint32_t kElements, bool kUsePDL, typename T>
__global__ __launch_bounds__(kBlockThreads) void raise_scale(const __grid_constant__ Params params) {
  __shared__ float smem[kWarpThreads];
  const int64_t num_chunks = params.num_rows * Chunk<T, kElements>::per_row(params);
  float largest = 0.0f;
  for (int64_t index = blockIdx.x; index < num_chunks; index += gridDim.x) {
    AlignedVector<T, kElements> x[kMaxUnits];
    Chunk<T, kElements>(params, index).load(params, x);
#pragma unroll
    for (uint32_t i = 0; i < kMaxUnits; ++i) largest = math::max(largest, largest_of(x[i]));
  }
  cta::reduce_max(largest, smem);
  PDLTriggerSecondary<kUsePDL>();
  PDLWaitPrimary<kUsePDL>();
  if (threadIdx.x == 0) {
    const float scale = scale_of(smem[0]);
    // Most blocks have nothing to say any more: a look is cheaper than to take one's turn at the atomic.
    if (scale > *static_cast<volatile float*>(params.scale)) atomic::max(params.scale, scale);
  }
}

/// \brief Third of three, or the only one: quantise by a scale that is there. One block for each chunk.
///
/// From the end to the beginning: what was read or written last before this is what the caches still hold.
/// \tparam kPreload whether the input is complete when the kernel starts, as after `raise_scale`; then it is loaded
///   before the wait.
template <uint32_t kElements, bool kPreload, bool kUsePDL, typename T>
__global__ __launch_bounds__(kBlockThreads) void quantize(const __grid_constant__ Params params) {
  if constexpr (!kPreload) PDLWaitPrimary<kUsePDL>();
  const auto chunk = Chunk<T, kElements>(params, int64_t{gridDim.x} - 1 - blockIdx.x);
  AlignedVector<T, kElements> x[kMaxUnits];
  chunk.load(params, x);
  if constexpr (kPreload) PDLWaitPrimary<kUsePDL>();
  const float inverse = 1.0f / *static_cast<volatile float*>(params.scale);
  PDLTriggerSecondary<kUsePDL>();
  chunk.store(params, x, inverse);
}

/// \brief All three in one, for one row that the registers of a block or, with `kInCluster`, of a cluster hold.
///
/// The grid is one block, or one cluster of up to 8; each thread holds up to kMaxUnits units.
template <uint32_t kElements, bool kInCluster, bool kUsePDL, typename T>
__global__ __launch_bounds__(kMaxThreads) void quantize_small(const __grid_constant__ Params params) {
  __shared__ float smem[kWarpThreads];
  const uint32_t num_threads = gridDim.x * blockDim.x;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;

  PDLWaitPrimary<kUsePDL>();
  AlignedVector<T, kElements> x[kMaxUnits];
  float largest = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kMaxUnits; ++i)
    x[i] = load_unit<T, kElements>(params.input, i * num_threads + thread, params.columns);
#pragma unroll
  for (uint32_t i = 0; i < kMaxUnits; ++i) largest = math::max(largest, largest_of(x[i]));

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
  const float inverse = 1.0f / scale;

  PDLTriggerSecondary<kUsePDL>();
#pragma unroll
  for (uint32_t i = 0; i < kMaxUnits; ++i)
    store_unit<T, kElements>(params.output, i * num_threads + thread, params.columns, x[i], inverse);
#if SGL_ARCH_HOPPER_OR_GREATER
  if constexpr (kInCluster) ptx::cluster_sync();  // nobody ends while others may read its shared memory
#endif
}

// ---- one scale for each row ----

/// \brief Rows that registers hold: one read, one write.
///
/// \tparam kUnits that a thread holds.
/// \tparam kRowThreads a power of two: so many lanes of a warp share a row, and a block has as many rows as fit; or 0:
///   a block for each row. kUnits times these threads must cover a row.
template <uint32_t kElements, uint32_t kUnits, uint32_t kRowThreads, bool kUsePDL, typename T>
__global__ __launch_bounds__(kRowThreads == 0 ? kMaxThreads : kBlockThreads) void quantize_rows(
    const __grid_constant__ Params params) {
  const uint32_t row_threads = kRowThreads == 0 ? blockDim.x : kRowThreads;
  const uint32_t thread = threadIdx.x % row_threads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / row_threads) + threadIdx.x / row_threads;
  const bool has_row = row < params.num_rows;
  // Threads without a row see an empty one: they take part in the reductions.
  const int64_t columns = has_row ? params.columns : 0;
  const void* input = pointer::offset(params.input, row * params.input_stride);
  void* output = pointer::offset(params.output, row * params.output_stride);

  PDLWaitPrimary<kUsePDL>();
  AlignedVector<T, kElements> x[kUnits];
  float largest = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i) x[i] = load_unit<T, kElements>(input, i * row_threads + thread, columns);
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i) largest = math::max(largest, largest_of(x[i]));
  if constexpr (kRowThreads == 0) {
    __shared__ float smem[kWarpThreads];
    largest = block_max(largest, smem);
  } else {
    largest = warp::reduce_max<float, kRowThreads>(largest);
  }
  const float scale = scale_of(largest);
  if (has_row && thread == 0) params.scale[row] = scale;
  const float inverse = 1.0f / scale;

  PDLTriggerSecondary<kUsePDL>();
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i)
    store_unit<T, kElements>(output, i * row_threads + thread, columns, x[i], inverse);
}

/// \brief Rows of any length, read twice. Any grid, whose blocks share the rows, and any number of threads.
template <uint32_t kElements, bool kUsePDL, typename T>
__global__ __launch_bounds__(kMaxThreads) void quantize_long_rows(const __grid_constant__ Params params) {
  __shared__ float smem[kWarpThreads];
  const int64_t num_units = div_ceil(params.columns, int64_t{kElements});

  PDLWaitPrimary<kUsePDL>();
  for (int64_t row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
    const void* input = pointer::offset(params.input, row * params.input_stride);
    void* output = pointer::offset(params.output, row * params.output_stride);
    float largest = 0.0f;
    for (int64_t unit = threadIdx.x; unit < num_units; unit += blockDim.x)
      largest = math::max(largest, largest_of(load_unit<T, kElements>(input, unit, params.columns)));
    const float scale = scale_of(block_max(largest, smem));
    __syncthreads();  // everybody has read smem before the next row writes it
    if (threadIdx.x == 0) params.scale[row] = scale;
    const float inverse = 1.0f / scale;
    for (int64_t unit = threadIdx.x; unit < num_units; unit += blockDim.x) {
      const auto x = load_unit<T, kElements>(input, unit, params.columns);
      store_unit<T, kElements>(output, unit, params.columns, x, inverse);
    }
  }
}

}  // namespace quant
