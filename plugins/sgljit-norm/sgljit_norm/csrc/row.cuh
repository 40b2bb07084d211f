#pragma once

#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/impl/norm.cuh>

#include "norm_params.h"

/// \file row.cuh
/// \brief One row, by the threads that share it: held in registers, or read again where it is too long for that.
///
/// All arithmetic is in float, rounded to the row's type once, at the end. Rows may be normalised in place: every
/// element is written by the thread that read it last. Compiles under NVRTC.

namespace norm_kernels {

/// \brief A thread's part of a row that is laid out as kRows says: loads number thread, row_threads + thread, ...
template <Layout kRows, typename T>
struct RowPart {
 public:
  using pair_t = packed_t<T>;
  static constexpr uint32_t kLoads = kRows.loads_per_thread;
  static constexpr uint32_t kPairs = kRows.load_bytes / sizeof(pair_t);

  device::AlignedVector<pair_t, kPairs> loads[kLoads];

  /// \brief Whether load number `i` is inside the row. A thread with none still takes part in reductions.
  SGL_DEVICE static bool has(uint32_t i, uint32_t thread, bool has_row) {
    return has_row && (kRows.loads % kRows.row_threads == 0 || s_index(i, thread) < kRows.loads);
  }
  /// \brief Reads the part; zeros where there is nothing of the row.
  SGL_DEVICE void load(const void* row, uint32_t thread, bool has_row) {
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      if (has(i, thread, has_row)) {
        load_one(i, row, thread);
      } else {
        loads[i].fill(pair_t{});
      }
    }
  }
  /// \brief Reads load number `i`, which must be inside the row.
  SGL_DEVICE void load_one(uint32_t i, const void* row, uint32_t thread) {
    loads[i].load(row, s_index(i, thread));
  }
  /// \brief Writes load number `i`, which must be inside the row.
  SGL_DEVICE void store_one(uint32_t i, void* row, uint32_t thread) const {
    loads[i].store(row, s_index(i, thread));
  }

 private:
  SGL_DEVICE static constexpr uint32_t s_index(uint32_t i, uint32_t thread) {
    return i * kRows.row_threads + thread;
  }
};

/// \brief When a kernel lets the next one start. With a single load for each thread there is nothing to gain by
/// waiting; with more, blocks of the next kernel would take places while this one's have loads to issue.
template <Layout kRows>
inline constexpr bool kTriggerFirst = kRows.loads_per_thread == 1;

/// \brief out = input / sqrt(mean(input^2) + eps) * weight for one row in registers; with kPlusOne, * (1 + weight).
///
/// All that a kernel does after finding its row: it waits for the kernel before and lets the next one start. Called
/// once, by all threads of a block of `kRows.block_threads`; `thread` counts those that share the row. Without a row
/// (has_row false) nothing is read or written.
template <Layout kRows, bool kPlusOne, bool kUsePDL, typename T>
SGL_DEVICE void rmsnorm_row(
    const void* input, const void* weight, void* out, uint32_t thread, bool has_row, float eps) {
  using namespace device;
  constexpr float kSize = kRows.loads * (kRows.load_bytes / sizeof(T));
  __shared__ float smem[norm::kSmemBufferSize];
  RowPart<kRows, T> x, w;

  PDLTriggerSecondary<kUsePDL && kTriggerFirst<kRows>>();
  PDLWaitPrimary<kUsePDL>();
  x.load(input, thread, has_row);
  if constexpr (kRows.weight_first) w.load(weight, thread, has_row);

  float sum = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < x.kLoads; ++i) sum += norm::sum_of_squares(x.loads[i]);
  const float factor = math::rsqrt(norm::row_sum<kRows.row_threads>(sum, smem) / kSize + eps);

  PDLTriggerSecondary<kUsePDL && !kTriggerFirst<kRows>>();
#pragma unroll
  for (uint32_t i = 0; i < x.kLoads; ++i) {
    if (!x.has(i, thread, has_row)) continue;
    if constexpr (!kRows.weight_first) w.load_one(i, weight, thread);
    x.loads[i] = norm::scale<kPlusOne>(x.loads[i], w.loads[i], factor);
    x.store_one(i, out, thread);
  }
}

/// \brief A value summed over the block, whatever its size: every thread gets it. Synchronises before and after.
SGL_DEVICE float block_sum(float value) {
  __shared__ float smem[device::kWarpThreads];
  __syncthreads();  // everybody has read what the last call left
  device::cta::reduce_sum(value, smem);
  __syncthreads();
  return smem[0];
}

/// \brief Calls f(x[j], i) for this thread's elements x[j] of a row of any size, `kElements` at a time; i counts loads.
template <uint32_t kElements, typename T, typename F>
SGL_DEVICE void for_each_load(const void* row, int64_t size, F f) {
  for (int64_t i = threadIdx.x; i < size / kElements; i += blockDim.x) {
    device::AlignedVector<T, kElements> x;
    x.load(row, i);
    f(x, i);
  }
}

/// \brief As rmsnorm_row, for a row of any size, which is read twice. Called by all threads of a block of any size, as
/// often as there are rows.
///
/// Addresses must be multiples of kElements * sizeof(T) bytes, and `size` of kElements.
template <uint32_t kElements, bool kPlusOne, typename T>
SGL_DEVICE void rmsnorm_any_row(const void* input, const void* weight, void* out, int64_t size, float eps) {
  using namespace device;
  using vec_t = AlignedVector<T, kElements>;
  float sum = 0.0f;
  for_each_load<kElements, T>(input, size, [&](const vec_t& x, int64_t) {
#pragma unroll
    for (uint32_t j = 0; j < kElements; ++j) sum += cast<float>(x[j]) * cast<float>(x[j]);
  });
  const float factor = math::rsqrt(block_sum(sum) / static_cast<float>(size) + eps);
  for_each_load<kElements, T>(input, size, [&](vec_t x, int64_t i) {
    vec_t w;
    w.load(weight, i);
#pragma unroll
    for (uint32_t j = 0; j < kElements; ++j)
      x[j] = cast<T>(cast<float>(x[j]) * factor * (cast<float>(w[j]) + (kPlusOne ? 1.0f : 0.0f)));
    x.store(out, i);
  });
}

}  // namespace norm_kernels
