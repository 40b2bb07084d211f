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

/// \brief A number of rows, as a type.
template <int kCount>
struct Rows {};

/// \brief Each thread sums one vector of a token's rows: `kExperts` rows, or for 0 as many as the parameters say.
///
/// A thread asks for a known number of rows at once, and waits once.
/// \tparam Weight the type of a weight; of any type without weights.
template <uint32_t kElements, int kExperts, bool kWeighted, typename T, typename Weight>
__global__ __launch_bounds__(kSumThreads) void sum(const __grid_constant__ Sum params) {
  const int64_t number = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  const int64_t token = number / params.vectors, vector = number - token * params.vectors;
  if (token >= params.num_tokens) return;
  PDLWaitPrimary();
  const void* row = pointer::offset(params.input, token * params.token_stride);
  const void* weights = kWeighted ? pointer::offset(params.weights, token * params.weights_stride[0]) : nullptr;
  float sums[kElements] = {};
  const auto add = [&]<int kRows>(Rows<kRows>, int first) {
    AlignedVector<T, kElements> x[kRows];
    float factors[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      x[i].load(pointer::offset(row, (first + i) * params.expert_stride), vector);
      factors[i] = 1;
      if constexpr (kWeighted)
        factors[i] =
            cast<fp32_t>(*static_cast<const Weight*>(pointer::offset(weights, (first + i) * params.weights_stride[1])));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) sums[j] += factors[i] * cast<fp32_t>(x[i][j]);
    }
  };
  if constexpr (kExperts > 0) {
    add(Rows<kExperts>{}, 0);
  } else {
    int i = 0;
    for (; i + 4 <= params.experts; i += 4) add(Rows<4>{}, i);
    for (; i < params.experts; ++i) add(Rows<1>{}, i);
  }
  AlignedVector<T, kElements> result;
#pragma unroll
  for (uint32_t j = 0; j < kElements; ++j) result[j] = cast<T>(sums[j] * params.scale);
  result.store(pointer::offset(params.output, token * params.output_stride), vector);
  PDLTriggerSecondary();
}

}  // namespace moe
