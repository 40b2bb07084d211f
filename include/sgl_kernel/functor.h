#pragma once

/// \file functor.h
/// \brief Functions of one element that every compiler reads: g++ for the CPU, NVRTC and nvcc for the device.
///
/// What a row program (row_program.h) computes of each element is written once, in float:
/// \code
///   SGL_HD float silu(float x) {
///     return x / (1 + sgl::exp(-x));
///   }
/// \endcode
/// On the device the functions of namespace `sgl` are CUDA's, within 2 ulp, `sgl::erfc` within 4. On the CPU
/// `sgl::exp`, within 2 ulp, and `sgl::erfc`, within 9, have no branch and no call, so that a loop over them
/// vectorises; the others are the C library's.
///
/// Members are those of a call, and named in `SGL_FIELDS` (signature.h).

#include <sgl_kernel/signature.h>

#if defined(__CUDACC__)

#include <sgl_kernel/arch.cuh>

/// A function for both sides, always inlined.
#define SGL_HD SGL_HOST_DEVICE
#define SGL_DEFINE_FUNCTION(NAME) \
  SGL_HD float NAME(float x) {    \
    return ::NAME##f(x);          \
  }

#else

#include <cstdint>

#define SGL_HD [[gnu::always_inline]] inline
#define SGL_DEFINE_FUNCTION(NAME)  \
  SGL_HD float NAME(float x) {     \
    return __builtin_##NAME##f(x); \
  }

#endif

namespace sgl {

SGL_DEFINE_FUNCTION(log)
SGL_DEFINE_FUNCTION(sqrt)
SGL_DEFINE_FUNCTION(tanh)
SGL_DEFINE_FUNCTION(erf)
SGL_DEFINE_FUNCTION(sin)
SGL_DEFINE_FUNCTION(cos)
#undef SGL_DEFINE_FUNCTION

/// \brief One over the square root.
SGL_HD float rsqrt(float x) {
#if defined(__CUDACC__)
  return ::rsqrtf(x);
#else
  return 1 / __builtin_sqrtf(x);
#endif
}

/// \brief The absolute value.
SGL_HD float abs(float x) {
#if defined(__CUDACC__)
  return ::fabsf(x);
#else
  return __builtin_fabsf(x);
#endif
}

#if !defined(__CUDACC__)
namespace details {

SGL_HD std::uint32_t to_bits(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
SGL_HD float from_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
// Choices in integers: one between floats may become a branch, or all that follows is computed for each outcome.

/// The absolute value, at most `limit`.
SGL_HD float limited_abs(float x, float limit) {
  const auto magnitude = to_bits(x) & 0x7fffffff;
  return from_bits(magnitude < to_bits(limit) ? magnitude : to_bits(limit));
}
/// x between -limit and limit.
SGL_HD float limited(float x, float limit) {
  const auto bits = static_cast<std::int32_t>(to_bits(x)), highest = static_cast<std::int32_t>(to_bits(limit));
  const auto above = to_bits(-limit), below = static_cast<std::uint32_t>(bits < highest ? bits : highest);
  return from_bits(below < above ? below : above);
}
/// `result`, or NaN where x is.
SGL_HD float or_nan(float result, float x) {
  constexpr std::uint32_t kInfinity = 255u << 23;
  const auto is_nan =
      static_cast<std::uint32_t>(static_cast<std::int32_t>(kInfinity - (to_bits(x) & 0x7fffffff)) >> 31);
  return from_bits(to_bits(result) | (is_nan & 0x7fc00000));
}

/// exp(x) = 2^exponent * fraction.
struct Power {
  float fraction;
  std::uint32_t exponent;  // and a bias that the caller chose; only the lowest nine bits count
};

/// e to the power of x - low, for |x| <= 105 and 0 <= low <= 0.11.
///
/// exp(x) = 2^n * exp(r) with n = round(x / ln 2), so |r| <= 0.347, where the polynomial, found by weighted least
/// squares, leaves 2^-27. The multiple of ln 2 is taken away in two parts, the first of which is exact (Cody and
/// Waite's reduction).
SGL_HD Power exp_of_difference(float x, float low, int bias) {
  // 1.5 * 2^23: added to it, a float is rounded to an integer in its low bits.
  const float rounder = 12582912.0f + bias;
  const float rounded = x * 1.44269504f + rounder;
  const float multiple = rounded - rounder;
  const float r = (x - multiple * 0.693359375f) + multiple * 2.12194440e-4f - low;
  constexpr float kSeries[] = {8.36751889e-3f, 4.16809134e-2f, 0.166665271f, 0.499999464f, 1.0f, 1.0f};
  float sum = 1.30768109e-3f;
  for (const float term : kSeries) sum = sum * r + term;
  return {sum, to_bits(rounded)};
}

}  // namespace details
#endif

/// \brief The same as `exp`, but any number for NaN: use it where NaN also reaches the result another way, as in
/// x / (1 + exp(-x)).
/// It takes a quarter less on the CPU.
SGL_HD float exp_of_number(float x) {
#if defined(__CUDACC__)
  return ::expf(x);
#else
  // 2^n in two factors, since n reaches beyond the exponents of a float, each with the bias 127.
  const auto [fraction, exponent] = details::exp_of_difference(details::limited(x, 105), 0, 2 * 127);
  const auto half = exponent >> 1;
  return fraction * details::from_bits(half << 23) * details::from_bits((exponent - half) << 23);
#endif
}

/// \brief e to the power of `x`: infinity above 88.72, 0 below -103.97, NaN for NaN.
SGL_HD float exp(float x) {
#if defined(__CUDACC__)
  return ::expf(x);
#else
  return details::or_nan(exp_of_number(x), x);
#endif
}

/// \brief The same as `erfc`, but any number for NaN: use it where NaN also reaches the result another way.
SGL_HD float erfc_of_number(float x) {
#if defined(__CUDACC__)
  return ::erfcf(x);
#else
  // With t = 1 / (z + 2.75), exp(z^2) * erfc(z) / t is a polynomial in 1 - 5.5 t, to 2^-24, found by weighted least
  // squares. exp(-z^2), which goes down to 2^-150, is raised by 2^75, and t lowered. The square is taken in two parts,
  // the first of which is exact: a rounded one would cost up to six bits.
  using namespace details;
  const float z = limited_abs(x, 10.2f);  // from 10.06 on the result is 0
  const float high = from_bits(to_bits(z) & 0xfffff000);
  const auto [fraction, exponent] = exp_of_difference(-(high * high), (z - high) * (z + high), 127 + 75);
  const float low_t = 0x1p-75f / (z + 2.75f);
  const float u = 1 - (5.5f * 0x1p75f) * low_t;
  // Odd and even powers side by side: the chain of operations counts.
  constexpr float kOdd[] = {1.56230468e-03f, -4.60067205e-03f, -2.41958261e-01f, -8.47796917e-01f};
  constexpr float kEven[] = {6.36999845e-04f, -5.83736179e-03f, 7.06678629e-02f, 5.26597321e-01f, 1.06514156e+00f};
  const float square = u * u;
  float odd = kOdd[0], even = kEven[0] * square + kEven[1];
  for (int i = 1; i < 4; ++i) odd = odd * square + kOdd[i], even = even * square + kEven[i + 1];
  const float positive = (odd * u + even) * (fraction * low_t * from_bits(exponent << 23));
  const bool is_negative = static_cast<std::int32_t>(to_bits(x)) < 0;
  return from_bits(is_negative ? to_bits(2 - positive) : to_bits(positive));
#endif
}

/// \brief 1 - erf(x), with all digits of small results.
SGL_HD float erfc(float x) {
#if defined(__CUDACC__)
  return ::erfcf(x);
#else
  return details::or_nan(erfc_of_number(x), x);
#endif
}

/// \brief The larger one; NaN if one is NaN, as torch.maximum.
SGL_HD float max(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));  // nvcc makes three instructions of the other line
  return a;
#else
  return a > b || a != a ? a : b;
#endif
}

