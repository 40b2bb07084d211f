#pragma once

#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

#include "rmsnorm_layout.h"

/// \file rmsnorm.cuh
/// \brief The device code of RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight for each row x.
///
/// All arithmetic is in float, rounded to the row's type once, at the end. Rows may be normalised in place: every
/// element is written by the thread that read it last. Compiles under NVRTC.

namespace norm_kernels {

/// \brief Rows of a size known beforehand, held in registers: one read, one write.
///
/// Grid: ceil(num_tokens / rows_per_block()) blocks of block_threads, of the row's `layout_of`. Addresses and strides
/// must be multiples of 16 bytes.
template <int64_t kHiddenSize, bool kUsePDL, typename T>
__global__ __launch_bounds__(
    layout_of(kHiddenSize * sizeof(T)).block_threads,
    layout_of(kHiddenSize * sizeof(T)).blocks_per_sm) void rmsnorm(const __grid_constant__ RMSNormParams params) {
  static_assert(kHiddenSize * sizeof(T) % kLoadBytes == 0, "rmsnorm: a row must be a whole number of 16-byte loads");
  static_assert(kHiddenSize * sizeof(T) <= kMaxRowBytes, "rmsnorm: a row must fit into the registers of a block");
  constexpr Layout kRows = layout_of(kHiddenSize * sizeof(T));
  using namespace device;
  using pair_t = packed_t<T>;
  using vec_t = AlignedVector<pair_t, kLoadBytes / sizeof(pair_t)>;

  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows.rows_per_block() + threadIdx.x / kRows.row_threads;
  const uint32_t thread = threadIdx.x % kRows.row_threads;
  const void* input = pointer::offset(params.input, row * params.input_stride);
  void* out = pointer::offset(params.out, row * params.out_stride);
  // Which loads are this thread's. Threads without any still take part in the reduction.
  const bool has_row = row < params.num_tokens;
  const auto is_mine = [&](uint32_t index) {
    return has_row && (kRows.loads % kRows.row_threads == 0 || index < kRows.loads);
  };

  PDLWaitPrimary<kUsePDL>();

  vec_t x[kRows.loads_per_thread];
  vec_t weight[kRows.loads_per_thread];
#pragma unroll
  for (uint32_t i = 0; i < kRows.loads_per_thread; ++i) {
    const auto index = i * kRows.row_threads + thread;
    if (is_mine(index)) {
      x[i].load(input, index);
      if constexpr (kRows.weight_first) weight[i].load(params.weight, index);
    } else {
      x[i].fill(pair_t{});
    }
  }

  float sum = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kRows.loads_per_thread; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < vec_t::kSize; ++j) {
      const auto [a, b] = cast<fp32x2_t>(x[i][j]);
      sum += a * a;
      sum += b * b;
    }
  }
  if constexpr (kRows.in_warp) {
    sum = warp::reduce_sum<float, kRows.row_threads>(sum);
  } else {
    __shared__ float smem[kWarpThreads];
    cta::reduce_sum(sum, smem);
    __syncthreads();
    sum = smem[0];
  }
  const float scale = math::rsqrt(sum / static_cast<float>(kHiddenSize) + params.eps);

  PDLTriggerSecondary<kUsePDL>();

#pragma unroll
  for (uint32_t i = 0; i < kRows.loads_per_thread; ++i) {
    const auto index = i * kRows.row_threads + thread;
    if (!is_mine(index)) continue;
    if constexpr (!kRows.weight_first) weight[i].load(params.weight, index);
#pragma unroll
    for (uint32_t j = 0; j < vec_t::kSize; ++j) {
      const auto [a, b] = cast<fp32x2_t>(x[i][j]);
      const auto [u, v] = cast<fp32x2_t>(weight[i][j]);
      x[i][j] = cast<pair_t>(fp32x2_t{a * scale * u, b * scale * v});
    }
    x[i].store(out, index);
  }
}

/// \brief Rows of any size, read twice, `kElements` at a time.
///
/// Any grid, whose blocks share the rows, and any number of threads. Addresses and strides must be multiples of
/// kElements * sizeof(T) bytes, and hidden_size of kElements.
template <uint32_t kElements, bool kUsePDL, typename T>
__global__ void rmsnorm_any_size(const __grid_constant__ RMSNormParams params) {
  using namespace device;
  using vec_t = AlignedVector<T, kElements>;
  __shared__ float smem[kWarpThreads];

  PDLWaitPrimary<kUsePDL>();

  const int64_t num_loads = params.hidden_size / kElements;
  for (int64_t row = blockIdx.x; row < params.num_tokens; row += gridDim.x) {
    const void* input = pointer::offset(params.input, row * params.input_stride);
    void* out = pointer::offset(params.out, row * params.out_stride);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < num_loads; i += blockDim.x) {
      vec_t x;
      x.load(input, i);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) sum += cast<float>(x[j]) * cast<float>(x[j]);
    }
    cta::reduce_sum(sum, smem);
    __syncthreads();
    const float scale = math::rsqrt(smem[0] / static_cast<float>(params.hidden_size) + params.eps);
    __syncthreads();  // everybody has read smem before the next row writes it

    for (int64_t i = threadIdx.x; i < num_loads; i += blockDim.x) {
      vec_t x, weight;
      x.load(input, i);
      weight.load(params.weight, i);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) x[j] = cast<T>(cast<float>(x[j]) * scale * cast<float>(weight[j]));
      x.store(out, i);
    }
  }
}

}  // namespace norm_kernels
