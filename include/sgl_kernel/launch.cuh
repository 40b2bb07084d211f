#pragma once

#include <sgl_kernel/launch.h>
#include <sgl_kernel/utils.h>

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(USE_ROCM)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif

/// \file launch.cuh
/// \brief `LaunchKernel` for `__global__` functions, and CUDA's error codes as exceptions.
///
/// Host only.

#if defined(USE_ROCM)
#define SGL_RUNTIME(NAME) ::hip##NAME
#else
#define SGL_RUNTIME(NAME) ::cuda##NAME
#endif

namespace host {

#if defined(USE_ROCM)
using runtime_error_t = ::hipError_t;
#else
using runtime_error_t = ::cudaError_t;
#endif

namespace details {

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_runtime_error(
    runtime_error_t error, DebugInfo location, const LaunchConfig* launch = nullptr) {
  raise_device_error(
      static_cast<int>(error), SGL_RUNTIME(GetErrorName)(error), SGL_RUNTIME(GetErrorString)(error), location, launch);
}

/// Makes a device current for the duration of a scope.
struct DeviceGuard {
 public:
  explicit DeviceGuard(std::int32_t device_id, DebugInfo location) {
    if (device_id < 0) return;
    s_check(SGL_RUNTIME(GetDevice)(&m_previous), location);
    if (m_previous == device_id) {
      m_previous = -1;
    } else {
      s_check(SGL_RUNTIME(SetDevice)(device_id), location);
    }
  }
  ~DeviceGuard() {
    if (m_previous >= 0) static_cast<void>(SGL_RUNTIME(SetDevice)(m_previous));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  static void s_check(runtime_error_t error, DebugInfo location) {
    if (error != SGL_RUNTIME(Success)) [[unlikely]]
      raise_runtime_error(error, location);
  }
  int m_previous = -1;
};

}  // namespace details

/// \brief Throw a `RuntimeError` with the error's name and the call's location unless `error` is success.
inline void RuntimeDeviceCheck(runtime_error_t error, DebugInfo location = {}) {
  if (error != SGL_RUNTIME(Success)) [[unlikely]] {
    static_cast<void>(SGL_RUNTIME(GetLastError)());  // reported now; the next check must not report it again
    details::raise_runtime_error(error, location);
  }
}

/// \brief Check and clear the error of the last CUDA call of this thread: `kernel<<<...>>>(); RuntimeDeviceCheck();`
inline void RuntimeDeviceCheck(DebugInfo location = {}) {
  RuntimeDeviceCheck(SGL_RUNTIME(GetLastError)(), location);
}

namespace details {

#if defined(USE_ROCM)
inline runtime_error_t enqueue(const LaunchConfig& config, DebugInfo location, const void* kernel, void** arguments) {
  const auto& [grid, block, dynamic_smem, stream, device_id, cluster, pdl] = config;
  RuntimeCheck(location, cluster.x * cluster.y * cluster.z == 1, "ROCm has no clusters");
  return ::hipLaunchKernel(
      kernel, dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z), arguments, dynamic_smem, stream);
}
#else
/// Raises a kernel's limit of dynamic shared memory to the most that a block of the current device has. Everybody sets
/// the same value, so nobody lowers another's, and the driver is asked once for each kernel and device.
inline runtime_error_t allow_dynamic_smem(const void* kernel) {
  int device = 0, most = 0;
  if (const auto error = ::cudaGetDevice(&device); error != ::cudaSuccess) return error;
  static std::uint64_t raised[256] = {};  // a kernel whose place another one took is asked about again
  const auto key = reinterpret_cast<std::uint64_t>(kernel) << 8 | static_cast<std::uint8_t>(device);
  auto& place = raised[(key ^ key >> 12) & 255];
  if (__atomic_load_n(&place, __ATOMIC_RELAXED) == key) return ::cudaSuccess;
  ::cudaFuncAttributes own;
  auto error = ::cudaFuncGetAttributes(&own, kernel);
  if (error == ::cudaSuccess)
    error = ::cudaDeviceGetAttribute(&most, ::cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == ::cudaSuccess)
    error = ::cudaFuncSetAttribute(
        kernel, ::cudaFuncAttributeMaxDynamicSharedMemorySize, most - static_cast<int>(own.sharedSizeBytes));
  if (error == ::cudaSuccess) __atomic_store_n(&place, key, __ATOMIC_RELAXED);
  return error;
}

inline runtime_error_t enqueue(const LaunchConfig& launch, DebugInfo, const void* kernel, void** arguments) {
  if (launch.dynamic_smem != 0) {
    if (launch.dynamic_smem > INT32_MAX) return ::cudaErrorInvalidValue;  // no block has as much, and CUDA cuts it off
    const auto error = allow_dynamic_smem(kernel);
    if (error != ::cudaSuccess) return error;
  }
  ::cudaLaunchAttribute attributes[2];
  ::cudaLaunchConfig_t config = {};
  config.gridDim = dim3(launch.grid.x, launch.grid.y, launch.grid.z);
  config.blockDim = dim3(launch.block.x, launch.block.y, launch.block.z);
  config.dynamicSmemBytes = launch.dynamic_smem;
  config.stream = launch.stream;
  config.attrs = attributes;
  if (launch.pdl) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = ::cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  const auto& cluster = launch.cluster;
  if (cluster.x != 1 || cluster.y != 1 || cluster.z != 1) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = ::cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster.x;
    attribute.val.clusterDim.y = cluster.y;
    attribute.val.clusterDim.z = cluster.z;
  }
  return ::cudaLaunchKernelExC(&config, kernel, arguments);
}
#endif

[[gnu::noinline]] inline void launch_function(
    const LaunchConfig& config, DebugInfo location, const void* kernel, void** arguments) {
  if (config.grid.is_empty()) return;
  const DeviceGuard guard(config.device_id, location);
  const auto error = enqueue(config, location, kernel, arguments);
  if (error != SGL_RUNTIME(Success)) [[unlikely]] {
    static_cast<void>(SGL_RUNTIME(GetLastError)());
    raise_runtime_error(error, location, &config);
  }
}

/// The arguments are converted here: every parameter has its kernel's type, and CUDA takes the address of each.
template <typename... Params>
void launch_converted(const LaunchConfig& config, DebugInfo location, void (*kernel)(Params...), Params... params) {
  void* arguments[sizeof...(Params) + 1] = {const_cast<void*>(static_cast<const void*>(&params))..., nullptr};
  launch_function(config, location, reinterpret_cast<const void*>(kernel), arguments);
}

}  // namespace details

/// `LaunchKernel` for a `__global__` function.
template <typename... Params, typename... Args>
void launch_on(const LaunchConfig& config, DebugInfo location, void (*kernel)(Params...), Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "LaunchKernel: the kernel takes a different number of arguments");
  if constexpr (sizeof...(Params) == sizeof...(Args)) {
    static_assert(
        (std::is_convertible_v<Args&&, Params> && ...),
        "LaunchKernel: an argument does not convert to the kernel's parameter type");
    details::launch_converted<Params...>(config, location, kernel, static_cast<Args&&>(args)...);
  }
}

}  // namespace host
