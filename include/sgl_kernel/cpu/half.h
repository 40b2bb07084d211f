#pragma once

#include <sgl_kernel/dtype.h>

#include <cstdint>

/// \file cpu/half.h
/// \brief fp16, bf16 and fp8 storage types for CPU kernels, and their conversions from and to float.
///
/// For host code without a CUDA toolkit: a CPU kernel computes in float and stores in these types. A conversion is a
/// handful of integer operations with no branch, table or intrinsic, so that a plain loop over an array vectorises for
/// any instruction set. (The compilers' own `_Float16` does not on x86-64: g++ 12 converts it one by one.) For fp16
/// processors have instructions, which are several times as fast: `elements.h` uses them.
///
/// Rounding is to nearest, ties to even; subnormals, infinities and overflow follow IEEE 754; a NaN stays a NaN.

namespace host::cpu {

/// \brief IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits. 2 bytes, `torch.float16`.
struct fp16_t {
  std::uint16_t bits;
};

/// \brief bfloat16: the upper half of a float. 2 bytes, `torch.bfloat16`.
struct bf16_t {
  std::uint16_t bits;
};

/// \brief 1 sign, 4 exponent, 3 mantissa bits, no infinity. 1 byte, `torch.float8_e4m3fn`.
struct fp8_e4m3_t {
  std::uint8_t bits;
};

/// \brief 1 sign, 5 exponent, 2 mantissa bits. 1 byte, `torch.float8_e5m2`.
struct fp8_e5m2_t {
  std::uint8_t bits;
};

namespace details {

[[gnu::always_inline]] inline std::uint32_t to_bits(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}

[[gnu::always_inline]] inline float from_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// Comparison and choice in integers: `?:` with floating-point arms may stay a branch, because the compiler must assume
// that they can trap, and then the loop stays scalar.

/// All ones where a < b, else zero. Both must be below 2^31.
[[gnu::always_inline]] inline std::uint32_t mask_less(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(a - b) >> 31);
}

/// `yes` where the mask is set, else `no`.
[[gnu::always_inline]] inline std::uint32_t choose(std::uint32_t mask, std::uint32_t yes, std::uint32_t no) {
  return no ^ ((yes ^ no) & mask);
}

[[gnu::always_inline]] inline std::uint32_t smaller(std::uint32_t a, std::uint32_t b) {
  return a < b ? a : b;
}

[[gnu::always_inline]] inline std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return a > b ? a : b;
}

// Values in a float's bits.
inline constexpr std::uint32_t kMagnitude = 0x7fffffff;
inline constexpr std::uint32_t kInfinity = 255u << 23;
inline constexpr std::uint32_t kRebias = 112u << 23;              // the exponents' biases are 127 and 15
inline constexpr std::uint32_t kSmallestNormalHalf = 113u << 23;  // 2^-14
inline constexpr std::uint32_t kHalfOverflow = 143u << 23;        // 2^16

}  // namespace details

/// \brief The value as a float, exactly.
[[gnu::always_inline]] inline float to_float(float x) {
  return x;
}

[[gnu::always_inline]] inline float to_float(bf16_t x) {
  return details::from_bits(static_cast<std::uint32_t>(x.bits) << 16);
}

[[gnu::always_inline]] inline float to_float(fp16_t x) {
#if defined(__aarch64__)
  return __builtin_bit_cast(__fp16, x);  // one instruction, and compilers know its vectors
#else
  using namespace details;
  const auto sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  const auto shifted = static_cast<std::uint32_t>(x.bits & 0x7fff) << 13;
  // Infinity and NaN have exponent 31, which takes the correction twice: 31 + 2 * 112 = 255.
  const auto normal = shifted + kRebias + (~mask_less(shifted, 31u << 23) & kRebias);
  // A subnormal's mantissa with the exponent of 2^-14 is 2^-14 too large.
  const auto subnormal = to_bits(from_bits(shifted | kSmallestNormalHalf) - from_bits(kSmallestNormalHalf));
  const auto quiet_nan = mask_less(31u << 23, shifted) & 0x400000;
  return from_bits(sign | quiet_nan | choose(mask_less(shifted, 1u << 23), subnormal, normal));
#endif
}

[[gnu::always_inline]] inline float to_float(fp8_e5m2_t x) {
  return to_float(fp16_t{static_cast<std::uint16_t>(x.bits << 8)});  // its upper half
}

[[gnu::always_inline]] inline float to_float(fp8_e4m3_t x) {
  using namespace details;
  const std::uint32_t magnitude = x.bits & 0x7f;
  const auto normal = magnitude == 0x7f ? 0x7fc00000 : (magnitude << 20) + (120u << 23);
  const auto number = magnitude < 8 ? to_bits(static_cast<float>(magnitude) * 0x1p-9f) : normal;
  return from_bits(number | static_cast<std::uint32_t>(x.bits & 0x80) << 24);
}

