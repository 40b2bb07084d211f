/// \file qknorm_cpu.cpp
/// \brief RMSNorm over q and k on the CPU. Compiled at the first call with CPU tensors.

#include "norm_cpu.h"
#include "qknorm_args.h"

namespace {

/// Each head of one token, in place.
template <typename T>
[[gnu::always_inline]] inline void normalise_heads(
    const HeadsArgs& heads, std::int64_t token, double eps, float weight_bias) {
  for (std::int64_t head = 0; head < heads.num_heads; ++head) {
    T* data = static_cast<T*>(heads.data) + token * heads.token_stride + head * heads.head_stride;
    rmsnorm_row(data, static_cast<const T*>(heads.weight), data, heads.head_dim, eps, weight_bias);
  }
}

/// x / sqrt(mean(x^2) + eps) * weight for each row x of q and of k.
void qknorm_on_cpu(const QKNormArgs& args) {
  const auto token_size = args.q.num_heads * args.q.head_dim + args.k.num_heads * args.k.head_dim;
  const float weight_bias = args.plus_one ? 1.0f : 0.0f;
  with_element_type(args.dtype, [&]<typename T>(T) {
    for_each_row(args.num_tokens, token_size, [&](std::int64_t token) __attribute__((always_inline)) {
      normalise_heads<T>(args.q, token, args.eps, weight_bias);
      normalise_heads<T>(args.k, token, args.eps, weight_bias);
    });
  });
}

}  // namespace
