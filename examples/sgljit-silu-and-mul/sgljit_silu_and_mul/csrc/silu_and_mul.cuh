#pragma once

#include <sgl_kernel/math.cuh>
#include <sgl_kernel/type.cuh>

#include "silu_and_mul.h"

/// \file silu_and_mul.cuh
/// \brief The kernel. Compiles under NVRTC.

namespace swiglu {

/// \brief One block for each row; its threads take the elements in turn.
template <typename T>
__global__ void silu_and_mul(const __grid_constant__ Params params) {
  using namespace device;
  const long long row = blockIdx.x;
  const auto* gate = static_cast<const T*>(params.input) + row * 2 * params.hidden;
  const auto* value = gate + params.hidden;
  auto* out = static_cast<T*>(params.out) + row * params.hidden;
  for (long long i = threadIdx.x; i < params.hidden; i += blockDim.x) {
    const float x = cast<float>(gate[i]);
    out[i] = cast<T>(x / (1.0f + math::exp(-x)) * cast<float>(value[i]));
  }
}

}  // namespace swiglu
