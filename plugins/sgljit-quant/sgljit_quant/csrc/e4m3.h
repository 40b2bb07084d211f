#pragma once

#include <sgl_kernel/cpu/half.h>

#include <cstdint>

/// \file e4m3.h
/// \brief float to fp8 e4m3 (1 sign, 4 exponent, 3 mantissa bits, no infinity) on the CPU, as a loop that vectorises.

namespace quant {

/// \brief The byte of the nearest e4m3, ties to even, saturated at 448; 0x7f for any NaN.
[[gnu::always_inline]] inline std::uint8_t to_e4m3(float x) {
  using namespace host::cpu::details;
  constexpr std::uint32_t kLargest = 0x43e00000;         // 448
  constexpr std::uint32_t kSmallestNormal = 121u << 23;  // 2^-6
  constexpr std::uint32_t kE4m3Rebias = 120u << 23;      // the exponents' biases are 127 and 7
  constexpr float kSubnormals = 16384.0f;                // its unit in the last place is the smallest subnormal, 2^-9
  constexpr std::uint32_t kNan = 0x7f;
  const auto sign = (to_bits(x) >> 24) & 0x80;
  const auto magnitude = to_bits(x) & kMagnitude;
  const auto saturated = choose(mask_less(magnitude, kLargest), magnitude, kLargest);
  const auto normal = (saturated - kE4m3Rebias + 0x7ffff + ((saturated >> 20) & 1)) >> 20;
  const auto subnormal = to_bits(from_bits(saturated) + kSubnormals) - to_bits(kSubnormals);  // the addition rounds
  const auto number = sign | choose(mask_less(saturated, kSmallestNormal), subnormal, normal);
  return static_cast<std::uint8_t>(choose(mask_less(kInfinity, magnitude), kNan, number));
}

}  // namespace quant