[[gnu::always_inline]] inline float to_float(std::int8_t x) {
  return x;
}

[[gnu::always_inline]] inline float to_float(std::uint8_t x) {
  return x;
}

/// \brief A float rounded to T: `float`, `fp16_t`, `bf16_t`, or a type of 8 bits, which saturates: `fp8_e4m3_t` at 448,
/// `fp8_e5m2_t` at 57344, `std::int8_t` and `std::uint8_t`. NaN is 0 in an integer. Infinity saturates, too.
template <typename T>
T from_float(float x) = delete;

template <>
[[gnu::always_inline]] inline float from_float<float>(float x) {
  return x;
}

namespace details {

/// x rounded to bf16, in the upper half; the lower half is anything.
[[gnu::always_inline]] inline std::uint32_t bf16_bits(float x) {
  const auto bits = to_bits(x);
  const auto rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const bool is_nan = static_cast<std::int32_t>(bits & kMagnitude) > static_cast<std::int32_t>(kInfinity);
  return is_nan ? 0x7fc00000 : rounded;  // rounding would lose its payload
}

}  // namespace details

template <>
[[gnu::always_inline]] inline bf16_t from_float<bf16_t>(float x) {
  return {static_cast<std::uint16_t>(details::bf16_bits(x) >> 16)};
}

template <>
[[gnu::always_inline]] inline fp16_t from_float<fp16_t>(float x) {
#if defined(__aarch64__)
  return __builtin_bit_cast(fp16_t, static_cast<__fp16>(x));
#else
  using namespace details;
  const auto sign = (to_bits(x) >> 16) & 0x8000;
  const auto magnitude = to_bits(x) & kMagnitude;
  const auto finite = smaller(magnitude, kHalfOverflow);
  // The addition rounds: added to 2^13 times its own power of two, the value keeps ten bits after its leading one.
  // Subnormals keep the bits that they would have with the smallest normal power.
  const auto power = larger(finite, kSmallestNormalHalf) & kInfinity;
  const auto large = power + (13u << 23);
  const auto kept = to_bits(from_bits(finite) + from_bits(large)) - large;
  // The leading one among the kept bits raises the exponent by one, so the exponent starts one lower.
  const auto result = ((power - kRebias - (1u << 23)) >> 13) + kept;
  const auto quiet_nan = mask_less(kInfinity, magnitude) & (((magnitude >> 13) & 0x03ff) | 0x0200);
  return {static_cast<std::uint16_t>(sign | result | quiet_nan)};
#endif
}

namespace details {

/// x rounded to fp8 with so many bits of mantissa, in the eight bits from kAt on; the others are anything.
template <int kMantissa, int kAt>
[[gnu::always_inline]] inline std::uint32_t fp8_bits(float x) {
  static_assert(kMantissa == 3 || kMantissa == 2, "fp8_bits: e4m3 or e5m2");
  constexpr std::uint32_t kLargest = kMantissa == 3 ? 0x43e00000 : 0x47600000;  // 448, 57344
  constexpr std::uint32_t kBias = kMantissa == 3 ? 120 : 112;                   // between the exponents' biases
  constexpr std::uint32_t kSmallestNormal = (kBias + 1) << 23;
  const auto magnitude = to_bits(x) & kMagnitude;
  const auto saturated = smaller(magnitude, kLargest);
  // As for fp16, the addition rounds: to so many bits after the leading one, which is then at their place. Bits above
  // the result's seven are lost. The leading one raises the exponent by one.
  constexpr std::uint32_t kRebias = (-(kBias + 1) << kMantissa) & 0x7f;
  const auto power = larger(saturated, kSmallestNormal) & kInfinity;
  const auto kept = to_bits(from_bits(saturated) + from_bits(power + ((23u - kMantissa) << 23) + kRebias));
  const auto number = kept + (power >> (23 - kMantissa));
  // The highest bit is that of a NaN. It takes the sign, and completes the largest number, 0x7e or 0x7b, to 0x7f.
  const auto nan = magnitude + (kMagnitude - kInfinity);
  const auto completed = number | (nan >> 31) << 2 * (3 - kMantissa);
  return choose(0x7fu << kAt, completed << kAt, (to_bits(x) & ~nan) >> (24 - kAt));
}

}  // namespace details

// Shifted down at last: a compiler would narrow each part by itself.
template <>
[[gnu::always_inline]] inline fp8_e4m3_t from_float<fp8_e4m3_t>(float x) {
  return {static_cast<std::uint8_t>(details::fp8_bits<3, 24>(x) >> 24)};
}
template <>
[[gnu::always_inline]] inline fp8_e5m2_t from_float<fp8_e5m2_t>(float x) {
  return {static_cast<std::uint8_t>(details::fp8_bits<2, 24>(x) >> 24)};
}