/// \brief The smaller one; NaN if one is NaN, as torch.minimum.
SGL_HD float min(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
  return a;
#else
  return a < b || a != a ? a : b;
#endif
}

/// \brief a * b + c; a device rounds it once. In a * b + c * d the compiler of a device chooses which product it does
/// not round, and may choose differently in two kernels. Write fma(a, b, c * d) where both must give the same bits.
SGL_HD float fma(float a, float b, float c) {
#if defined(__CUDACC__)
  return ::fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// \brief Several results of a functor: `return sgl::Values<2>{{a, b}};`.
template <int N>
struct Values {
  enum : int { kCount = N };
  float values[N];
};

/// \brief How the terms of a row are combined. The maximum ignores NaN.
enum class Reduction { kSum, kMax };

namespace details {

template <bool kMax>
inline constexpr float kIdentity = kMax ? __builtin_bit_cast(float, 0xff800000u) : 0.0f;

/// Combines two reduced terms.
template <bool kMax>
struct Reduce {
  SGL_HD float operator()(float a, float b) const {
    if constexpr (!kMax) return a + b;
#if defined(__CUDACC__)
    else return ::fmaxf(a, b);
#else
    else return a < b ? b : a;
#endif
  }
};

template <bool kMax, int N>
SGL_HD void accumulate(Values<N>& reduced, const Values<N>& terms) {
  for (int i = 0; i < N; ++i) reduced.values[i] = Reduce<kMax>{}(reduced.values[i], terms.values[i]);
}

template <typename T>
SGL_HD T declare() noexcept;

}  // namespace details

}  // namespace sgl
