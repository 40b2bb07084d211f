#pragma once

#include "row.cuh"

/// \file fused_add_rmsnorm.cuh
/// \brief The device code of residual = input + residual, input = rmsnorm(residual), both in place.
///
/// The sum is normalised in float, before it is rounded to the residual's type. Compiles under NVRTC.

namespace norm_kernels {

/// \brief Rows of a size known at compile time, held in registers: both read once, both written once.
///
/// Grid: ceil(num_tokens / rows_per_block()) blocks of block_threads, from the row's `layout_of` with two inputs.
/// Addresses and strides must be multiples of kLoadBytes.
template <int64_t kHiddenSize, uint32_t kLoadBytes, bool kPlusOne, typename T>
__global__ __launch_bounds__(
    layout_of(kHiddenSize * sizeof(T), kLoadBytes, 2).block_threads,
    layout_of(kHiddenSize * sizeof(T), kLoadBytes, 2).blocks_per_sm)  //
    void fused_add_rmsnorm(const __grid_constant__ FusedAddParams params) {
  static_assert(kHiddenSize * sizeof(T) % kLoadBytes == 0, "a row must be a whole number of loads");
  static_assert(kHiddenSize * sizeof(T) <= kMaxRowBytes, "a row must fit into the registers of a block");
  using namespace device;
  constexpr Layout kRows = layout_of(kHiddenSize * sizeof(T), kLoadBytes, 2);
  __shared__ float smem[norm::kSmemBufferSize];
  using part_t = RowPart<kRows, T>;
  part_t x, r, w;
  fp32x2_t sums[part_t::kLoads][part_t::kPairs];

  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows.rows_per_block() + threadIdx.x / kRows.row_threads;
  const uint32_t thread = threadIdx.x % kRows.row_threads;
  const bool has_row = row < params.num_tokens;
  void* input = pointer::offset(params.input, row * params.input_stride);
  void* residual = pointer::offset(params.residual, row * params.residual_stride);

  if constexpr (kTriggerFirst<kRows>) PDLTriggerSecondary();
  PDLWaitPrimary();
  x.load(input, thread, has_row);
  r.load(residual, thread, has_row);
  if constexpr (kRows.weight_first) w.load(params.weight, thread, has_row);
  if constexpr (!kTriggerFirst<kRows>) PDLTriggerSecondary();

  float sum = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < part_t::kLoads; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < part_t::kPairs; ++j) {
      const auto [a, b] = cast<fp32x2_t>(x.loads[i][j]);
      const auto [c, d] = cast<fp32x2_t>(r.loads[i][j]);
      sums[i][j] = {a + c, b + d};
      sum += sums[i][j].x * sums[i][j].x;
      sum += sums[i][j].y * sums[i][j].y;
      r.loads[i][j] = cast<packed_t<T>>(sums[i][j]);
    }
    if (part_t::has(i, thread, has_row)) r.store_one(i, residual, thread);
  }
  const float factor = math::rsqrt(norm::row_sum<kRows.row_threads>(sum, smem) / kHiddenSize + params.eps);

#pragma unroll
  for (uint32_t i = 0; i < part_t::kLoads; ++i) {
    if (!part_t::has(i, thread, has_row)) continue;
    if constexpr (!kRows.weight_first) w.load_one(i, params.weight, thread);
#pragma unroll
    for (uint32_t j = 0; j < part_t::kPairs; ++j) {
      const auto [u, v] = norm::plus_one<kPlusOne>(cast<fp32x2_t>(w.loads[i][j]));
      x.loads[i][j] = cast<packed_t<T>>(fp32x2_t{sums[i][j].x * factor * u, sums[i][j].y * factor * v});
    }
    x.store_one(i, input, thread);
  }
}

/// \brief Rows of any size, read twice, `kElements` at a time.
///
/// The blocks of any grid, with any number of threads, share the rows. Addresses and strides must be multiples of
/// kElements * sizeof(T) bytes, and hidden_size of kElements.
template <uint32_t kElements, bool kPlusOne, typename T>
__global__ void fused_add_rmsnorm_any_size(const __grid_constant__ FusedAddParams params) {
  using namespace device;
  using vec_t = AlignedVector<T, kElements>;
  PDLWaitPrimary();
  for (int64_t row = blockIdx.x; row < params.num_tokens; row += gridDim.x) {
    void* input = pointer::offset(params.input, row * params.input_stride);
    void* residual = pointer::offset(params.residual, row * params.residual_stride);
    float sum = 0.0f;
    for_each_load<kElements, T>(input, params.hidden_size, [&](const vec_t& x, int64_t i) {
      vec_t r;
      r.load(residual, i);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        const float s = cast<float>(x[j]) + cast<float>(r[j]);
        sum += s * s;
      }
    });
    const float factor = math::rsqrt(block_sum(sum) / static_cast<float>(params.hidden_size) + params.eps);
    for_each_load<kElements, T>(input, params.hidden_size, [&](vec_t x, int64_t i) {
      vec_t r, w;
      r.load(residual, i);
      w.load(params.weight, i);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        const float s = cast<float>(x[j]) + cast<float>(r[j]);
        r[j] = cast<T>(s);
        x[j] = cast<T>(s * factor * (cast<float>(w[j]) + (kPlusOne ? 1.0f : 0.0f)));
      }
      r.store(residual, i);
      x.store(input, i);
    });
  }
}

}  // namespace norm_kernels
