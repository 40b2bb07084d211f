#pragma once

#include <sgl_kernel/utils.h>

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

/// \file launch_config.h
/// \brief How a kernel is to be launched, as plain data: no CUDA header, so host code built by g++ alone can use it.

namespace host {

/// \brief The extent of a grid, a block or a cluster; from one number, from up to three, or from CUDA's `dim3`.
struct Dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;

  constexpr Dim3() = default;
  template <std::integral X, std::integral Y = std::uint32_t, std::integral Z = std::uint32_t>
  constexpr Dim3(X x, Y y = 1, Z z = 1) : x(s_narrow(x)), y(s_narrow(y)), z(s_narrow(z)) {}
  template <typename T>
    requires requires(const T& dim) {
      { dim.x } -> std::convertible_to<std::uint32_t>;
      { dim.y } -> std::convertible_to<std::uint32_t>;
      { dim.z } -> std::convertible_to<std::uint32_t>;
    }
  constexpr Dim3(const T& dim) : x(dim.x), y(dim.y), z(dim.z) {}

  constexpr bool is_empty() const noexcept {
    return x == 0 || y == 0 || z == 0;
  }

 private:
  // A size_t that is silently cut to 32 bits would launch a wrong grid.
  template <std::integral T>
  static constexpr std::uint32_t s_narrow(T value) {
    if (static_cast<std::uint64_t>(value) > 0xffffffffu) [[unlikely]]
      details::raise("ValueError", {"a launch dimension must be between 0 and 4294967295, got ", value});
    return static_cast<std::uint32_t>(value);
  }
};

/// \brief Prints as `<1, 2, 3>`.
[[gnu::cold, gnu::noinline]] inline void append_to(Message& message, const Dim3& dim) {
  message << '<' << dim.x << ", " << dim.y << ", " << dim.z << '>';
}

/// \brief Everything about a launch but the kernel and its arguments.
struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  std::size_t dynamic_smem = 0;
  void* stream = nullptr;
  std::int32_t device_id = -1;  ///< the device to launch on; -1: the current one
  Dim3 cluster;
  bool pdl = false;
};

/// \brief The stream that the caller's framework (PyTorch) has made current on `device`.
[[nodiscard]] inline void* current_stream(DLDevice device) noexcept {
  return TVMFFIEnvGetStream(device.device_type, device.device_id);
}

}  // namespace host
