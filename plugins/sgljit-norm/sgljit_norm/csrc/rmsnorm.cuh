#pragma once

#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

/// \file rmsnorm.cuh
/// \brief The device code of RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight for each row x.
///
/// All arithmetic is in float, rounded to the row's type once, at the end. Rows may be normalised in place: every
/// element is written by the thread that read it last. Compiles under NVRTC.

namespace rmsnorm {

struct Params {
  const void* input;
  const void* weight;
  void* out;
  int64_t input_stride;  // from row to row, in bytes
  int64_t out_stride;    // the same
  int64_t num_tokens;
  int64_t hidden_size;
  float eps;
};

/// Bytes that a thread loads at a time.
inline constexpr uint32_t kLoadBytes = 16;

/// \brief How rows of `kHiddenSize` elements of `T` are laid over threads.
///
/// Up to 2 KiB a row stays within a warp, or within a part of one, and no barrier is needed; several rows then share a
/// block. A longer row has a block to itself. Threads hold more of a row as it grows, up to four loads, so that
/// multiprocessors have enough bytes under way and still several blocks each.
template <typename T, int64_t kHiddenSize>
struct Layout {
  static_assert(kHiddenSize * sizeof(T) % kLoadBytes == 0, "rmsnorm: a row must be a whole number of 16-byte loads");
  static_assert(kHiddenSize * sizeof(T) <= 64 * 1024, "rmsnorm: a row must fit into the registers of a block");

  static constexpr uint32_t kLoads = kHiddenSize * sizeof(T) / kLoadBytes;
  static constexpr bool kInWarp = kLoads <= 4 * device::kWarpThreads;

  SGL_HOST_DEVICE static constexpr uint32_t s_row_threads() {
    if constexpr (kInWarp) {
      uint32_t threads = 1;  // a power of two, for the reduction
      while (threads < device::kWarpThreads && threads < kLoads) threads *= 2;
      return threads;
    } else {
      constexpr uint32_t kLoadsPerThread = kLoads <= 256 ? 1 : kLoads <= 1024 ? 2 : 4;
      return device::div_ceil(device::div_ceil(kLoads, kLoadsPerThread), device::kWarpThreads) * device::kWarpThreads;
    }
  }
  static constexpr uint32_t kRowThreads = s_row_threads();
  static constexpr uint32_t kLoadsPerThread = device::div_ceil(kLoads, kRowThreads);
  static constexpr uint32_t kBlockThreads = kInWarp ? 128 : kRowThreads;
  static constexpr uint32_t kRowsPerBlock = kBlockThreads / kRowThreads;
  // Loading the weight before the reduction hides its latency, where there are registers to hold it.
  static constexpr bool kWeightFirst = kInWarp || kLoadsPerThread <= 2;
  // Where there are not, bound them, so that one block loads while another one waits in its reduction. 0: no bound; any
  // other number, even one that is met anyway, leads the compiler to use more of them.
  static constexpr uint32_t kBlocksPerSM = kWeightFirst ? 0 : 1024 / kBlockThreads;
};

/// \brief Rows of a size known beforehand, held in registers: one read, one write.
///
/// Grid: ceil(num_tokens / Layout::kRowsPerBlock) blocks of Layout::kBlockThreads. Addresses and strides must be
/// multiples of 16 bytes.
template <int64_t kHiddenSize, bool kUsePDL, typename T>
__global__ __launch_bounds__(Layout<T, kHiddenSize>::kBlockThreads, Layout<T, kHiddenSize>::kBlocksPerSM) void kernel(
    const __grid_constant__ Params params) {
  using namespace device;
  using Rows = Layout<T, kHiddenSize>;
  using pair_t = packed_t<T>;
  using vec_t = AlignedVector<pair_t, kLoadBytes / sizeof(pair_t)>;

  const int64_t row = static_cast<int64_t>(blockIdx.x) * Rows::kRowsPerBlock + threadIdx.x / Rows::kRowThreads;
  const uint32_t thread = threadIdx.x % Rows::kRowThreads;
  const void* input = pointer::offset(params.input, row * params.input_stride);
  void* out = pointer::offset(params.out, row * params.out_stride);
  // Which loads are this thread's. Threads without any still take part in the reduction.
  const bool has_row = row < params.num_tokens;
  const auto is_mine = [&](uint32_t index) {
    return has_row && (Rows::kLoads % Rows::kRowThreads == 0 || index < Rows::kLoads);
  };

  PDLWaitPrimary<kUsePDL>();

  vec_t x[Rows::kLoadsPerThread];
  vec_t weight[Rows::kLoadsPerThread];
#pragma unroll
  for (uint32_t i = 0; i < Rows::kLoadsPerThread; ++i) {
    const auto index = i * Rows::kRowThreads + thread;
    if (is_mine(index)) {
      x[i].load(input, index);
      if constexpr (Rows::kWeightFirst) weight[i].load(params.weight, index);
    } else {
      x[i].fill(pair_t{});
    }
  }

  float sum = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < Rows::kLoadsPerThread; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < vec_t::kSize; ++j) {
      const auto [a, b] = cast<fp32x2_t>(x[i][j]);
      sum += a * a;
      sum += b * b;
    }
  }
  if constexpr (Rows::kInWarp) {
    sum = warp::reduce_sum<float, Rows::kRowThreads>(sum);
  } else {
    __shared__ float smem[kWarpThreads];
    cta::reduce_sum(sum, smem);
    __syncthreads();
    sum = smem[0];
  }
  const float scale = math::rsqrt(sum / static_cast<float>(kHiddenSize) + params.eps);

  PDLTriggerSecondary<kUsePDL>();