namespace details {

/// x rounded to an integer of 8 bits; the other bits are anything.
template <typename T>
[[gnu::always_inline]] inline std::uint32_t integer_bits(float x) {
  constexpr bool kSigned = static_cast<T>(-1) < 0;
  constexpr std::uint32_t k127 = 0x42fe0000, k128 = 0x43000000, k255 = 0x437f0000;
  const auto magnitude = to_bits(x) & kMagnitude;
  const auto is_negative = static_cast<std::uint32_t>(static_cast<std::int32_t>(to_bits(x)) >> 31);
  const auto is_nan = mask_less(kInfinity, magnitude);
  const auto most = kSigned ? choose(is_negative, k128, k127) : ~is_negative & k255;
  const auto saturated = smaller(magnitude, most) & ~is_nan;
  // The addition rounds: the sum is 1.5 * 2^23, whose last bit is that of 1, and the integer.
  return to_bits(from_bits(saturated | (is_negative << 31)) + 0x1.8p23f);
}

}  // namespace details

template <>
[[gnu::always_inline]] inline std::int8_t from_float<std::int8_t>(float x) {
  return static_cast<std::int8_t>(details::integer_bits<std::int8_t>(x));
}

template <>
[[gnu::always_inline]] inline std::uint8_t from_float<std::uint8_t>(float x) {
  return static_cast<std::uint8_t>(details::integer_bits<std::uint8_t>(x));
}

#if defined(__x86_64__)
namespace details {

// One vector, with the processor's instruction. In assembler: compilers differ in their names for it, and <immintrin.h>
// takes 0.4 s to compile.
#define SGL_CONVERT_VECTOR(ISA, COUNT)                                                             \
  __attribute__((target(ISA))) inline void convert_vector(const fp16_t(&from)[COUNT], float* to) { \
    std::uint16_t __attribute__((vector_size(2 * COUNT))) halves;                                  \
    float __attribute__((vector_size(4 * COUNT))) floats;                                          \
    __builtin_memcpy(&halves, from, sizeof(halves));                                               \
    asm("vcvtph2ps %1, %0" : "=v"(floats) : "v"(halves));                                          \
    __builtin_memcpy(to, &floats, sizeof(floats));                                                 \
  }                                                                                                \
  __attribute__((target(ISA))) inline void convert_vector(const float* from, fp16_t(&to)[COUNT]) { \
    std::uint16_t __attribute__((vector_size(2 * COUNT))) halves;                                  \
    float __attribute__((vector_size(4 * COUNT))) floats;                                          \
    __builtin_memcpy(&floats, from, sizeof(floats));                                               \
    asm("vcvtps2ph $0, %1, %0" : "=v"(halves) : "v"(floats));                                      \
    __builtin_memcpy(to, &halves, sizeof(halves));                                                 \
  }
SGL_CONVERT_VECTOR("avx", 8)
SGL_CONVERT_VECTOR("avx512f", 16)
#undef SGL_CONVERT_VECTOR

}  // namespace details
#endif

}  // namespace host::cpu

template <>
struct host::dtype_of<host::cpu::fp16_t> {
  static constexpr DLDataType value = {kDLFloat, 16, 1};
};
template <>
struct host::dtype_of<host::cpu::bf16_t> {
  static constexpr DLDataType value = {kDLBfloat, 16, 1};
};

template <>
struct host::dtype_of<host::cpu::fp8_e4m3_t> {
  static constexpr DLDataType value = {kDLFloat8_e4m3fn, 8, 1};
};
template <>
struct host::dtype_of<host::cpu::fp8_e5m2_t> {
  static constexpr DLDataType value = {kDLFloat8_e5m2, 8, 1};
};

namespace host::cpu {

/// \brief Calls `f` with a value of the element type of a float32, float16 or bfloat16 tensor: `f(float{})`.
template <typename F>
void with_element_type(DLDataType dtype, const F& f) {
  if (is_type<float>(dtype)) return f(float{});
  if (is_type<fp16_t>(dtype)) return f(fp16_t{});
  f(bf16_t{});
}

}  // namespace host::cpu

#if !defined(__CUDACC__)
// The names that make_cpp_args gives to torch's types, so that a CPU kernel can be a template over them too.
using fp32_t = float;
using fp16_t = host::cpu::fp16_t;
using bf16_t = host::cpu::bf16_t;
using fp8_e4m3_t = host::cpu::fp8_e4m3_t;
using fp8_e5m2_t = host::cpu::fp8_e5m2_t;
#endif
