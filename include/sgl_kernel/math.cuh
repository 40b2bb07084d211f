#pragma once

#include <sgl_kernel/type.cuh>

/// \file math.cuh
/// \brief Elementary functions on fp32, fp16, bf16 and integers, each under one name.
///
/// Each thread acts by itself, in one to a few instructions. `max` and `min` of floats return the number when one
/// operand is NaN. On fp16 and bf16, `sqrt`, `rsqrt`, `exp`, `sin` and `cos` compute in fp32 and round once. Compiles
/// under NVRTC.

namespace device::math {

/// \brief log2(e) and ln(2).
inline constexpr float log2e = 1.44269504088896340736f;
inline constexpr float loge2 = 0.693147180559945309417f;
/// \brief Infinity; a maximum starts from its negative.
inline constexpr float inf = __builtin_bit_cast(float, 0x7f800000u);
/// \brief The largest finite values of the 8-bit formats.
inline constexpr float FP8_E4M3_MAX = 448.0f;
inline constexpr float FP8_E5M2_MAX = 57344.0f;

namespace details {

using device::details::always_false;
using device::details::is_any_of;
using device::details::is_integer;
using device::details::is_same;

template <typename T>
concept is_half = is_any_of<T, fp16_t, bf16_t>;
template <typename T>
concept is_half2 = is_any_of<T, fp16x2_t, bf16x2_t>;

#if defined(USE_ROCM)
/// A function of halves, or of pairs of them, in fp32. HIP lacks some of CUDA's, and some of its own return NaN.
template <typename F, typename T, typename... U>
SGL_DEVICE T in_fp32(F f, T a, U... b) {
  if constexpr (is_half<T>) {
    return cast<T>(f(cast<fp32_t>(a), cast<fp32_t>(b)...));
  } else {
    return cast<T>(
        fp32x2_t{f(cast<fp32x2_t>(a).x, cast<fp32x2_t>(b).x...), f(cast<fp32x2_t>(a).y, cast<fp32x2_t>(b).y...)});
  }
}
#endif

template <bool kIsMax, typename T>
SGL_DEVICE T extremum(T a, T b) {
  if constexpr (is_same<T, float>) {
    return kIsMax ? ::fmaxf(a, b) : ::fminf(a, b);
  } else if constexpr (is_same<T, double>) {
    return kIsMax ? ::fmax(a, b) : ::fmin(a, b);
#if defined(USE_ROCM)
  } else if constexpr (is_half<T> || is_half2<T>) {
    return in_fp32([](float x, float y) { return kIsMax ? ::fmaxf(x, y) : ::fminf(x, y); }, a, b);
#else
  } else if constexpr (is_half<T>) {
    return kIsMax ? __hmax(a, b) : __hmin(a, b);
  } else if constexpr (is_half2<T>) {
    return kIsMax ? __hmax2(a, b) : __hmin2(a, b);
#endif
  } else {
    static_assert(
        is_integer<T>, "math::max and math::min take fp32, fp64, fp16, bf16, their pairs of 16 bits, or integers");
    return kIsMax == (a < b) ? b : a;
  }
}

}  // namespace details

/// \brief The larger of `a` and `b`; element by element for packed pairs.
template <typename T>
[[nodiscard]] SGL_DEVICE T max(T a, T b) {
  return details::extremum<true>(a, b);
}

/// \brief The smaller of `a` and `b`; element by element for packed pairs.
template <typename T>
[[nodiscard]] SGL_DEVICE T min(T a, T b) {
  return details::extremum<false>(a, b);
}

/// \brief The absolute value; 0.0 for -0.0.
template <typename T>
[[nodiscard]] SGL_DEVICE T abs(T a) {
  if constexpr (details::is_same<T, float>) {
    return ::fabsf(a);
  } else if constexpr (details::is_same<T, double>) {
    return ::fabs(a);
#if defined(USE_ROCM)
  } else if constexpr (details::is_half<T> || details::is_half2<T>) {
    return details::in_fp32([](float x) { return ::fabsf(x); }, a);
#else
  } else if constexpr (details::is_half<T>) {
    return __habs(a);
  } else if constexpr (details::is_half2<T>) {
    return __habs2(a);
#endif
  } else {
    static_assert(
        details::is_integer<T>, "math::abs takes fp32, fp64, fp16, bf16, their pairs of 16 bits, or integers");
    return a < 0 ? static_cast<T>(-a) : a;
  }
}

#define SGL_DEFINE_MATH(NAME, FP32, FP64)                                                                       \
  template <typename T>                                                                                         \
  [[nodiscard]] SGL_DEVICE T NAME(T a) {                                                                        \
    if constexpr (details::is_same<T, double>) {                                                                \
      return FP64(a);                                                                                           \
    } else {                                                                                                    \
      static_assert(                                                                                            \
          details::is_same<T, float> || details::is_half<T>, "math::" #NAME " takes fp32, fp64, fp16 or bf16"); \
      return device::cast<T>(FP32(device::cast<fp32_t>(a)));                                                    \
    }                                                                                                           \
  }

/// \brief The square root.
SGL_DEFINE_MATH(sqrt, ::sqrtf, ::sqrt)
/// \brief One over the square root; within 2 ulp.
SGL_DEFINE_MATH(rsqrt, ::rsqrtf, ::rsqrt)
/// \brief e to the power of `a`.
SGL_DEFINE_MATH(exp, ::expf, ::exp)
/// \brief The sine of `a` in radians.
SGL_DEFINE_MATH(sin, ::sinf, ::sin)
/// \brief The cosine of `a` in radians.
SGL_DEFINE_MATH(cos, ::cosf, ::cos)
#undef SGL_DEFINE_MATH

}  // namespace device::math
