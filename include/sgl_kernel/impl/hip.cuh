#pragma once

#include <sgl_kernel/arch.cuh>

#include <hip/hip_fp16.h>
#if __has_include(<hip/hip_bf16.h>)
#include <hip/hip_bf16.h>
#define SGL_HIP_BF16 1
#else
#define SGL_HIP_BF16 0
#endif
#if __has_include(<hip/hip_fp8.h>)
#include <hip/hip_fp8.h>
#define SGL_HIP_FP8 HIP_FP8_TYPE_OCP  // 0 for gfx942, whose fp8 is another
#else
#define SGL_HIP_FP8 0
#endif

#include <utility>

/// \file impl/hip.cuh
/// \brief What HIP lacks of CUDA's device code: warps of 32 lanes on waves of 64, bf16 on ROCm 5, vectors that can be
/// taken apart.
///
/// A warp is 32 lanes on every device, since kernels are written for 32: for masks of 32 bits, and for launches whose
/// size the host computes before it knows the device. A wave of 64 lanes holds two warps. Each function here reads the
/// lanes of its own warp alone, so the two may be in different branches. They advance together, though: a warp must
/// not wait in a loop for what the other one writes.
///
/// The functions have CUDA's names and take masks of 32 bits. HIP's own functions of these names, which newer releases
/// have, take masks of 64 bits, and act on waves.

namespace device::details {

template <typename Mask>
concept is_warp_mask = sizeof(Mask) == sizeof(uint32_t);
template <typename T>
concept is_word = sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8;

/// This lane's number in its warp.
SGL_DEVICE int lane_of_warp() {
  return static_cast<int>(__lane_id() % kWarpThreads);
}

/// The value of another lane of this warp, which must be active.
template <is_word T>
SGL_DEVICE T of_lane(T value, int lane) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  int words[kWords] = {};
  memcpy(words, &value, sizeof(value));
  const int address = (static_cast<int>(__lane_id()) - lane_of_warp() + lane) * 4;
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __builtin_amdgcn_ds_bpermute(address, words[i]);
  memcpy(&value, words, sizeof(value));
  return value;
}

/// The bits of a wave that are this lane's warp.
SGL_DEVICE uint32_t of_this_warp(uint64_t wave) {
  return static_cast<uint32_t>(wave >> (__lane_id() & kWarpThreads));
}

}  // namespace device::details

// Of the number of a lane, or of the distance to one, CUDA takes five bits. Those of `width` lanes, a power of two,
// keep to themselves. HIP's functions would read the other warp.
#define SGL_DEFINE_SHUFFLE(NAME, TYPE, SOURCE)                                                       \
  template <device::details::is_warp_mask Mask, device::details::is_word T>                          \
  SGL_DEVICE T NAME(Mask, T value, TYPE which, int width = static_cast<int>(device::kWarpThreads)) { \
    const int lane = device::details::lane_of_warp();                                                \
    [[maybe_unused]] const int first = lane & -width, last = first + width - 1;                      \
    const int given = static_cast<int>(which % device::kWarpThreads);                                \
    return device::details::of_lane(value, SOURCE);                                                  \
  }
SGL_DEFINE_SHUFFLE(__shfl_sync, int, first + given % width)
SGL_DEFINE_SHUFFLE(__shfl_up_sync, unsigned int, lane - given < first ? lane : lane - given)
SGL_DEFINE_SHUFFLE(__shfl_down_sync, unsigned int, lane + given > last ? lane : lane + given)
SGL_DEFINE_SHUFFLE(__shfl_xor_sync, int, (lane ^ given) > last ? lane : lane ^ given)
#undef SGL_DEFINE_SHUFFLE

