/// \file rmsnorm_cpu.cpp
/// \brief RMSNorm on the CPU. Compiled at the first call with a CPU tensor.

#include "norm_args.h"
#include "norm_cpu.h"

namespace {

/// y = x / sqrt(mean(x^2) + eps) * weight for each row.
void rmsnorm_on_cpu(const NormArgs& args) {
  with_element_type(args.dtype, [&]<typename T>(T) {
    for_each_row(args.num_tokens, args.hidden_size, [&](std::int64_t i) __attribute__((always_inline)) {
      rmsnorm_row(
          static_cast<const T*>(args.input) + i * args.input_stride, static_cast<const T*>(args.weight),
          static_cast<T*>(args.out) + i * args.out_stride, args.hidden_size, args.eps, args.plus_one ? 1.0f : 0.0f);
    });
  });
}

}  // namespace
