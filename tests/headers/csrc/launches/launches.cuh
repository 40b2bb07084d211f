#pragma once

#include <sgl_kernel/type.cuh>

#include "modes.h"

namespace launches {

template <auto kMode>
__global__ void by_mode(const __grid_constant__ Params params) {
  if constexpr (requires { kMode == Add::kOne; }) params.data[0] += 1;
  else params.data[0] *= 1;
}

}  // namespace launches
