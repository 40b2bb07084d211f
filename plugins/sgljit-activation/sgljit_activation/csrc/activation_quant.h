#pragma once

#include <sgl_kernel/quantize.h>

#include "activation.h"

/// \file activation_quant.h
/// \brief The activation whose result is quantised. Read by the C++ compiler for the CPU and by NVRTC for the device.

namespace activation {

/// \brief silu(gate) * up in FP8; rounded to the dtype of the gate before that, or not.
template <typename Scale, bool kRounds>
struct SiluAndMulQuant {
  SGL_OPERANDS(gate, up, q, scale)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto gates = row[gate];
    const auto values = row[up];
    const auto activated = sgl::map(SiluAndMul{}, gates, values);
    if constexpr (kRounds) return Scale::store(row, q, scale, row.round(gate, activated));
    else return Scale::store(row, q, scale, activated);
  }
};

}  // namespace activation
