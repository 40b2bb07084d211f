#pragma once

#include <sgl_kernel/signature.h>
#include <sgl_kernel/arch.cuh>
#include <sgl_kernel/ptx.cuh>

#if defined(USE_ROCM)
#include <sgl_kernel/impl/hip.cuh>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

/// \file device.cuh
/// \brief Basics of device code: names of the element types, programmatic dependent launch, pointers. The types of fp8
/// are only declared: fp8.cuh defines them.
///
/// Compiles under NVRTC.

#if !defined(USE_ROCM)
struct __nv_fp8_e4m3;
struct __nv_fp8x2_e4m3;
struct __nv_fp8x4_e4m3;
struct __nv_fp8_e5m2;
struct __nv_fp8x2_e5m2;
struct __nv_fp8x4_e5m2;
#endif

using fp32_t = float;
using fp32x2_t = float2;
using fp32x4_t = float4;
using fp16_t = __half;
using fp16x2_t = __half2;
using int8x2_t = char2;
using uint8x2_t = uchar2;
#if defined(USE_ROCM)
using bf16_t = __hip_bfloat16;
using bf16x2_t = __hip_bfloat162;
using fp8_e4m3_t = __hip_fp8_e4m3;
using fp8x2_e4m3_t = __hip_fp8x2_e4m3;
using fp8x4_e4m3_t = __hip_fp8x4_e4m3;
using fp8_e5m2_t = __hip_fp8_e5m2;
using fp8x2_e5m2_t = __hip_fp8x2_e5m2;
using fp8x4_e5m2_t = __hip_fp8x4_e5m2;
#define SGL_HAS_FP8 SGL_HIP_FP8
#else
using bf16_t = __nv_bfloat16;
using bf16x2_t = __nv_bfloat162;
using fp8_e4m3_t = __nv_fp8_e4m3;
using fp8x2_e4m3_t = __nv_fp8x2_e4m3;
using fp8x4_e4m3_t = __nv_fp8x4_e4m3;
using fp8_e5m2_t = __nv_fp8_e5m2;
using fp8x2_e5m2_t = __nv_fp8x2_e5m2;
using fp8x4_e5m2_t = __nv_fp8x4_e5m2;
#define SGL_HAS_FP8 1
#endif

namespace device {

/// \brief Wait until the kernel before this one in the stream has finished and its writes are visible.
///
/// In a kernel launched with `LaunchKernel::enable_pdl` every thread calls it, before it reads or writes memory that
/// any earlier kernel reads or writes: a kernel that only fills memory, too, or it could end before those that still
/// use this memory, and whoever waits for it would not wait for them. Code above it overlaps with the earlier kernel's
/// end. In any other launch it returns at once, and on a target without the feature (below sm_90) it is nothing: the
/// launch then waits by itself.
SGL_DEVICE void PDLWaitPrimary() {
  ptx::grid_dependency_wait();
}

/// \brief Allow the next kernel in the stream to start, once every block of this one has called this or has ended.
///
/// It is a hint about time, not about memory: the next kernel still sees this one's writes only after its own
/// `PDLWaitPrimary`, which waits for this kernel's end. One call per block is enough. Whether the next kernel starts
/// early depends on its own launch, with `enable_pdl`, and not on this one's.
SGL_DEVICE void PDLTriggerSecondary() {
  ptx::grid_launch_dependents();
}

/// \brief Read a `T` at element `offset` of untyped memory: `load_as<float>(p, 2)` reads bytes 8 to 11.
template <typename T>
[[nodiscard]] SGL_DEVICE T load_as(const void* ptr, int64_t offset = 0) {
  return static_cast<const T*>(ptr)[offset];
}

/// \brief Write a `T` at element `offset` of untyped memory.
template <typename T>
SGL_DEVICE void store_as(void* ptr, T value, int64_t offset = 0) {
  static_cast<T*>(ptr)[offset] = value;
}

/// \brief `a / b` rounded up, for `a >= 0` and `b > 0`, without an intermediate sum.
template <typename T, typename U>
[[nodiscard]] SGL_DEVICE constexpr auto div_ceil(T a, U b) {
  return a / b + (a % b != 0);
}

namespace pointer {

/// \brief `ptr` plus the sum of `offsets` in bytes. Only for `void*`, so that bytes are never mistaken for elements.
template <typename T, typename... U>
[[nodiscard]] SGL_DEVICE void* offset(T* ptr, U... offsets) {
  static_assert(details::is_same<T, void>, "pointer::offset counts bytes: cast the pointer to void* first");
  return static_cast<char*>(ptr) + (int64_t{0} + ... + static_cast<int64_t>(offsets));
}
template <typename T, typename... U>
[[nodiscard]] SGL_DEVICE const void* offset(const T* ptr, U... offsets) {
  static_assert(details::is_same<T, void>, "pointer::offset counts bytes: cast the pointer to const void* first");
  return static_cast<const char*>(ptr) + (int64_t{0} + ... + static_cast<int64_t>(offsets));
}

}  // namespace pointer

}  // namespace device