template <device::details::is_warp_mask Mask>
SGL_DEVICE uint32_t __ballot_sync(Mask mask, int predicate) {
  return device::details::of_this_warp(__ballot(predicate)) & static_cast<uint32_t>(mask);
}
template <device::details::is_warp_mask Mask>
SGL_DEVICE int __any_sync(Mask mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
template <device::details::is_warp_mask Mask>
SGL_DEVICE int __all_sync(Mask mask, int predicate) {
  return __ballot_sync(mask, predicate) == static_cast<uint32_t>(mask);
}
/// The lanes of a wave run together, so this orders their accesses to memory alone.
template <device::details::is_warp_mask Mask>
SGL_DEVICE void __syncwarp(Mask) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
#if HIP_VERSION_MAJOR < 7
SGL_DEVICE void __syncwarp() {
  __syncwarp(device::kFullMask);
}
#endif

// HIP's are of the wave: a mask of 64 bits that a kernel keeps in 32, and 64 for lanes that it reduces by 32.
#define __activemask() (::device::details::of_this_warp(__ballot(1)))
#define warpSize warpSize
#pragma clang deprecated(warpSize, "a wave may have 64 lanes, a warp has device::kWarpThreads = 32: say which you mean")
#pragma clang diagnostic error "-Wdeprecated-pragma"

#if !SGL_HIP_BF16

/// bf16 by the names of newer releases of ROCm: what the other headers and simple kernels need.
struct alignas(2) __hip_bfloat16 {
 public:
  __hip_bfloat16() = default;
  /// Rounds to nearest even.
  SGL_HOST_DEVICE __hip_bfloat16(float value) {
    const auto bits = __builtin_bit_cast(uint32_t, value);
    m_bits = value != value ? 0x7fff : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  SGL_HOST_DEVICE operator float() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(m_bits) << 16);
  }

 private:
  uint16_t m_bits;
};
struct alignas(4) __hip_bfloat162 {
  __hip_bfloat16 x, y;
};

SGL_HOST_DEVICE float __bfloat162float(__hip_bfloat16 value) {
  return value;
}
SGL_HOST_DEVICE __hip_bfloat16 __float2bfloat16(float value) {
  return value;
}
SGL_HOST_DEVICE __hip_bfloat162 __float22bfloat162_rn(float2 value) {
  return {value.x, value.y};
}
#define SGL_DEFINE_OPERATOR(OP)                                                                     \
  SGL_HOST_DEVICE __hip_bfloat16 operator OP(__hip_bfloat16 a, __hip_bfloat16 b) {                  \
    return static_cast<float>(a) OP static_cast<float>(b);                                          \
  }                                                                                                 \
  SGL_HOST_DEVICE __hip_bfloat162 operator OP(const __hip_bfloat162& a, const __hip_bfloat162& b) { \
    return {a.x OP b.x, a.y OP b.y};                                                                \
  }
SGL_DEFINE_OPERATOR(+)
SGL_DEFINE_OPERATOR(-)
SGL_DEFINE_OPERATOR(*)
SGL_DEFINE_OPERATOR(/)
#undef SGL_DEFINE_OPERATOR

#endif

#if !SGL_HIP_FP8
// Declared alone, so that a kernel of fp8 does not compile, and all others do.
struct __hip_fp8_e4m3;
struct __hip_fp8x2_e4m3;
struct __hip_fp8x4_e4m3;
struct __hip_fp8_e5m2;
struct __hip_fp8x2_e5m2;
struct __hip_fp8x4_e5m2;
#endif

// HIP's vectors are classes with a union: `auto [x, y] = pair` needs these.
template <typename T, unsigned kCount>
struct std::tuple_size<HIP_vector_type<T, kCount>> : std::integral_constant<size_t, kCount> {};
template <size_t kIndex, typename T, unsigned kCount>
struct std::tuple_element<kIndex, HIP_vector_type<T, kCount>> {
  using type = T;
};
template <size_t kIndex, typename T, unsigned kCount>
SGL_HOST_DEVICE T get(const HIP_vector_type<T, kCount>& vector) {
  if constexpr (kIndex == 0) return vector.x;
  else if constexpr (kIndex == 1) return vector.y;
  else if constexpr (kIndex == 2) return vector.z;
  else return vector.w;
}
