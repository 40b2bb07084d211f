/// \file layernorm_cpu.cpp
/// \brief Layer normalisation on the CPU. Compiled at the first call with a CPU tensor.

#include "norm_args.h"
#include "norm_cpu.h"

namespace {

/// One row; without a bias, `bias` is null.
template <typename T>
[[gnu::always_inline]] inline void layernorm_row(
    const T* input, const T* weight, const T* bias, T* out, std::int64_t size, double eps) {
  using host::cpu::from_float, host::cpu::to_float;
  const double sum = sum_over(size, [=](std::int64_t i) __attribute__((always_inline)) { return to_float(input[i]); });
  // A float is too coarse for the mean of a row far from zero: a second float holds the rest.
  const double exact_mean = sum / static_cast<double>(size);
  const auto mean = static_cast<float>(exact_mean);
  const auto rest = static_cast<float>(exact_mean - static_cast<double>(mean));
  const auto deviation = [=](std::int64_t i)
                             __attribute__((always_inline)) { return (to_float(input[i]) - mean) - rest; };
  const double squares = sum_over(size, [=](std::int64_t i) __attribute__((always_inline)) {
    const float x = deviation(i);
    return x * x;
  });
  const float factor = inverse_root(squares, size, eps);
  if (bias == nullptr) {
    SGL_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < size; ++i) out[i] = from_float<T>(deviation(i) * factor * to_float(weight[i]));
  } else {
    SGL_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < size; ++i)
      out[i] = from_float<T>(deviation(i) * factor * to_float(weight[i]) + to_float(bias[i]));
  }
}

/// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias for each row.
void layernorm_on_cpu(const NormArgs& args) {
  with_element_type(args.dtype, [&]<typename T>(T) {
    for_each_row(args.num_tokens, args.hidden_size, [&](std::int64_t i) __attribute__((always_inline)) {
      layernorm_row(
          static_cast<const T*>(args.input) + i * args.input_stride, static_cast<const T*>(args.weight),
          static_cast<const T*>(args.bias), static_cast<T*>(args.out) + i * args.out_stride, args.hidden_size,
          args.eps);
    });
  });
}

}  // namespace