#pragma unroll
  for (uint32_t i = 0; i < Rows::kLoadsPerThread; ++i) {
    const auto index = i * Rows::kRowThreads + thread;
    if (!is_mine(index)) continue;
    if constexpr (!Rows::kWeightFirst) weight[i].load(params.weight, index);
#pragma unroll
    for (uint32_t j = 0; j < vec_t::kSize; ++j) {
      const auto [a, b] = cast<fp32x2_t>(x[i][j]);
      const auto [u, v] = cast<fp32x2_t>(weight[i][j]);
      x[i][j] = cast<pair_t>(fp32x2_t{a * scale * u, b * scale * v});
    }
    x[i].store(out, index);
  }
}

/// \brief Rows of any size, read twice, `kElements` at a time.
///
/// Any grid, whose blocks share the rows, and any number of threads. Addresses and strides must be multiples of
/// kElements * sizeof(T) bytes, and hidden_size of kElements.
template <uint32_t kElements, bool kUsePDL, typename T>
__global__ void kernel_any_size(const __grid_constant__ Params params) {
  using namespace device;
  using vec_t = AlignedVector<T, kElements>;
  __shared__ float smem[kWarpThreads];

  PDLWaitPrimary<kUsePDL>();

  const int64_t num_loads = params.hidden_size / kElements;
  for (int64_t row = blockIdx.x; row < params.num_tokens; row += gridDim.x) {
    const void* input = pointer::offset(params.input, row * params.input_stride);
    void* out = pointer::offset(params.out, row * params.out_stride);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < num_loads; i += blockDim.x) {
      vec_t x;
      x.load(input, i);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) sum += cast<float>(x[j]) * cast<float>(x[j]);
    }
    cta::reduce_sum(sum, smem);
    __syncthreads();
    const float scale = math::rsqrt(smem[0] / static_cast<float>(params.hidden_size) + params.eps);
    __syncthreads();  // everybody has read smem before the next row writes it

    for (int64_t i = threadIdx.x; i < num_loads; i += blockDim.x) {
      vec_t x, weight;
      x.load(input, i);
      weight.load(params.weight, i);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) x[j] = cast<T>(cast<float>(x[j]) * scale * cast<float>(weight[j]));
      x.store(out, i);
    }
  }
}

}  // namespace rmsnorm
