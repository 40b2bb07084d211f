#pragma once

/// \file utils.cuh
/// \brief The headers of most kernels: `device.cuh` and `fp8.cuh` for the device side, `launch.cuh` for the host side.

#include <sgl_kernel/device.cuh>
#include <sgl_kernel/fp8.cuh>
#include <sgl_kernel/launch.cuh>
