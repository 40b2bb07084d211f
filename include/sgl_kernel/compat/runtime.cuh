#pragma once

#include <sgl_kernel/compat/device.cuh>
#include <sgl_kernel/runtime.cuh>

#if !defined(USE_ROCM)
#include <cuda.h>
#include <cuda_runtime.h>
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

/// \file compat/runtime.cuh
/// \brief Host code that uses CUDA: checks of the driver's error codes, attributes of kernels, options of a launch.

namespace host {

namespace details {

inline bool is_success(runtime_error_t error) {
  return error == SGL_RUNTIME(Success);
}
inline const char* error_text(runtime_error_t error) {
  return SGL_RUNTIME(GetErrorString)(error);
}
#if !defined(USE_ROCM)
inline bool is_success(::CUresult error) {
  return error == ::CUDA_SUCCESS;
}
/// No function of the driver is linked, so only the number is known.
inline const char* error_text(::CUresult) {
  return "an error of the CUDA driver";
}
#endif

}  // namespace details

#if !defined(USE_ROCM)
/// \brief Throw a `RuntimeError` unless a call of the CUDA driver succeeded.
inline void RuntimeDeviceCheck(::CUresult error, DebugInfo location = {}) {
  if (!details::is_success(error)) [[unlikely]]
    panic(location, "CUDA error: ", details::error_text(error), " (", static_cast<int>(error), ")");
}
#endif

namespace runtime {

namespace details {

struct DeviceID {
  DeviceID(DLDevice device) : value(device.device_id) {}
  DeviceID(std::int32_t id) : value(id) {}
  std::int32_t value;
};

template <auto kKernel>
struct Tag {};

}  // namespace details

/// \brief The address by which a kernel reaches a tensor, in pinned memory of the host too.
[[nodiscard]] inline void* get_device_accessible_ptr(const TensorView& tensor) {
  const auto type = tensor.device().device_type;
  if (type != kDLCPU && type != kDLGPUHost) return tensor.data_ptr();
  void* address = nullptr;
  RuntimeDeviceCheck(SGL_RUNTIME(HostGetDevicePointer)(&address, tensor.data_ptr(), 0));
  return address;
}

/// \brief Call `function` once for each device, for each type of `Tag` and function. Threads that come at the same time
/// may each call it.
template <typename Tag = void, std::invocable F>
void init_per_device(details::DeviceID device, F&& function) {
  static std::uint64_t done = 0;  // not std::atomic, whose header takes as long as all of this one
  const bool known = device.value >= 0 && device.value < 64;
  const std::uint64_t bit = known ? std::uint64_t{1} << device.value : 0;
  if ((__atomic_load_n(&done, __ATOMIC_ACQUIRE) & bit) != 0) return;
  function();
  __atomic_fetch_or(&done, bit, __ATOMIC_RELEASE);
}

#if defined(USE_ROCM)
/// \brief Throw a `RuntimeError` unless a block of the current device has `bytes` bytes: no kernel has to ask for them.
template <typename Kernel>
void set_max_dynamic_smem(Kernel*, std::size_t bytes) {
  RuntimeDeviceCheck(bytes <= get_max_dynamic_smem() ? ::hipSuccess : ::hipErrorInvalidValue);
}
#else
/// \brief major * 10 + minor: 90 on an H200.
[[nodiscard]] inline int get_sm_version(int device_id) {
  return get_cc_major(device_id) * 10 + get_cc_minor(device_id);
}
namespace details {

inline int attribute_of(::cudaDeviceAttr which, int device_id) {
  int value = 0;
  RuntimeDeviceCheck(::cudaDeviceGetAttribute(&value, which, device_id));
  return value;
}

}  // namespace details

/// \brief The most shared memory of a block in bytes; without `opt_in` what a kernel has without asking.
[[nodiscard]] inline std::size_t get_max_smem_per_block(int device_id, bool opt_in = true) {
  return static_cast<std::size_t>(details::attribute_of(
      opt_in ? ::cudaDevAttrMaxSharedMemoryPerBlockOptin : ::cudaDevAttrMaxSharedMemoryPerBlock, device_id));
}

/// \brief Allow a kernel `bytes` bytes of dynamic shared memory on the current device, and more where it has more.
template <typename Kernel>
void set_max_dynamic_smem(Kernel* kernel, std::size_t bytes) {
  const auto address = reinterpret_cast<const void*>(kernel);
  RuntimeDeviceCheck(bytes <= details::most_dynamic_smem(address, {}) ? ::cudaSuccess : ::cudaErrorInvalidValue);
  RuntimeDeviceCheck(host::details::allow_dynamic_smem(address));
}

/// \brief Ask for a share of L1 as shared memory, in percent.
template <typename Kernel>
void set_smem_carveout(Kernel* kernel, int percent) {
  RuntimeDeviceCheck(
      ::cudaFuncSetAttribute(
          reinterpret_cast<const void*>(kernel), ::cudaFuncAttributePreferredSharedMemoryCarveout, percent));
}
#endif

/// \brief `set_max_dynamic_smem`, once for each device.
template <auto kKernel>
void set_max_dynamic_smem_per_device(details::DeviceID device, std::size_t bytes) {
  init_per_device<details::Tag<kKernel>>(device, [=] { set_max_dynamic_smem(kKernel, bytes); });
}

}  // namespace runtime

}  // namespace host

#define CHECK_CUDA(...)                                                                                          \
  if (const auto sgl_error = (__VA_ARGS__); ::host::details::is_success(sgl_error)) [[likely]] {                 \
  } else                                                                                                         \
    SGL_PANIC << "CUDA error: " << ::host::details::error_text(sgl_error) << " (" << static_cast<int>(sgl_error) \
              << "). "
