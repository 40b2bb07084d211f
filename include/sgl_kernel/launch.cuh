#pragma once

#include <sgl_kernel/launch_config.h>
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
/// \brief Launch kernels on the caller's stream, and turn CUDA's error codes into exceptions that explain themselves.
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
using runtime_stream_t = ::hipStream_t;
#else
using runtime_error_t = ::cudaError_t;
using runtime_stream_t = ::cudaStream_t;
#endif

namespace details {

/// Whether `error` can only come from a kernel that ran: it has ruined the context, and every later call returns it.
inline bool is_left_by_a_kernel(runtime_error_t error) noexcept {
#if defined(USE_ROCM)
  return error == ::hipErrorIllegalAddress || error == ::hipErrorLaunchFailure || error == ::hipErrorAssert;
#else
  switch (error) {
    case ::cudaErrorIllegalAddress:
    case ::cudaErrorLaunchTimeout:
    case ::cudaErrorAssert:
    case ::cudaErrorHardwareStackError:
    case ::cudaErrorIllegalInstruction:
    case ::cudaErrorMisalignedAddress:
    case ::cudaErrorInvalidAddressSpace:
    case ::cudaErrorInvalidPc:
    case ::cudaErrorLaunchFailure:
    case ::cudaErrorTensorMemoryLeak:
    case ::cudaErrorECCUncorrectable:
    case ::cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
#endif
}

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_runtime_error(
    runtime_error_t error, DebugInfo location, const LaunchConfig* launch = nullptr) {
  Message text;
  text << "CUDA error at " << location << ": " << SGL_RUNTIME(GetErrorName)(error) << " (" << static_cast<int>(error)
       << "): " << SGL_RUNTIME(GetErrorString)(error);
  if (is_left_by_a_kernel(error)) {
    text << "\n- It was left by a kernel that ran before this call, not by this call. Run with CUDA_LAUNCH_BLOCKING=1 "
            "or under compute-sanitizer to find that kernel; this process cannot use the device any more.";
  } else if (launch != nullptr) {
    text << "\n- Launch: grid=" << launch->grid << ", block=" << launch->block << ", cluster=" << launch->cluster
         << ", dynamic_smem=" << launch->dynamic_smem << ", pdl=" << launch->pdl;
  }
  throw Error("RuntimeError", text.c_str());
}

/// Makes a device current for the length of a scope.
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
      throw_runtime_error(error, location);
  }
  int m_previous = -1;
};

}  // namespace details

/// \brief Throw a `RuntimeError` with the error's name and the call's place unless `error` is success.
inline void RuntimeDeviceCheck(runtime_error_t error, DebugInfo location = {}) {
  if (error != SGL_RUNTIME(Success)) [[unlikely]] {
    static_cast<void>(SGL_RUNTIME(GetLastError)());  // it is reported now; the next check must not report it again
    details::throw_runtime_error(error, location);
  }
}

/// \brief Check, and clear, what the last CUDA call of this thread left: `kernel<<<...>>>(); RuntimeDeviceCheck();`
inline void RuntimeDeviceCheck(DebugInfo location = {}) {
  RuntimeDeviceCheck(SGL_RUNTIME(GetLastError)(), location);
}

/// \brief Launch a kernel: `LaunchKernel(grid, block, device)(kernel, args...)`.
///
/// With a `DLDevice` it takes that device's current stream from the caller's framework, and makes the device current
/// for the launch if it is not. With a stream it launches on that, on the current device. A grid with no block in it is
/// not launched: no elements, no work, no error. An error of the launch is thrown with its name, the place of this
/// constructor and the configuration. It does not wait: an error of the kernel itself surfaces at some later call.
///
/// `dynamic_smem` beyond 48 KiB is asked for on the kernel's behalf at each launch.
struct LaunchKernel {
 public:
  [[nodiscard]] explicit LaunchKernel(
      Dim3 grid_dim, Dim3 block_dim, DLDevice device, std::size_t dynamic_smem = 0, DebugInfo location = {})
      : m_config{grid_dim, block_dim, dynamic_smem, resolve_device(device), device.device_id, {}, false},
        m_location(location) {
    RuntimeCheck(
        location, device.device_type == kDLCUDA || device.device_type == kDLROCM || device.device_type == kDLCUDAManaged,
        "kernels run on CUDA devices, got ", device);
  }
  [[nodiscard]] explicit LaunchKernel(
      Dim3 grid_dim, Dim3 block_dim, runtime_stream_t stream, std::size_t dynamic_smem = 0, DebugInfo location = {})
      : m_config{grid_dim, block_dim, dynamic_smem, stream, -1, {}, false}, m_location(location) {}

