#pragma once

#include <sgl_kernel/row_map.h>

/// \file silu_and_mul.h
/// \brief The functor. Read by the C++ compiler for the CPU and by NVRTC for the device.

namespace swiglu {

/// \brief silu(gate) * value
struct SiluAndMul {
  SGL_HD float operator()(float gate, float value) const {
    return gate / (1.0f + sgl::exp(-gate)) * value;
  }
};

}  // namespace swiglu
