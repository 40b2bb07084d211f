#pragma once

#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/utils.h>

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <cstdint>

/// \file launch.h
/// \brief `LaunchKernel`: launch a kernel on the caller's stream, with errors that name the place and the launch.
///
/// Host only, no CUDA header: the kind of kernel decides which of CUDA's interfaces is used. `launch.cuh` adds
/// `__global__` functions (the CUDA runtime), `variant.h` kernels that are made at run time (the driver).

// The type that cudaStream_t and CUstream point to.
#if defined(USE_ROCM)
struct ihipStream_t;
#else
struct CUstream_st;
#endif

namespace host {

#if defined(USE_ROCM)
using native_stream_t = ::ihipStream_t*;
#else
using native_stream_t = ::CUstream_st*;
#endif

/// \brief The extent of a grid, a block or a cluster; from one number, from up to three, or from CUDA's `dim3`.
struct Dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;

  constexpr Dim3() = default;
  template <traits::integral X, traits::integral Y = std::uint32_t, traits::integral Z = std::uint32_t>
  constexpr Dim3(X x, Y y = 1, Z z = 1) : x(s_narrow(x)), y(s_narrow(y)), z(s_narrow(z)) {}
  template <typename T>
    requires requires(const T& dim) {
      { dim.x } -> traits::convertible_to<std::uint32_t>;
      { dim.y } -> traits::convertible_to<std::uint32_t>;
      { dim.z } -> traits::convertible_to<std::uint32_t>;
    }
  constexpr Dim3(const T& dim) : x(dim.x), y(dim.y), z(dim.z) {}

  constexpr bool is_empty() const noexcept {
    return x == 0 || y == 0 || z == 0;
  }

 private:
  // A size_t silently truncated to 32 bits would launch a wrong grid.
  template <traits::integral T>
  static constexpr std::uint32_t s_narrow(T value) {
    if (static_cast<std::uint64_t>(value) > 0xffffffffu) [[unlikely]]
      details::raise("ValueError", {"a launch dimension must be between 0 and 4294967295, got ", value});
    return static_cast<std::uint32_t>(value);
  }
};

/// \brief Prints as `<1, 2, 3>`.
[[gnu::cold]] SGL_INLINE void append_to(Message& message, const Dim3& dim);

/// \brief Everything about a launch but the kernel and its arguments.
struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  std::size_t dynamic_smem = 0;
  native_stream_t stream = nullptr;
  std::int32_t device_id = -1;  ///< the device to launch on; -1: the current one
  Dim3 cluster;
  bool pdl = false;
};

namespace details {

/// Throw the error of a CUDA call: its name, number and text, the place, and the launch if it was one.
[[noreturn, gnu::cold]] SGL_INLINE void raise_device_error(
    int error, const char* name, const char* explanation, DebugInfo location, const LaunchConfig* launch = nullptr);

}  // namespace details

/// \brief Launch a kernel: `LaunchKernel(grid, block, device)(kernel, args...)`.
///
/// With a `DLDevice` it takes that device's current stream from the caller's framework, and makes the device current
/// for the launch if it is not. With a stream it launches on that stream, on the current device. An empty grid is not
/// launched: no elements, no work, no error. An error of the launch is thrown with its name, the location of this
/// constructor and the configuration. It does not wait: an error of the kernel itself surfaces at a later call.
///
/// A kernel may have all the shared memory that a block of the device has: nobody needs to raise its limit.
struct LaunchKernel {
 public:
  [[nodiscard]] SGL_INLINE explicit LaunchKernel(
      Dim3 grid_dim, Dim3 block_dim, DLDevice device, std::size_t dynamic_smem = 0, DebugInfo location = {});
  [[nodiscard]] explicit LaunchKernel(
      Dim3 grid_dim, Dim3 block_dim, native_stream_t stream, std::size_t dynamic_smem = 0, DebugInfo location = {})
      : m_config{grid_dim, block_dim, dynamic_smem, stream, -1, {}, false}, m_location(location) {}

  LaunchKernel(const LaunchKernel&) = delete;
  LaunchKernel& operator=(const LaunchKernel&) = delete;

  /// \brief The stream that the caller's framework (PyTorch) has made current on `device`.
  [[nodiscard]] static auto resolve_device(DLDevice device) noexcept -> native_stream_t {
    // The framework's streams are those of the device, also for managed memory.
    const auto type = device.device_type == kDLCUDAManaged ? kDLCUDA : device.device_type;
    return static_cast<native_stream_t>(TVMFFIEnvGetStream(type, device.device_id));
  }

  /// \brief Let the kernel start before its predecessor in the stream has ended (programmatic dependent launch).
  /// Every thread of the kernel must call `device::PDLWaitPrimary` before it reads or writes memory that any earlier
  /// kernel reads or writes. Needs sm_90.
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

  /// \brief Launch. The arguments are converted to the kernel's parameter types; those of a variant only where
  /// nothing is lost.
  template <typename Kernel, typename... Args>
  void operator()(const Kernel& kernel, Args&&... args) const {
    launch_on(m_config, m_location, kernel, static_cast<Args&&>(args)...);  // found by the type of m_config
  }

 private:
  LaunchConfig m_config;
  DebugInfo m_location;
};

}  // namespace host

#if SGL_BODIES

namespace host {

SGL_INLINE void append_to(Message& message, const Dim3& dim) {
  message << '<' << dim.x << ", " << dim.y << ", " << dim.z << '>';
}

namespace details {

/// Whether an error can only come from a kernel that ran: it corrupted the context, and every later call returns it.
/// The runtime and the driver use the same numbers here.
inline bool is_left_by_a_kernel(int error) noexcept {
#if defined(USE_ROCM)
  return error == 700 || error == 719 || error == 710;
#else
  switch (error) {
    case 214:  // uncorrectable ECC error
    case 220:  // uncorrectable NVLink error
    case 700:  // illegal address
    case 702:  // timeout
    case 710:  // assert
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failure
    case 721:  // tensor memory leak
      return true;
    default:
      return false;
  }
#endif
}

SGL_INLINE void raise_device_error(
    int error, const char* name, const char* explanation, DebugInfo location, const LaunchConfig* launch) {
#if defined(USE_ROCM)
  constexpr const char *kRuntime = "HIP", *kSearch = "AMD_SERIALIZE_KERNEL=3";
#else
  constexpr const char *kRuntime = "CUDA", *kSearch = "CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer";
#endif
  Message text;
  text << kRuntime << " error at " << location << ": " << name << " (" << error << "): " << explanation;
  if (is_left_by_a_kernel(error)) {
    text << "\n- A kernel that ran before this call caused it, not this call. Run with " << kSearch
         << " to find that kernel; this process cannot use the device any more.";
  } else if (launch != nullptr) {
    text << "\n- Launch: grid=" << launch->grid << ", block=" << launch->block << ", cluster=" << launch->cluster
         << ", dynamic_smem=" << launch->dynamic_smem << ", pdl=" << launch->pdl;
  }
  throw Error("RuntimeError", text.c_str());
}

}  // namespace details

SGL_INLINE LaunchKernel::LaunchKernel(
    Dim3 grid_dim, Dim3 block_dim, DLDevice device, std::size_t dynamic_smem, DebugInfo location)
    : m_config{grid_dim, block_dim, dynamic_smem, resolve_device(device), device.device_id, {}, false},
      m_location(location) {
  RuntimeCheck(
      location, device.device_type == kDLCUDA || device.device_type == kDLROCM || device.device_type == kDLCUDAManaged,
      "kernels run on CUDA devices, got ", device);
}

}  // namespace host

#endif  // SGL_BODIES
