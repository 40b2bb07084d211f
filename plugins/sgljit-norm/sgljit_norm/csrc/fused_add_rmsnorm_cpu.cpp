/// \file fused_add_rmsnorm_cpu.cpp
/// \brief RMSNorm after a residual addition on the CPU. Compiled at the first call with CPU tensors.

#include "fused_add_args.h"
#include "norm_cpu.h"

namespace {

/// One row. The sum is computed twice instead of stored, because the row is in a cache.
template <typename T>
[[gnu::always_inline]] inline void fused_add_row(
    T* input, T* residual, const T* weight, std::int64_t size, double eps, float weight_bias) {
  using host::cpu::from_float, host::cpu::to_float;
  const double sum = sum_over(size, [=](std::int64_t i) __attribute__((always_inline)) {
    const float x = to_float(input[i]) + to_float(residual[i]);
    return x * x;
  });
  const float factor = inverse_root(sum, size, eps);
  SGL_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < size; ++i) {
    const float x = to_float(input[i]) + to_float(residual[i]);
    residual[i] = from_float<T>(x);
    input[i] = from_float<T>(x * factor * (to_float(weight[i]) + weight_bias));
  }
}

/// residual = input + residual, input = rmsnorm(residual) for each row.
void fused_add_rmsnorm_on_cpu(const FusedAddArgs& args) {
  with_element_type(args.dtype, [&]<typename T>(T) {
    for_each_row(args.num_tokens, args.hidden_size, [&](std::int64_t i) __attribute__((always_inline)) {
      fused_add_row(
          static_cast<T*>(args.input) + i * args.input_stride,
          static_cast<T*>(args.residual) + i * args.residual_stride, static_cast<const T*>(args.weight),
          args.hidden_size, args.eps, args.plus_one ? 1.0f : 0.0f);
    });
  });
}

}  // namespace
