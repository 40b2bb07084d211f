/// \file silu_and_mul_cpu.cpp
/// \brief The op for CPU tensors. Compiled when it is first called.

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/utils.h>

#include "silu_and_mul.h"

namespace {

template <typename T>
void silu_and_mul_typed(const swiglu::Params& params) {
  using host::cpu::from_float, host::cpu::to_float;
  constexpr std::int64_t kElementsPerThread = 1 << 14;
  const auto hidden = params.hidden;
  const auto grain = host::div_ceil(kElementsPerThread, hidden);
  host::cpu::parallel_for(params.num_tokens, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto row = begin; row < end; ++row) {
      const auto* gate = static_cast<const T*>(params.input) + row * 2 * hidden;
      auto* out = static_cast<T*>(params.out) + row * hidden;
      for (std::int64_t i = 0; i < hidden; ++i) {
        const float x = to_float(gate[i]);
        out[i] = from_float<T>(x / (1.0f + __builtin_expf(-x)) * to_float(gate[hidden + i]));
      }
    }
  });
}

void silu_and_mul_on_cpu(const swiglu::Params& params, DLDataType dtype) {
  if (host::is_type<float>(dtype)) return silu_and_mul_typed<float>(params);
  if (host::is_type<fp16_t>(dtype)) return silu_and_mul_typed<fp16_t>(params);
  silu_and_mul_typed<bf16_t>(params);
}

}  // namespace
