#pragma once

#include <sgl_kernel/row_program.h>

/// \file silu_and_mul.h
/// \brief The program of a row. Read by the C++ compiler for the CPU and by NVRTC for the device.

namespace swiglu {

/// \brief out = silu(gate) * value
struct SiluAndMul {
  SGL_OPERANDS(gate, value, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto formula = [](float g, float v) { return g / (1.0f + sgl::exp(-g)) * v; };
    return sgl::store(out = sgl::map(formula, row[gate], row[value]));
  }
};

}  // namespace swiglu
