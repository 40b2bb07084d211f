#pragma once

#include <sgl_kernel/device.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

#include "matvec.h"

/// \file matvec.cuh
/// \brief The kernel of `expert_matvec` for matrices whose columns have their elements side by side. Compiles under
/// NVRTC.

namespace moe {

using namespace device;

/// \brief A block computes `kTile` vectors of a product. Its threads share the columns, `kTile` threads each.
/// \tparam kRepeated whether a row of x has several products.
template <uint32_t kElements, bool kBiased, bool kRepeated, typename T, typename Id>
__global__ __launch_bounds__(kColumnsThreads) void sum_columns(const __grid_constant__ Columns params) {
  constexpr uint32_t kAtOnce = 8, kWarps = kColumnsThreads / kWarpThreads;  // columns that a thread asks for at once
  constexpr uint32_t kStep = kColumnsThreads / kTile, kSize = kTile * kElements;
  __shared__ float of_warps[kWarps][kSize];
  const uint32_t row = blockIdx.x / params.tiles, tile = blockIdx.x - row * params.tiles;
  const uint32_t lane = threadIdx.x % kTile;
  const int64_t vector = int64_t{tile} * kTile + lane;
  const bool has_vector = vector < params.vectors;
  PDLWaitPrimary();
  const auto id = static_cast<const Id*>(params.ids)[row];
  const void* matrix = pointer::offset(params.weight, id * params.expert_stride);
  const uint32_t of_x = kRepeated ? row / params.repeats : row;
  const auto* x = static_cast<const T*>(pointer::offset(params.x, of_x * params.x_stride));
  [[maybe_unused]] float more = 0;
  if constexpr (kBiased) {  // asked for here, to wait for it with the matrix
    const int64_t element = int64_t{tile} * kSize + threadIdx.x;
    if (threadIdx.x < kSize && element < params.num_elements)
      more = cast<fp32_t>(static_cast<const T*>(pointer::offset(params.bias, id * params.bias_stride))[element]);
  }
  float sums[kElements] = {};
  for (int64_t first = threadIdx.x / kTile; first < params.num_columns; first += kAtOnce * kStep) {
    AlignedVector<T, kElements> column[kAtOnce];
    float factors[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const int64_t number = first + i * kStep;
      column[i].fill(cast<T>(0.0f));
      factors[i] = 0;
      if (!has_vector || number >= params.num_columns) continue;
      column[i].load(pointer::offset(matrix, number * params.column_stride), vector);
      factors[i] = cast<fp32_t>(x[number]);
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) sums[j] += factors[i] * cast<fp32_t>(column[i][j]);
    }
  }
#pragma unroll
  for (uint32_t j = 0; j < kElements; ++j) {
#pragma unroll
    for (uint32_t distance = kTile; distance < kWarpThreads; distance *= 2)
      sums[j] += warp::exchange(sums[j], distance);
    if (threadIdx.x % kWarpThreads < kTile) of_warps[threadIdx.x / kWarpThreads][lane * kElements + j] = sums[j];
  }
  __syncthreads();
  const int64_t element = int64_t{tile} * kSize + threadIdx.x;
  if (threadIdx.x < kSize && element < params.num_elements) {
    float sum = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < kWarps; ++warp) sum += of_warps[warp][threadIdx.x];
    if constexpr (kBiased) sum += more;
    static_cast<T*>(pointer::offset(params.output, row * params.output_stride))[element] = cast<T>(sum);
  }
  PDLTriggerSecondary();
}

}  // namespace moe
