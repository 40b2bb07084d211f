#pragma once

#include <sgl_kernel/launch.cuh>
#if !defined(USE_ROCM)
#include <sgl_kernel/runtime.h>
#endif

#include <cstddef>
#include <cstdint>

/// \file runtime.cuh
/// \brief Checked queries of the CUDA runtime: number of multiprocessors, occupancy of a kernel, ...
///
/// Host only. The device queries are those of `runtime.h`. A device index below zero stands for the current device.
/// Nothing is cached here: an attribute costs tens of nanoseconds, an occupancy query about a microsecond. Keep the
/// result of the latter beside the kernel, per device.

namespace host::runtime {

#if defined(USE_ROCM)
// No get_cc_major: HIP reports 9 for a gfx90a, which a kernel would take for Hopper's.
namespace details {

inline int attribute(::hipDeviceAttribute_t which, int device_id, DebugInfo location) {
  if (device_id < 0) RuntimeDeviceCheck(::hipGetDevice(&device_id), location);
  int value = 0;
  RuntimeDeviceCheck(::hipDeviceGetAttribute(&value, which, device_id), location);
  return value;
}

}  // namespace details

/// \brief The number of compute units: 104 on one die of an MI250X.
[[nodiscard]] inline auto get_sm_count(int device_id = -1, DebugInfo location = {}) -> std::uint32_t {
  return static_cast<std::uint32_t>(details::attribute(::hipDeviceAttributeMultiprocessorCount, device_id, location));
}

/// \brief The maximum dynamic shared memory of a block in bytes: 65536 on an MI250X.
[[nodiscard]] inline auto get_max_dynamic_smem(int device_id = -1, DebugInfo location = {}) -> std::size_t {
  return static_cast<std::size_t>(details::attribute(::hipDeviceAttributeMaxSharedMemoryPerBlock, device_id, location));
}

#else
namespace details {

/// The most dynamic shared memory that a block of `kernel` can have on the current device, beside its static one.
inline auto most_dynamic_smem(const void* kernel, DebugInfo location) -> std::size_t {
  ::cudaFuncAttributes own;
  RuntimeDeviceCheck(::cudaFuncGetAttributes(&own, kernel), location);
  return get_max_dynamic_smem(-1, location) - own.sharedSizeBytes;
}

}  // namespace details
#endif

/// \brief The number of blocks of `kernel` that one multiprocessor of the current device holds at a time; 0 if none
/// fits.
template <typename Kernel>
[[nodiscard]] auto get_blocks_per_sm(
    Kernel* kernel, std::int32_t block_dim, std::size_t dynamic_smem = 0, DebugInfo location = {}) -> std::uint32_t {
  int blocks = 0;
#if !defined(USE_ROCM)
  if (dynamic_smem != 0) {
    if (dynamic_smem > details::most_dynamic_smem(reinterpret_cast<const void*>(kernel), location)) return 0;
    // The answer is 0 beyond the kernel's current limit, too.
    RuntimeDeviceCheck(host::details::allow_dynamic_smem(reinterpret_cast<const void*>(kernel)), location);
  }
#endif
  RuntimeDeviceCheck(
      SGL_RUNTIME(OccupancyMaxActiveBlocksPerMultiprocessor)(
          &blocks, reinterpret_cast<const void*>(kernel), block_dim, dynamic_smem),
      location);
  return static_cast<std::uint32_t>(blocks);
}

/// \brief The version of the CUDA runtime in this module: 13000 for 13.0.
[[nodiscard]] inline auto get_runtime_version(DebugInfo location = {}) -> int {
  int version = 0;
  RuntimeDeviceCheck(SGL_RUNTIME(RuntimeGetVersion)(&version), location);
  return version;
}

#if !defined(USE_ROCM)
/// \brief The most dynamic shared memory with which `num_blocks` blocks of `kernel` still fit on a multiprocessor.
template <typename Kernel>
[[nodiscard]] auto get_available_dynamic_smem_per_block(
    Kernel* kernel, int num_blocks, int block_size, DebugInfo location = {}) -> std::size_t {
  std::size_t bytes = 0;
  // The answer never exceeds the kernel's current limit, so that is raised to its maximum first.
  RuntimeDeviceCheck(host::details::allow_dynamic_smem(reinterpret_cast<const void*>(kernel)), location);
  RuntimeDeviceCheck(
      ::cudaOccupancyAvailableDynamicSMemPerBlock(
          &bytes, reinterpret_cast<const void*>(kernel), num_blocks, block_size),
      location);
  return bytes;
}
#endif

}  // namespace host::runtime
