#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/utils.h>

#include <cstddef>
#include <cstdint>

/// \file runtime.h
/// \brief Queries of the CUDA driver about a device: number of multiprocessors, compute capability, ...
///
/// Host only, no CUDA header: for host parts, which only g++ compiles. `runtime.cuh` adds queries about `__global__`
/// functions, `variant.h` those about variants. A device index below zero stands for the current device.

namespace host::runtime {

namespace details {

SGL_INLINE int attribute(int which, int device_id, DebugInfo location);

}  // namespace details

/// \brief The number of multiprocessors: 132 on an H200.
[[nodiscard]] inline auto get_sm_count(int device_id = -1, DebugInfo location = {}) -> std::uint32_t {
  return static_cast<std::uint32_t>(details::attribute(driver::kMultiprocessorCount, device_id, location));
}

/// \brief The major compute capability: 9 on an H200.
[[nodiscard]] inline auto get_cc_major(int device_id = -1, DebugInfo location = {}) -> int {
  return details::attribute(driver::kComputeCapabilityMajor, device_id, location);
}

/// \brief The minor compute capability: 0 on an H200.
[[nodiscard]] inline auto get_cc_minor(int device_id = -1, DebugInfo location = {}) -> int {
  return details::attribute(driver::kComputeCapabilityMinor, device_id, location);
}

/// \brief The maximum dynamic shared memory of a block in bytes: 232448 on an H200.
[[nodiscard]] inline auto get_max_dynamic_smem(int device_id = -1, DebugInfo location = {}) -> std::size_t {
  return static_cast<std::size_t>(details::attribute(driver::kMaxSharedMemoryPerBlockOptin, device_id, location));
}

/// \brief The newest CUDA version that the driver supports: 13000 for 13.0.
[[nodiscard]] inline auto get_driver_version(DebugInfo location = {}) -> int {
  int version = 0;
  driver::check(driver::api().DriverGetVersion(&version), location);
  return version;
}

/// \brief Whether a kernel can be launched before its predecessor has ended (`LaunchKernel::enable_pdl`).
[[nodiscard]] inline bool has_pdl(int device_id = -1, DebugInfo location = {}) {
  return get_cc_major(device_id, location) >= 9;
}

}  // namespace host::runtime

#if SGL_BODIES

SGL_INLINE int host::runtime::details::attribute(int which, int device_id, DebugInfo location) {
  if (device_id < 0 && driver::api().CtxGetDevice(&device_id) != driver::kSuccess) device_id = 0;
  int value = 0;
  driver::check(driver::api().DeviceGetAttribute(&value, which, device_id), location);
  return value;
}

#endif  // SGL_BODIES
