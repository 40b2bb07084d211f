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

/// \brief The device itself, or for one below zero the current device: 0 in a thread that has made none current.
[[nodiscard]] SGL_INLINE int this_device(int device_id);

/// \brief An attribute of a device by its number in the driver, such as `driver::kMultiprocessorCount`.
[[nodiscard]] SGL_INLINE int get_attribute(int which, int device_id = -1, DebugInfo location = {});

/// \brief What a launch asks about a device each time.
struct Chip {
  std::uint16_t num_sms;         ///< multiprocessors: 132 on an H200
  std::uint16_t threads_per_sm;  ///< the most that a multiprocessor holds: 2048 on an H200
  std::uint16_t cc_major;        ///< compute capability: 9.0 on an H200
  std::uint16_t cc_minor;

  /// \brief Whether a kernel can be launched before its predecessor has ended (`LaunchKernel::enable_pdl`).
  [[nodiscard]] constexpr bool has_pdl() const {
    return cc_major >= 9;
  }
  /// \brief Whether blocks can be launched in clusters, of up to 8 (`LaunchKernel::enable_cluster`).
  [[nodiscard]] constexpr bool has_clusters() const {
    return cc_major >= 9;
  }
};

/// \brief The chip of a device. The driver is asked once in a process.
[[nodiscard]] SGL_INLINE Chip get_chip(int device_id = -1, DebugInfo location = {});

/// \brief The number of multiprocessors: 132 on an H200.
[[nodiscard]] inline auto get_sm_count(int device_id = -1, DebugInfo location = {}) -> std::uint32_t {
  return static_cast<std::uint32_t>(get_attribute(driver::kMultiprocessorCount, device_id, location));
}

/// \brief The major compute capability: 9 on an H200.
[[nodiscard]] inline auto get_cc_major(int device_id = -1, DebugInfo location = {}) -> int {
  return get_attribute(driver::kComputeCapabilityMajor, device_id, location);
}

/// \brief The minor compute capability: 0 on an H200.
[[nodiscard]] inline auto get_cc_minor(int device_id = -1, DebugInfo location = {}) -> int {
  return get_attribute(driver::kComputeCapabilityMinor, device_id, location);
}

/// \brief The maximum dynamic shared memory of a block in bytes: 232448 on an H200.
[[nodiscard]] inline auto get_max_dynamic_smem(int device_id = -1, DebugInfo location = {}) -> std::size_t {
  return static_cast<std::size_t>(get_attribute(driver::kMaxSharedMemoryPerBlockOptin, device_id, location));
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

/// \brief Makes a device current for a scope, if it is not: calls of the driver that take no device need it. A launch
/// has a guard of its own.
struct DeviceGuard {
 public:
  explicit DeviceGuard(std::int32_t device_id, DebugInfo location = {}) {
    driver::device_t current = -1;
    if (driver::api().CtxGetDevice(&current) == driver::kSuccess && current == device_id) [[likely]]
      return;
    m_push(device_id, location);
  }
  ~DeviceGuard() {
    if (m_pushed) [[unlikely]]
      m_pop();
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  [[gnu::cold]] SGL_INLINE void m_push(std::int32_t device_id, DebugInfo location);
  [[gnu::cold]] SGL_INLINE void m_pop() noexcept;

  bool m_pushed = false;
};

}  // namespace host::runtime

#if SGL_BODIES

namespace host::runtime {

SGL_INLINE int this_device(int device_id) {
  if (device_id < 0 && driver::api().CtxGetDevice(&device_id) != driver::kSuccess) return 0;
  return device_id;
}

SGL_INLINE int get_attribute(int which, int device_id, DebugInfo location) {
  int value = 0;
  driver::check(driver::api().DeviceGetAttribute(&value, which, this_device(device_id)), location);
  return value;
}

SGL_INLINE Chip get_chip(int device_id, DebugInfo location) {
  static_assert(sizeof(Chip) == sizeof(std::uint64_t));
  constexpr int kRemembered = 64;
  static std::uint64_t chips[kRemembered] = {};
  device_id = this_device(device_id);
  const bool is_remembered = device_id >= 0 && device_id < kRemembered;
  const std::uint64_t known = is_remembered ? __atomic_load_n(&chips[device_id], __ATOMIC_RELAXED) : 0;
  if (known != 0) [[likely]]
    return __builtin_bit_cast(Chip, known);
  const auto ask = [&](int which) { return static_cast<std::uint16_t>(get_attribute(which, device_id, location)); };
  const Chip chip = {
      ask(driver::kMultiprocessorCount), ask(driver::kMaxThreadsPerMultiprocessor),
      ask(driver::kComputeCapabilityMajor), ask(driver::kComputeCapabilityMinor)};
  if (is_remembered) __atomic_store_n(&chips[device_id], __builtin_bit_cast(std::uint64_t, chip), __ATOMIC_RELAXED);
  return chip;
}

namespace details {

/// The primary context of a device. It is retained once in the process and never released: PyTorch keeps it as well,
/// and a release at exit could come after the driver's own end.
[[gnu::cold, gnu::noinline]] inline driver::context_t primary_context(std::int32_t device_id, DebugInfo location) {
  constexpr std::int32_t kRemembered = 64;
  static driver::context_t contexts[kRemembered] = {};
  const bool is_remembered = device_id >= 0 && device_id < kRemembered;
  driver::context_t context = is_remembered ? __atomic_load_n(&contexts[device_id], __ATOMIC_ACQUIRE) : nullptr;
  if (context != nullptr) return context;
  driver::check(driver::api().DevicePrimaryCtxRetain(&context, device_id), location);
  // Two threads may both retain it, which costs a count.
  if (is_remembered) __atomic_store_n(&contexts[device_id], context, __ATOMIC_RELEASE);
  return context;
}

}  // namespace details

SGL_INLINE void DeviceGuard::m_push(std::int32_t device_id, DebugInfo location) {
  driver::check(driver::api().CtxPushCurrent(details::primary_context(device_id, location)), location);
  m_pushed = true;
}

SGL_INLINE void DeviceGuard::m_pop() noexcept {
  driver::context_t context = nullptr;
  driver::api().CtxPopCurrent(&context);
}

}  // namespace host::runtime

#endif  // SGL_BODIES
