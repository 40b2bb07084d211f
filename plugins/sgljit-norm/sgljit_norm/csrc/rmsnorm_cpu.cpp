/// \file rmsnorm_cpu.cpp
/// \brief RMSNorm on the CPU. Compiled when a CPU tensor is first normalised.

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/deferred.h>

#include "rmsnorm_args.h"

namespace {

/// The sum of squares of a row, exact to float's precision for any length: each lane adds up at most kBlock / kLanes
/// squares in float, and blocks add up in double.
template <typename T>
[[gnu::always_inline]] inline double sum_of_squares(const T* row, std::int64_t hidden_size) {
  using host::cpu::to_float;
  constexpr std::int64_t kLanes = 32;  // independent sums, so that they can be vectors: two of AVX-512, four of AVX2
  constexpr std::int64_t kBlock = 8192;
  double total = 0;
  std::int64_t i = 0;
  while (i + kLanes <= hidden_size) {
    const auto block_end = hidden_size - i < kBlock ? hidden_size : i + kBlock;
    float lanes[kLanes] = {};
    for (; i + kLanes <= block_end; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const float value = to_float(row[i + lane]);
        lanes[lane] += value * value;
      }
    }
    for (const float sum : lanes) total += sum;
  }
  for (; i < hidden_size; ++i) total += static_cast<double>(to_float(row[i])) * to_float(row[i]);
  return total;
}

/// Rows [begin, end) of y = x / sqrt(mean(x^2) + eps) * weight, in float, rounded to T once at the end.
template <typename T>
[[gnu::always_inline]] inline void rmsnorm_rows(const RMSNormArgs& args, std::int64_t begin, std::int64_t end) {
  using host::cpu::from_float, host::cpu::to_float;
  const auto hidden_size = args.hidden_size;
  const auto weight = static_cast<const T*>(args.weight);
  for (auto i = begin; i < end; ++i) {
    const auto input = static_cast<const T*>(args.input) + i * args.input_stride;
    const auto out = static_cast<T*>(args.out) + i * args.out_stride;
    const double mean = sum_of_squares(input, hidden_size) / static_cast<double>(hidden_size);
    const auto scale = static_cast<float>(1 / __builtin_sqrt(mean + args.eps));
    SGL_INDEPENDENT_LOOP
    for (std::int64_t j = 0; j < hidden_size; ++j)
      out[j] = from_float<T>(to_float(input[j]) * scale * to_float(weight[j]));
  }
}

template <typename T>
void rmsnorm_typed(const RMSNormArgs& args) {
  constexpr std::int64_t kElementsPerThread = 1 << 18;  // 60-100 us
  const auto grain = host::div_ceil(kElementsPerThread, args.hidden_size);
  host::cpu::parallel_for(args.num_tokens, grain, [&](std::int64_t begin, std::int64_t end) {
    host::cpu::with_widest_vectors([&]() __attribute__((always_inline)) { rmsnorm_rows<T>(args, begin, end); });
  });
}

/// y = x / sqrt(mean(x^2) + eps) * weight for each row.
void rmsnorm_on_cpu(const RMSNormArgs& args) {
  using host::is_type;
  if (is_type<float>(args.dtype)) return rmsnorm_typed<float>(args);
  if (is_type<fp16_t>(args.dtype)) return rmsnorm_typed<fp16_t>(args);
  rmsnorm_typed<bf16_t>(args);
}

}  // namespace
