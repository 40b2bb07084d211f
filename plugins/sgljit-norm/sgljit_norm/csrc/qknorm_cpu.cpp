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
  host::cpu::for_each_row(num_tokens, columns, [&](auto vectors, std::int64_t token) __attribute__((always_inline)) {
    for (const auto* x : {&q, &k}) {
      for (std::int64_t head = 0; head < x->num_heads; ++head) {
        void* data = static_cast<char*>(x->data) + token * x->token_stride + head * x->head_stride;
        host::cpu::reduce_row<norms::RMSNorm<kPlusOne>, 1, 1, 1, T, T>(
            vectors, {eps}, x->head_dim, head, {data, x->weight, data});
      }
    }
  });
}

/// x / sqrt(mean(x^2) + eps) * weight for each head x of q and of k, in place; Gemma's form with 1 + weight.
void qknorm_on_cpu(const norms::QKNormParams& params, DLDataType dtype, float eps, bool plus_one) {
  host::cpu::with_element_type(dtype, [&]<typename T>(T) {
    return plus_one ? normalise<true, T>(params, eps) : normalise<false, T>(params, eps);
  });
}

}  // namespace
