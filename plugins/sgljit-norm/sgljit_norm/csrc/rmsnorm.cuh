#pragma once

#include "row.cuh"

/// \file rmsnorm.cuh
/// \brief The device code of RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight for each row x, Gemma's with 1 + weight.

namespace norm_kernels {

/// \brief Rows of a size known at compile time, held in registers: one read, one write.
///
/// Grid: ceil(num_tokens / rows_per_block()) blocks of block_threads, from the row's `layout_of`. Addresses and strides
/// must be multiples of kLoadBytes.
template <int64_t kHiddenSize, uint32_t kLoadBytes, bool kPlusOne, typename T>
__global__ __launch_bounds__(
    layout_of(kHiddenSize * sizeof(T), kLoadBytes).block_threads,
    layout_of(kHiddenSize * sizeof(T), kLoadBytes).blocks_per_sm)  //
    void rmsnorm(const __grid_constant__ NormParams params) {
  static_assert(kHiddenSize * sizeof(T) % kLoadBytes == 0, "rmsnorm: a row must be a whole number of loads");
  static_assert(kHiddenSize * sizeof(T) <= kMaxRowBytes, "rmsnorm: a row must fit into the registers of a block");
  using device::pointer::offset;
  constexpr Layout kRows = layout_of(kHiddenSize * sizeof(T), kLoadBytes);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows.rows_per_block() + threadIdx.x / kRows.row_threads;
  rmsnorm_row<kRows, kPlusOne, T>(
      offset(params.input, row * params.input_stride), params.weight, offset(params.out, row * params.out_stride),
      threadIdx.x % kRows.row_threads, row < params.num_tokens, params.eps);
}

/// \brief Rows of any size, read twice, `kElements` at a time.
///
/// The blocks of any grid, with any number of threads, share the rows. Addresses and strides must be multiples of
/// kElements * sizeof(T) bytes, and hidden_size of kElements.
template <uint32_t kElements, bool kPlusOne, typename T>
__global__ void rmsnorm_any_size(const __grid_constant__ NormParams params) {
  using device::pointer::offset;
  device::PDLWaitPrimary();
  for (int64_t row = blockIdx.x; row < params.num_tokens; row += gridDim.x)
    rmsnorm_any_row<kElements, kPlusOne, T>(
        offset(params.input, row * params.input_stride), params.weight, offset(params.out, row * params.out_stride),
        params.hidden_size, params.eps);
}

}  // namespace norm_kernels
