#pragma once

/// \file fp8_utils.cuh
/// \brief Bounds of the 8-bit formats by SGLang's names, for ports: new code has `math.cuh`.

#include <sgl_kernel/compat/device.cuh>
