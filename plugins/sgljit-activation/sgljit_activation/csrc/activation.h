#pragma once

#include <sgl_kernel/quantize.h>
#if !defined(__CUDACC__)
#include <sgl_kernel/cpu/half.h>
#endif

/// \file activation.h
/// \brief The activations: a functor of two floats each, and the program of a row. Read by the C++ compiler for the CPU
/// and by NVRTC for the device.

namespace activation {

/// \brief a / b. On the device within 2 ulp: an exact quotient branches, and takes as long as the exponential.
SGL_HD float divide(float a, float b) {
#if defined(__CUDACC__) && !defined(USE_ROCM)
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
#else
  return a / b;
#endif
}

/// \brief gate / (1 + exp(-gate)) * up
struct SiluAndMul {
  SGL_HD float operator()(float gate, float up) const {
    return divide(gate, 1 + sgl::exp_of_number(-gate)) * up;
  }
};

/// \brief gate * Phi(gate) * up, with the distribution function Phi of the standard normal distribution.
///
/// Phi(x) = erfc(-x / sqrt(2)) / 2: 1 + erf(x / sqrt(2)) would lose the digits of small results.
struct GeluAndMul {
  SGL_HD float operator()(float gate, float up) const {
    constexpr float kSqrtHalf = 0.70710678f;
    return 0.5f * gate * sgl::erfc_of_number(-kSqrtHalf * gate) * up;
  }
};

/// \brief The same with Phi(x) = (1 + tanh(y)) / 2 and y = sqrt(2 / pi) * (x + 0.044715 x^3).
///
/// (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)): nothing is cancelled, and the CPU's loop vectorises.
struct GeluTanhAndMul {
  SGL_HD float operator()(float gate, float up) const {
    constexpr float kTwiceSqrt = 1.5957691f;  // 2 * sqrt(2 / pi)
    return divide(gate, 1 + sgl::exp_of_number(-kTwiceSqrt * (gate + 0.044715f * gate * gate * gate))) * up;
  }
};

/// \brief Each element of a row by `F`.
template <typename F>
struct Activated {
  SGL_OPERANDS(gate, up, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = sgl::map(F{}, row[gate], row[up]));
  }
};

/// \brief gate / (1 + exp(-gate)) by an exact quotient, as PyTorch computes it.
struct Silu {
  SGL_HD float operator()(float gate) const {
    return gate / (1 + sgl::exp_of_number(-gate));
  }
};

/// \brief gate * Phi(gate), as `GeluAndMul` and `GeluTanhAndMul` have it.
template <typename F>
struct Gelu {
  SGL_HD float operator()(float gate) const {
    return F{}(gate, 1);
  }
};

/// \brief `F` of the gate, rounded to its dtype, times up: two kernels of PyTorch in one.
template <typename F>
struct RoundedActivated {
  SGL_OPERANDS(gate, up, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto activated = row.round(gate, sgl::map(F{}, row[gate]));
    return sgl::store(out = sgl::map([](float a, float b) { return a * b; }, activated, row[up]));
  }
};

/// \brief gate / (1 + exp(-alpha * gate)) * (up + 1), the gate limited from above, `up` on both sides.
struct ClampedSwiGLU {
  SGL_OPERANDS(gate, up, out)
  float alpha, limit;
  SGL_FIELDS(alpha, limit)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = activated(row, row[gate], row[up]));
  }
  template <typename Row, typename Gate, typename Up>
  SGL_HD auto activated(const Row&, const Gate& gates, const Up& ups) const {
    const auto of_two = [=, *this](float g, float u) {
      const float x = sgl::min(g, limit);
      return divide(x, 1 + sgl::exp_of_number(-alpha * x)) * (sgl::max(sgl::min(u, limit), -limit) + 1);
    };
    return sgl::map(of_two, gates, ups);
  }
};

/// \brief The same with each operation rounded to the dtype of the gate: the kernels of PyTorch, one after the other.
struct RoundedClampedSwiGLU : ClampedSwiGLU {
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = activated(row, row[gate], row[up]));
  }
  template <typename Row, typename Gate, typename Up>
  SGL_HD auto activated(const Row& row, const Gate& gates, const Up& ups) const {
    const auto rounded = [&](const auto& f, const auto&... values) { return row.round(gate, sgl::map(f, values...)); };
    const float factor = alpha, most = limit;
    const auto product = [](float a, float b) { return a * b; };
    const auto x = rounded([=](float g) { return sgl::min(g, most); }, gates);
    const auto y = rounded([=](float u) { return sgl::max(sgl::min(u, most), -most); }, ups);
    const auto scaled = rounded([=](float g) { return g * factor; }, x);
    const auto share = rounded([](float g) { return 1 / (1 + sgl::exp_of_number(-g)); }, scaled);
    const auto more = rounded([](float u) { return u + 1; }, y);
    return sgl::map(product, more, rounded(product, x, share));
  }
};

#if defined(__CUDACC__)
using Float16 = fp16_t;
using Bfloat16 = bf16_t;

template <typename T>
SGL_HD float value_of(unsigned bits) {
  return device::cast<fp32_t>(__builtin_bit_cast(T, static_cast<unsigned short>(bits)));
}
template <typename T>
SGL_HD float rounded_to(float value) {
  return device::cast<fp32_t>(device::cast<T>(value));
}
#else
using Float16 = host::cpu::fp16_t;
using Bfloat16 = host::cpu::bf16_t;

template <typename T>
SGL_HD float value_of(unsigned bits) {
  return host::cpu::to_float(T{static_cast<std::uint16_t>(bits)});
}
template <typename T>
SGL_HD float rounded_to(float value) {
  return host::cpu::to_float(host::cpu::from_float<T>(value));
}
#endif

/// \brief For a program that reads elements of 16 bits in words, and so rounds to their type by itself.
template <typename T>
struct RoundsTo {
  template <typename Operand, typename Value>
  SGL_HD static auto round(Operand, const Value& values) {
    return sgl::map([](float value) { return rounded_to<T>(value); }, values);
  }
};

/// \brief `F` of gates and values in turn: `gate` is bound to words of 32 bits, of one of each.
/// \tparam kRounds whether the result is rounded to the dtype of both.
template <typename F, bool kIsBfloat, bool kRounds = false>
struct Interleaved : F {
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    if constexpr (kIsBfloat) return m_result<Bfloat16>(row[F::gate]);
    else return m_result<Float16>(row[F::gate]);
  }

 private:
  template <typename T, typename Value>
  SGL_HD auto m_result(const Value& words) const {
    const auto first = [](float word) { return value_of<T>(__builtin_bit_cast(unsigned, word) & 0xffff); };
    const auto second = [](float word) { return value_of<T>(__builtin_bit_cast(unsigned, word) >> 16); };
    const RoundsTo<T> row;
    const auto result = F::activated(row, sgl::map(first, words), sgl::map(second, words));
    if constexpr (kRounds) return sgl::store(F::out = row.round(F::out, result));
    else return sgl::store(F::out = result);
  }
};

}  // namespace activation
