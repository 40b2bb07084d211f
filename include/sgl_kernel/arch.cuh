#pragma once

/// \file arch.cuh
/// \brief The target of device code: `SGL_DEVICE`, the architecture, fixed-width integers.
///
/// Compiles under NVRTC, which has no standard headers.

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
#else
#include <cstddef>
#include <cstdint>
#endif

#if defined(USE_ROCM)
#include <hip/hip_runtime.h>
#elif defined(__HIP__)
#error "hipcc needs -DUSE_ROCM, which load_jit passes"
#endif

/// A device function that is always inlined.
#define SGL_DEVICE __forceinline__ __device__
/// A function for host and device, such as one that sizes both a launch and an array.
#define SGL_HOST_DEVICE __forceinline__ __host__ __device__

/// The target as major * 100 + minor * 10. The build passes it to the host pass and the device pass, so that a constant
/// that depends on it (a vector's largest width) is the same in both.
#if !defined(SGL_CUDA_ARCH)
#if defined(__CUDA_ARCH__)
#define SGL_CUDA_ARCH __CUDA_ARCH__
#else
#define SGL_CUDA_ARCH 0
#endif
#elif defined(__CUDA_ARCH__)
#if SGL_CUDA_ARCH != __CUDA_ARCH__
#error "SGL_CUDA_ARCH is not the architecture that this pass compiles for"
#endif
#endif

#define SGL_ARCH_AMPERE_OR_GREATER (SGL_CUDA_ARCH >= 800)
#define SGL_ARCH_HOPPER_OR_GREATER (SGL_CUDA_ARCH >= 900)
#define SGL_ARCH_BLACKWELL_OR_GREATER (SGL_CUDA_ARCH >= 1000)

namespace device {

/// \brief Lanes of a warp. On ROCm, too: a wave of 64 lanes holds two warps there (impl/hip.cuh).
inline constexpr uint32_t kWarpThreads = 32;
/// \brief The mask of all lanes of a warp.
inline constexpr uint32_t kFullMask = 0xffffffffu;

namespace details {

// NVRTC has no <type_traits>. Concepts, because it puts each constant into the cubin of each kernel that names it:
// thirty of them are a fiftieth of a compile and a fifth of a cubin.
template <typename T, typename U>
struct Same;
template <typename T>
struct Same<T, T> {};
template <typename T, typename U>
concept is_same = requires { Same<T, U>{}; };
/// Whether `T` is one of `Ts`.
template <typename T, typename... Ts>
concept is_any_of = (is_same<T, Ts> || ...);
/// False, but only once `T` is known: for a `static_assert` in a branch that must not be taken.
template <typename T>
inline constexpr bool always_false = false;
template <bool kCondition, typename T, typename U>
struct Conditional {
  using type = T;
};
template <typename T, typename U>
struct Conditional<false, T, U> {
  using type = U;
};
template <bool kCondition, typename T, typename U>
using conditional_t = typename Conditional<kCondition, T, U>::type;

}  // namespace details

}  // namespace device
