#pragma once

#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

/// \file impl/norm.cuh
/// \brief Building blocks of RMSNorm over rows of fp16 or bf16: which threads share a row, and what each computes.
///
/// Two ways, by the length of the row: up to 256 elements a warp shares it, beyond that a block does, with 16 bytes for
/// each thread.
/// \code
///   using vec_t = norm::StorageType<bf16_t, 4096>;             // 16 bytes, for host::norm::get_cta_threads = 512
///   __shared__ float smem[norm::kSmemBufferSize];
///   const auto mem = tile::Memory<vec_t>::cta();
///   const auto y = norm::apply_rmsnorm_cta<4096>(mem.load(x), mem.load(w), eps, smem);
///   mem.store(out, y);
/// \endcode
/// Compiles under NVRTC. The functions of `host::norm` are `constexpr` and serve both sides.

namespace host::norm {

/// \brief Whether rows of `kDim` elements of `T` are provided for.
template <typename T, int64_t kDim>
[[nodiscard]] SGL_HOST_DEVICE constexpr bool is_config_supported() {
  if (!device::details::is_any_of<T, fp16_t, bf16_t>) return false;
  if (kDim <= 256) return kDim == 64 || kDim == 128 || kDim == 256;
  return kDim % 256 == 0 && kDim <= 8192;
}

/// \brief Whether a block shares a row (else a warp does).
template <typename T, int64_t kDim>
[[nodiscard]] SGL_HOST_DEVICE constexpr bool should_use_cta() {
  static_assert(
      is_config_supported<T, kDim>(),
      "norm: rows are of fp16_t or bf16_t, with 64, 128, 256 or a multiple of 256 up to 8192 elements");
  return kDim > 256;
}

/// \brief How many threads share a row when a block does: 512 for 4096 elements.
template <typename T, int64_t kDim>
[[nodiscard]] SGL_HOST_DEVICE constexpr uint32_t get_cta_threads() {
  static_assert(should_use_cta<T, kDim>(), "norm: rows of up to 256 elements are for a warp, not for a block");
  return static_cast<uint32_t>(kDim / 256) * device::kWarpThreads;
}

}  // namespace host::norm

namespace device::norm {

/// \brief Floats of shared memory that `apply_rmsnorm_cta` wants: one for each warp, and one spare.
inline constexpr uint32_t kSmemBufferSize = kWarpThreads + 1;

/// \brief What one thread holds of a row, in packed pairs: 16 bytes of a row that a block shares, a 32nd of one that a
/// warp shares.
template <typename T, int64_t kDim>
using StorageType = AlignedVector<packed_t<T>, (kDim > 256 ? 4 : kDim / (2 * kWarpThreads))>;

namespace details {

template <typename Packed, size_t N>
SGL_DEVICE float sum_of_squares(const AlignedVector<Packed, N>& input) {
  float sum = 0.0f;
#pragma unroll
  for (size_t i = 0; i < N; ++i) {
    const auto [x, y] = cast<fp32x2_t>(input[i]);
    sum += x * x;
    sum += y * y;
  }
  return sum;
}

template <typename Packed, size_t N>
SGL_DEVICE auto scale(const AlignedVector<Packed, N>& input, const AlignedVector<Packed, N>& weight, float factor)
    -> AlignedVector<Packed, N> {
  AlignedVector<Packed, N> output;
#pragma unroll
  for (size_t i = 0; i < N; ++i) {
    const auto [x, y] = cast<fp32x2_t>(input[i]);
    const auto [u, v] = cast<fp32x2_t>(weight[i]);
    output[i] = cast<Packed>(fp32x2_t{x * factor * u, y * factor * v});
  }
  return output;
}

}  // namespace details

/// \brief Normalise a row that a warp shares: x / sqrt(mean(x^2) + eps) * weight, in fp32, rounded once.
///
/// All lanes of the warp call; each gets its own elements back. No shared memory, nobody synchronises.
template <int64_t kDim, typename Vec>
[[nodiscard]] SGL_DEVICE Vec apply_rmsnorm_warp(const Vec& input, const Vec& weight, float eps) {
  static_assert(kDim <= 256, "norm: a warp normalises rows of up to 256 elements, use apply_rmsnorm_cta");
  const float sum = warp::reduce_sum(details::sum_of_squares(input));
  return details::scale(input, weight, math::rsqrt(sum / kDim + eps));
}

/// \brief Normalise a row that a block shares.
///
/// All threads of the block call, with `kSmemBufferSize` floats of shared memory; each gets its own elements back. It
/// synchronises inside; before `smem` is used again, the caller does.
template <int64_t kDim, typename Vec>
[[nodiscard]] SGL_DEVICE Vec apply_rmsnorm_cta(const Vec& input, const Vec& weight, float eps, float* smem) {
  static_assert(kDim > 256, "norm: a block normalises rows of more than 256 elements, use apply_rmsnorm_warp");
  cta::reduce_sum(details::sum_of_squares(input), smem);
  __syncthreads();
  return details::scale(input, weight, math::rsqrt(smem[0] / kDim + eps));
}

}  // namespace device::norm
