#pragma once

#include <sgl_kernel/device.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>

#include "sum.h"

/// \file sum.cuh
/// \brief The kernel of `moe_sum`. Compiles under NVRTC.

namespace moe {

using namespace device;

inline constexpr uint32_t kSumThreads = 256;

/// \brief Each thread sums one vector of a token's rows.
template <uint32_t kElements, bool kWeighted, typename T>
__global__ __launch_bounds__(kSumThreads) void sum(const __grid_constant__ Sum params) {
  const int64_t number = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  const int64_t token = number / params.vectors, vector = number - token * params.vectors;
  if (token >= params.num_tokens) return;
  PDLWaitPrimary();
  const void* row = pointer::offset(params.input, token * params.token_stride);
  const void* weights = kWeighted ? pointer::offset(params.weights, token * params.weights_stride[0]) : nullptr;
  float sums[kElements] = {};
#pragma unroll 4
  for (int i = 0; i < params.experts; ++i) {
    AlignedVector<T, kElements> x;
    x.load(pointer::offset(row, i * params.expert_stride), vector);
    float factor = 1;
    if constexpr (kWeighted)
      factor = *static_cast<const float*>(pointer::offset(weights, i * params.weights_stride[1]));
#pragma unroll
    for (uint32_t j = 0; j < kElements; ++j) sums[j] += factor * cast<fp32_t>(x[j]);
  }
  AlignedVector<T, kElements> result;
#pragma unroll
  for (uint32_t j = 0; j < kElements; ++j) result[j] = cast<T>(sums[j] * params.scale);
  result.store(pointer::offset(params.output, token * params.output_stride), vector);
  PDLTriggerSecondary();
}

}  // namespace moe
