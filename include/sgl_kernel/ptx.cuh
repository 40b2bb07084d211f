#pragma once

#include <sgl_kernel/arch.cuh>

/// \file ptx.cuh
/// \brief Inline PTX, one instruction to a function; the only place that has any.

namespace device::ptx {

// ---- programmatic dependent launch (sm_90) ----

/// \brief Wait for the kernels that this grid depends on, and see their writes.
SGL_DEVICE void grid_dependency_wait() {
#if SGL_ARCH_HOPPER_OR_GREATER && !defined(USE_ROCM)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// \brief Let the grids that depend on this one be launched.
SGL_DEVICE void grid_launch_dependents() {
#if SGL_ARCH_HOPPER_OR_GREATER && !defined(USE_ROCM)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace device::ptx
