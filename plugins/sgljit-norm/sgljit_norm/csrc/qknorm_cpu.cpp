/// \file qknorm_cpu.cpp
/// \brief RMSNorm over q and k on the CPU. Compiled at the first call with CPU tensors.

#include <sgl_kernel/deferred.h>

#include "norm.h"
#include "qknorm_params.h"

namespace {

template <bool kPlusOne, typename T>
void normalise(const norms::QKNormParams& params, float eps) {
  const auto& [q, k, num_tokens, inverse_heads, triggers_first] = params;
  const auto columns = q.num_heads * q.head_dim + k.num_heads * k.head_dim;
  const auto run = [&](auto vectors, std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
    for (auto token = begin; token < end; ++token) {
      for (const auto* x : {&q, &k}) {
        const sgl::RowOperand heads = {static_cast<char*>(x->data) + token * x->token_stride, x->head_stride};
        const host::cpu::RowJob<3> job = {{heads, {x->weight, 0}, heads}, x->num_heads, x->head_dim};
        host::cpu::reduce_rows<norms::RMSNorm<kPlusOne>, 1, 1, 1, T, T>(vectors, {eps}, job, 0, x->num_heads);
      }
    }
  };
  host::cpu::for_rows(num_tokens, columns, run);
}

/// x / sqrt(mean(x^2) + eps) * weight for each head x of q and of k, in place; Gemma's form with 1 + weight.
void qknorm_on_cpu(const norms::QKNormParams& params, DLDataType dtype, float eps, bool plus_one) {
  host::cpu::with_element_type(dtype, [&]<typename T>(T) {
    return plus_one ? normalise<true, T>(params, eps) : normalise<false, T>(params, eps);
  });
}

}  // namespace
