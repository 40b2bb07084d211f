#pragma once

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/utils.h>

#include <cstdint>

/// \file norm_cpu.h
/// \brief The common code of the CPU kernels: sums over a row, one row of RMSNorm, and the loop over rows.

/// \brief The sum of f(i) for i in [0, size), exact to float's precision for any size: each lane adds at most
/// kBlock / kLanes terms in float, and the sums of blocks are added in double.
/// \param f an always_inline lambda from an index to a float.
template <typename F>
[[gnu::always_inline]] inline double sum_over(std::int64_t size, const F& f) {
  constexpr std::int64_t kLanes = 32;  // independent sums, which fit into vectors: two of AVX-512, four of AVX2
  constexpr std::int64_t kBlock = 8192;
  double total = 0;
  std::int64_t i = 0;
  while (i + kLanes <= size) {
    const auto block_end = size - i < kBlock ? size : i + kBlock;
    float lanes[kLanes] = {};
    for (; i + kLanes <= block_end; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
    }
    for (const float sum : lanes) total += sum;
  }
  for (; i < size; ++i) total += f(i);
  return total;
}

/// \brief 1 / sqrt(sum / size + eps).
[[gnu::always_inline]] inline float inverse_root(double sum, std::int64_t size, double eps) {
  return static_cast<float>(1 / __builtin_sqrt(sum / static_cast<double>(size) + eps));
}

/// \brief out = input / sqrt(mean(input^2) + eps) * (weight + weight_bias) for one row, in float, rounded to T once.
template <typename T>
[[gnu::always_inline]] inline void rmsnorm_row(
    const T* input, const T* weight, T* out, std::int64_t size, double eps, float weight_bias) {
  using host::cpu::from_float, host::cpu::to_float;
  const double sum = sum_over(size, [=](std::int64_t i) __attribute__((always_inline)) {
    const float x = to_float(input[i]);
    return x * x;
  });
  const float factor = inverse_root(sum, size, eps);
  SGL_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < size; ++i)
    out[i] = from_float<T>(to_float(input[i]) * factor * (to_float(weight[i]) + weight_bias));
}

/// \brief Calls `body(i)` for each of `count` rows of `row_size` elements, on several threads if that pays off.
/// \param body an always_inline lambda, compiled for the widest vectors.
template <typename Body>
void for_each_row(std::int64_t count, std::int64_t row_size, const Body& body) {
  constexpr std::int64_t kElementsPerThread = 1 << 18;  // 60-100 us
  host::cpu::parallel_for(
      count, host::div_ceil(kElementsPerThread, row_size), [&](std::int64_t begin, std::int64_t end) {
        host::cpu::with_widest_vectors([&]() __attribute__((always_inline)) {
          for (auto i = begin; i < end; ++i) body(i);
        });
      });
}

/// \brief Calls `f` with a value of a dtype's element type: f(T{}).
template <typename F>
void with_element_type(DLDataType dtype, const F& f) {
  using host::is_type, host::cpu::bf16_t, host::cpu::fp16_t;
  if (is_type<float>(dtype)) return f(float{});
  if (is_type<fp16_t>(dtype)) return f(fp16_t{});
  f(bf16_t{});
}
