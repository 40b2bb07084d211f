#pragma once

#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>

/// \file compat/norm.cuh
/// \brief Building blocks of normalisation over rows: the threads that share a row, and the work of each. For kernels
/// that are ported from SGLang; a new op is a program of row_program.h.
///
/// For whole rows of fp16 or bf16. A warp shares a row of up to 256 elements, a block a longer one, with 16 bytes for
/// each thread.
/// \code
///   using vec_t = norm::StorageType<bf16_t, 4096>;             // 16 bytes, for host::norm::get_cta_threads = 512
///   __shared__ float smem[norm::kSmemBufferSize];
///   const auto mem = tile::Memory<vec_t>::cta();
///   const auto y = norm::apply_rmsnorm_cta<4096>(mem.load(x), mem.load(w), eps, smem);
///   mem.store(out, y);
/// \endcode
/// Their parts serve rows of another length, type or layout: `sum_of_squares`, `row_sum`, `scale`. All functions
/// compute in fp32. Compiles under NVRTC. The functions of `host::norm` are `constexpr` and serve host and device.

namespace host::norm {

/// \brief Whether rows of `kDim` elements of `T` are supported.
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

/// \brief The number of threads of a block that shares a row: 512 for 4096 elements.
template <typename T, int64_t kDim>
[[nodiscard]] SGL_HOST_DEVICE constexpr uint32_t get_cta_threads() {
  static_assert(should_use_cta<T, kDim>(), "norm: rows of up to 256 elements are for a warp, not for a block");
  return static_cast<uint32_t>(kDim / 256) * device::kWarpThreads;
}

}  // namespace host::norm

namespace device::norm {

/// \brief The size of the shared memory of `row_sum` and `apply_rmsnorm_cta` in values: one for each warp.
inline constexpr uint32_t kSmemBufferSize = kWarpThreads;

/// \brief One thread's part of a row, in packed pairs: 16 bytes of a row that a block shares, a 32nd of one that a warp
/// shares.
template <typename T, int64_t kDim>
using StorageType = AlignedVector<packed_t<T>, (kDim > 256 ? 4 : kDim / (2 * kWarpThreads))>;

/// \brief The sum of the squares of a vector of packed pairs. Each thread acts by itself.
template <typename Packed, size_t N>
[[nodiscard]] SGL_DEVICE float sum_of_squares(const AlignedVector<Packed, N>& input) {
  float sum = 0.0f;
#pragma unroll
  for (size_t i = 0; i < N; ++i) {
    const auto [x, y] = cast<fp32x2_t>(input[i]);
    sum += x * x;
    sum += y * y;
  }
  return sum;
}

/// \brief The sum over the `kThreads` threads that share a row: every one of them gets it, the same bits.
///
/// Up to 32 threads, a power of two, are neighbouring lanes of a warp: all lanes of the warp call, without
/// synchronisation, and `smem` is not used. More threads are a whole one-dimensional block of `kThreads`, in whole
/// warps: the call synchronises once inside, and the caller must synchronise before it uses `smem`, `kSmemBufferSize`
/// values, again.
template <uint32_t kThreads>
[[nodiscard]] SGL_DEVICE float row_sum(float value, float* smem) {
  if constexpr (kThreads <= kWarpThreads) {
    return warp::reduce_sum<float, kThreads>(value);
  } else {
    return cta::all_reduce<kThreads>(value, smem, 0.0f, [](float a, float b) { return a + b; });
  }
}

/// \brief `input * factor * weight`, rounded once. Each thread acts by itself.
template <typename Packed, size_t N>
[[nodiscard]] SGL_DEVICE auto scale(
    const AlignedVector<Packed, N>& input, const AlignedVector<Packed, N>& weight, float factor)
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

/// \brief Normalise a row that a warp shares: x / sqrt(mean(x^2) + eps) * weight, in fp32, rounded once.
///
/// All lanes of the warp call; each gets its own elements back. No shared memory, no synchronisation.
template <int64_t kDim, typename Vec>
[[nodiscard]] SGL_DEVICE Vec apply_rmsnorm_warp(const Vec& input, const Vec& weight, float eps) {
  static_assert(kDim <= 256, "norm: a warp normalises rows of up to 256 elements, use apply_rmsnorm_cta");
  const float sum = row_sum<kWarpThreads>(sum_of_squares(input), nullptr);
  return scale(input, weight, math::rsqrt(sum / kDim + eps));
}

/// \brief Normalise a row that a block shares.
///
/// All `host::norm::get_cta_threads` threads of the block call, with `kSmemBufferSize` floats of shared memory; each
/// gets its own elements back. The call synchronises inside; the caller must synchronise before it uses `smem` again.
template <int64_t kDim, typename Vec>
[[nodiscard]] SGL_DEVICE Vec apply_rmsnorm_cta(const Vec& input, const Vec& weight, float eps, float* smem) {
  static_assert(kDim > 256, "norm: a block normalises rows of more than 256 elements, use apply_rmsnorm_warp");
  const float sum = row_sum<kDim / 256 * kWarpThreads>(sum_of_squares(input), smem);
  return scale(input, weight, math::rsqrt(sum / kDim + eps));
}

}  // namespace device::norm
