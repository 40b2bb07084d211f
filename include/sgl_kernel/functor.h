#pragma once

/// \file functor.h
/// \brief Functions of one element that every compiler reads: g++ for the CPU, NVRTC and nvcc for the device.
///
/// A functor of a row operation (row_map.h) is written once, in float:
/// \code
///   struct Silu {
///     SGL_HD float operator()(float x) const { return x / (1 + sgl::exp(-x)); }
///   };
/// \endcode
/// On the device the functions of namespace `sgl` are CUDA's, within 2 ulp. On the CPU `sgl::exp` has no branch and no
/// call, so that a loop over it vectorises; the others are the C library's.
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
SGL_DEFINE_FUNCTION(erfc)
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

/// \brief e to the power of `x`: infinity above 88.72, 0 below -103.97, NaN for NaN.
SGL_HD float exp(float x) {
#if defined(__CUDACC__)
  return ::expf(x);
#else
  // exp(x) = 2^n * exp(r) with n = round(x / ln 2), so |r| <= 0.347, where eight terms of the series leave 2^-27. The
  // multiple of ln 2 is taken away in two parts, the first of which is exact (Cody and Waite's reduction). 2^n comes in
  // two factors, since n reaches beyond the exponents of a float.
  constexpr std::uint32_t kMagnitude = 0x7fffffff;
  constexpr std::uint32_t kInfinity = 255u << 23;
  const auto to_bits = [](float value) { return __builtin_bit_cast(std::uint32_t, value); };
  const auto from_bits = [](std::uint32_t value) { return __builtin_bit_cast(float, value); };
  const auto power = [=](std::int32_t n) { return from_bits(static_cast<std::uint32_t>(n + 127) << 23); };
  const std::uint32_t magnitude = to_bits(x) & kMagnitude;
  const std::uint32_t limit = to_bits(105.0f);
  const float limited = from_bits((to_bits(x) & ~kMagnitude) | (magnitude < limit ? magnitude : limit));
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added to it, a float is rounded to an integer in its low bits
  const float rounded = limited * 1.44269504f + kRounder;
  const auto n = static_cast<std::int32_t>(to_bits(rounded) - to_bits(kRounder));
  const float multiple = rounded - kRounder;
  const float r = (limited - multiple * 0.693359375f) + multiple * 2.12194440e-4f;
  constexpr float kSeries[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
  float sum = 0;
  for (const float term : kSeries) sum = sum * r + term;
  const float result = sum * power(n >> 1) * power(n - (n >> 1));
  // All ones for a NaN; a choice in integers, because one between floats may stay a branch.
  const auto is_nan = static_cast<std::uint32_t>(static_cast<std::int32_t>(kInfinity - magnitude) >> 31);
  return from_bits(to_bits(result) | (is_nan & 0x7fc00000));
#endif
}

/// \brief The larger one; NaN if one is NaN, as torch.maximum.
SGL_HD float max(float a, float b) {
  return a > b || a != a ? a : b;
}

/// \brief The smaller one; NaN if one is NaN, as torch.minimum.
SGL_HD float min(float a, float b) {
  return a < b || a != a ? a : b;
}

/// \brief What a functor with several outputs returns: `return sgl::Values<2>{{a, b}};`.
template <int N>
struct Values {
  float values[N];
};

namespace details {

/// f(first..., x[0], x[1], ...)
template <int kCount, typename F, typename... First>
SGL_HD auto spread(const F& f, const float* x, First... first) {
  static_assert(kCount >= 1 && kCount <= 4, "a row operation takes one to four inputs, with the shared ones");
  if constexpr (kCount == 1) return f(first..., x[0]);
  else if constexpr (kCount == 2) return f(first..., x[0], x[1]);
  else if constexpr (kCount == 3) return f(first..., x[0], x[1], x[2]);
  else return f(first..., x[0], x[1], x[2], x[3]);
}

/// The functor's results for one element of each input.
template <int kOutputs, int kInputs, typename F, typename... First>
SGL_HD Values<kOutputs> call(const F& f, const float (&x)[kInputs], First... first) {
  if constexpr (kOutputs == 1) return {{spread<kInputs>(f, x, first...)}};
  else return spread<kInputs>(f, x, first...);
}

/// f.term(x[0], x[1], ...)
template <int kInputs, typename F>
SGL_HD float term(const F& f, const float (&x)[kInputs]) {
  return spread<kInputs>([&](auto... values) { return f.term(values...); }, x);
}

}  // namespace details

/// \brief How a row reduction combines the terms of a row. A functor names another than the sum as a member:
/// `static constexpr auto kReduction = sgl::Reduction::kMax;`. The maximum ignores NaN.
enum class Reduction { kSum, kMax };

namespace details {

template <typename F>
SGL_HD constexpr bool is_max() {
  if constexpr (requires { F::kReduction; }) return F::kReduction == Reduction::kMax;
  return false;
}
template <typename F>
inline constexpr bool kIsMax = is_max<F>();
template <typename F>
inline constexpr float kIdentity = kIsMax<F> ? __builtin_bit_cast(float, 0xff800000u) : 0.0f;

template <typename F>
SGL_HD float combine(float a, float b) {
  if constexpr (kIsMax<F>) return a < b ? b : a;
  else return a + b;
}

}  // namespace details

}  // namespace sgl
