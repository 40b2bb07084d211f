#pragma once

#include "row.cuh"

/// \file layernorm.cuh
/// \brief The device code of y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias for each row x.
///
/// The variance is the mean of (x - mean)^2, in a second pass: mean(x^2) - mean(x)^2 would lose all its digits for rows
/// far from zero. For these the mean as a float is also inexact, by up to half a unit in its last place. The same pass
/// computes the mean of x - mean, which corrects it (the corrected two-pass algorithm of Chan, Golub and LeVeque,
/// https://doi.org/10.1080/00031305.1983.10483115). Compiles under NVRTC.

namespace norm_kernels {

/// \brief The factors that normalise x: (x - mean) * factor + shift.
struct Moments {
  float factor, shift;

  /// \param sums of (x - mean)^2 and of x - mean, over `size` elements.
  SGL_DEVICE Moments(fp32x2_t sums, float size, float eps) {
    const float missing = sums.y / size;
    // After rounding, the variance of a constant row may be just below zero.
    const float variance = device::math::max(sums.x / size - missing * missing, 0.0f);
    factor = device::math::rsqrt(variance + eps);
    shift = -missing * factor;
  }
};

/// \brief Limits a thread to 64 registers: with two reductions, more blocks must load while others wait.
constexpr unsigned layernorm_blocks_per_sm(const Layout& rows) {
  return rows.row_threads <= device::kWarpThreads ? 0 : 1024 / rows.block_threads;
}

/// \brief Rows of a size known at compile time, held in registers: one read, one write.
///
/// Grid: ceil(num_tokens / rows_per_block()) blocks of block_threads, from the row's `layout_of`. Addresses and strides
/// must be multiples of kLoadBytes.
template <int64_t kHiddenSize, uint32_t kLoadBytes, bool kHasBias, typename T>
__global__ __launch_bounds__(
    layout_of(kHiddenSize * sizeof(T), kLoadBytes).block_threads,
    layernorm_blocks_per_sm(layout_of(kHiddenSize * sizeof(T), kLoadBytes)))  //
    void layernorm(const __grid_constant__ NormParams params) {
  static_assert(kHiddenSize * sizeof(T) % kLoadBytes == 0, "layernorm: a row must be a whole number of loads");
  static_assert(kHiddenSize * sizeof(T) <= kMaxRowBytes, "layernorm: a row must fit into the registers of a block");
  using namespace device;
  constexpr Layout kRows = layout_of(kHiddenSize * sizeof(T), kLoadBytes);
  // One for each reduction, so that no barrier is between them.
  __shared__ float sum_smem[norm::kSmemBufferSize];
  __shared__ fp32x2_t sums_smem[norm::kSmemBufferSize];
  using part_t = RowPart<kRows, T>;
  part_t x, w, b;

  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows.rows_per_block() + threadIdx.x / kRows.row_threads;
  const uint32_t thread = threadIdx.x % kRows.row_threads;
  const bool has_row = row < params.num_tokens;

  if constexpr (kTriggerFirst<kRows>) PDLTriggerSecondary();
  PDLWaitPrimary();
  x.load(pointer::offset(params.input, row * params.input_stride), thread, has_row);
  if constexpr (kRows.weight_first) w.load(params.weight, thread, has_row);
  if constexpr (!kTriggerFirst<kRows>) PDLTriggerSecondary();

  float sum = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < part_t::kLoads; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < part_t::kPairs; ++j) {
      const auto [c, d] = cast<fp32x2_t>(x.loads[i][j]);
      sum += c;
      sum += d;
    }
  }
  const float mean = norm::row_sum<kRows.row_threads>(sum, sum_smem) / kHiddenSize;

  fp32x2_t sums = {0.0f, 0.0f};
#pragma unroll
  for (uint32_t i = 0; i < part_t::kLoads; ++i) {
    if (!part_t::has(i, thread, has_row)) continue;  // a zero outside the row is not the mean
#pragma unroll
    for (uint32_t j = 0; j < part_t::kPairs; ++j) {
      const auto [c, d] = cast<fp32x2_t>(x.loads[i][j]);
      sums.x += (c - mean) * (c - mean);
      sums.x += (d - mean) * (d - mean);
      sums.y += (c - mean) + (d - mean);
    }
  }
  const auto [factor, shift] =
      Moments(norm::row_sum<kRows.row_threads>(sums, sums_smem), static_cast<float>(kHiddenSize), params.eps);

  void* out = pointer::offset(params.out, row * params.out_stride);
#pragma unroll
  for (uint32_t i = 0; i < part_t::kLoads; ++i) {
    if (!part_t::has(i, thread, has_row)) continue;
    if constexpr (!kRows.weight_first) w.load_one(i, params.weight, thread);
    if constexpr (kHasBias) b.load_one(i, params.bias, thread);
#pragma unroll
    for (uint32_t j = 0; j < part_t::kPairs; ++j) {
      const auto [c, d] = cast<fp32x2_t>(x.loads[i][j]);
      const auto [u, v] = cast<fp32x2_t>(w.loads[i][j]);
      fp32x2_t y = {((c - mean) * factor + shift) * u, ((d - mean) * factor + shift) * v};
      if constexpr (kHasBias) {
        const auto [s, t] = cast<fp32x2_t>(b.loads[i][j]);
        y = {y.x + s, y.y + t};
      }
      x.loads[i][j] = cast<packed_t<T>>(y);
    }
    x.store_one(i, out, thread);
  }
}

/// \brief Rows of any size, read three times, `kElements` at a time.
///
/// The blocks of any grid, with any number of threads, share the rows. Addresses and strides must be multiples of
/// kElements * sizeof(T) bytes, and hidden_size of kElements.
template <uint32_t kElements, bool kHasBias, typename T>
__global__ void layernorm_any_size(const __grid_constant__ NormParams params) {
  using namespace device;
  using vec_t = AlignedVector<T, kElements>;
  const float size = static_cast<float>(params.hidden_size);
  PDLWaitPrimary();
  for (int64_t row = blockIdx.x; row < params.num_tokens; row += gridDim.x) {
    const void* input = pointer::offset(params.input, row * params.input_stride);
    void* out = pointer::offset(params.out, row * params.out_stride);
    float sum = 0.0f;
    for_each_load<kElements, T>(input, params.hidden_size, [&](const vec_t& x, int64_t) {
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) sum += cast<float>(x[j]);
    });
    const float mean = block_sum(sum) / size;
    fp32x2_t sums = {0.0f, 0.0f};
    for_each_load<kElements, T>(input, params.hidden_size, [&](const vec_t& x, int64_t) {
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        const float deviation = cast<float>(x[j]) - mean;
        sums.x += deviation * deviation;
        sums.y += deviation;
      }
    });
    const auto [factor, shift] = Moments({block_sum(sums.x), block_sum(sums.y)}, size, params.eps);
    for_each_load<kElements, T>(input, params.hidden_size, [&](vec_t x, int64_t i) {
      vec_t w, b;
      w.load(params.weight, i);
      if constexpr (kHasBias) b.load(params.bias, i);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        float y = ((cast<float>(x[j]) - mean) * factor + shift) * cast<float>(w[j]);
        if constexpr (kHasBias) y += cast<float>(b[j]);
        x[j] = cast<T>(y);
      }
      x.store(out, i);
    });
  }
}

}  // namespace norm_kernels