  LaunchKernel(const LaunchKernel&) = delete;
  LaunchKernel& operator=(const LaunchKernel&) = delete;

  /// \brief The stream that is current on `device` for the caller (PyTorch's current stream).
  [[nodiscard]] static auto resolve_device(DLDevice device) noexcept -> runtime_stream_t {
    return static_cast<runtime_stream_t>(current_stream(device));
  }

  /// \brief Let the kernel start before the one ahead of it in the stream has ended (programmatic dependent launch).
  /// The kernel must call `device::PDLWaitPrimary` before it reads what that one wrote. Needs sm_90.
  auto enable_pdl(bool enabled = true) -> LaunchKernel& {
    m_config.pdl = enabled;
    return *this;
  }

  /// \brief Launch in clusters of this many blocks, which must divide the grid. Needs sm_90.
  auto enable_cluster(Dim3 cluster) -> LaunchKernel& {
    m_config.cluster = cluster;
    return *this;
  }

  [[nodiscard]] const LaunchConfig& config() const noexcept {
    return m_config;
  }

  /// \brief Launch. The arguments are converted to the kernel's parameter types.
  template <typename... Params, typename... Args>
  void operator()(void (*kernel)(Params...), Args&&... args) const {
    static_assert(sizeof...(Params) == sizeof...(Args), "LaunchKernel: the kernel takes another number of arguments");
    if constexpr (sizeof...(Params) == sizeof...(Args)) {
      static_assert(
          (std::is_convertible_v<Args&&, Params> && ...),
          "LaunchKernel: an argument does not convert to the kernel's parameter type");
      m_launch_converted<Params...>(kernel, static_cast<Args&&>(args)...);
    }
  }

 private:
  /// The conversions end here: every parameter has its kernel's type, and the address of each is what CUDA wants.
  template <typename... Params>
  void m_launch_converted(void (*kernel)(Params...), Params... params) const {
    void* arguments[sizeof...(Params) + 1] = {const_cast<void*>(static_cast<const void*>(&params))..., nullptr};
    m_launch(reinterpret_cast<const void*>(kernel), arguments);
  }

  [[gnu::noinline]] void m_launch(const void* kernel, void** arguments) const {
    if (m_config.grid.is_empty()) return;
    const details::DeviceGuard guard(m_config.device_id, m_location);
    const auto error = m_enqueue(kernel, arguments);
    if (error != SGL_RUNTIME(Success)) [[unlikely]] {
      static_cast<void>(SGL_RUNTIME(GetLastError)());
      details::throw_runtime_error(error, m_location, &m_config);
    }
  }

#if defined(USE_ROCM)
  runtime_error_t m_enqueue(const void* kernel, void** arguments) const {
    RuntimeCheck(m_location, m_config.cluster.x * m_config.cluster.y * m_config.cluster.z == 1, "ROCm has no clusters");
    const auto& [grid, block, dynamic_smem, stream, device_id, cluster, pdl] = m_config;
    return ::hipLaunchKernel(
        kernel, dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z), arguments, dynamic_smem,
        static_cast<runtime_stream_t>(stream));
  }
#else
  runtime_error_t m_enqueue(const void* kernel, void** arguments) const {
    constexpr std::size_t kSmemWithoutAsking = 48 * 1024;
    if (m_config.dynamic_smem > kSmemWithoutAsking) {
      const auto error = ::cudaFuncSetAttribute(
          kernel, ::cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(m_config.dynamic_smem));
      if (error != ::cudaSuccess) return error;
    }
    ::cudaLaunchAttribute attributes[2];
    ::cudaLaunchConfig_t config = {};
    config.gridDim = dim3(m_config.grid.x, m_config.grid.y, m_config.grid.z);
    config.blockDim = dim3(m_config.block.x, m_config.block.y, m_config.block.z);
    config.dynamicSmemBytes = m_config.dynamic_smem;
    config.stream = static_cast<runtime_stream_t>(m_config.stream);
    config.attrs = attributes;
    if (m_config.pdl) {
      auto& attribute = attributes[config.numAttrs++];
      attribute.id = ::cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    const auto& cluster = m_config.cluster;
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

  LaunchConfig m_config;
  DebugInfo m_location;
};

}  // namespace host
