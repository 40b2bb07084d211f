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

/// \brief A thread's part of a row with the layout kRows: loads number thread, row_threads + thread, ...
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
  /// \brief Reads the part, with zeros beyond the end of the row.
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

/// \brief Whether a kernel lets the next one start before or after it has issued its loads. With a single load for each
/// thread, waiting gains nothing; with more, the next kernel's blocks would take space while this one's still have
/// loads to issue.
template <Layout kRows>
inline constexpr bool kTriggerFirst = kRows.loads_per_thread == 1;

/// \brief input / sqrt(mean(input^2) + eps) * weight for one row in registers; with kPlusOne, * (1 + weight).
///
/// The threads that share the row call; `thread` numbers them. Without a row nothing is read or written.
template <Layout kRows, bool kPlusOne, typename T>
struct RMSNormRow {
 public:
  SGL_DEVICE RMSNormRow(const void* weight, uint32_t thread, bool has_row)
      : m_weight(weight), m_thread(thread), m_has_row(has_row) {}

  SGL_DEVICE void load(const void* input) {
    m_x.load(input, m_thread, m_has_row);
    if constexpr (kRows.weight_first) m_w.load(m_weight, m_thread, m_has_row);
  }
  /// \brief 1 / sqrt(mean(input^2) + eps), in each thread of the row. Calls and synchronisation are those of
  /// `device::norm::row_sum`.
  SGL_DEVICE float factor(float eps, float* smem) const {
    constexpr float kSize = kRows.loads * (kRows.load_bytes / sizeof(T));
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kRows.loads_per_thread; ++i) sum += device::norm::sum_of_squares(m_x.loads[i]);
    return device::math::rsqrt(device::norm::row_sum<kRows.row_threads>(sum, smem) * (1.0f / kSize) + eps);
  }
  SGL_DEVICE void store(void* out, float factor) {
#pragma unroll
    for (uint32_t i = 0; i < kRows.loads_per_thread; ++i) {
      if (!m_x.has(i, m_thread, m_has_row)) continue;
      if constexpr (!kRows.weight_first) m_w.load_one(i, m_weight, m_thread);
      m_x.loads[i] = device::norm::scale<kPlusOne>(m_x.loads[i], m_w.loads[i], factor);
      m_x.store_one(i, out, m_thread);
    }
  }

 private:
  RowPart<kRows, T> m_x, m_w;
  const void* m_weight;
  uint32_t m_thread;
  bool m_has_row;
};

/// \brief The body of an RMSNorm kernel once it knows its row: it waits for the previous kernel, and lets the next one
/// start. Called once, by all threads of a block of `kRows.block_threads`.
template <Layout kRows, bool kPlusOne, typename T>
SGL_DEVICE void rmsnorm_row(
    const void* input, const void* weight, void* out, uint32_t thread, bool has_row, float eps) {
  using namespace device;
  __shared__ float smem[norm::kSmemBufferSize];
  RMSNormRow<kRows, kPlusOne, T> row(weight, thread, has_row);
  if constexpr (kTriggerFirst<kRows>) PDLTriggerSecondary();
  PDLWaitPrimary();
  row.load(input);
  if constexpr (!kTriggerFirst<kRows>) PDLTriggerSecondary();
  row.store(out, row.factor(eps, smem));
}

/// \brief The sum of a value over a block of any size: every thread gets it. Synchronises before and after.
SGL_DEVICE float block_sum(float value) {
  __shared__ float smem[device::kWarpThreads];
  __syncthreads();  // every thread has read the result of the last call
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

/// \brief rmsnorm_row for a row of any size, which is read twice. All threads of a block of any size call, once for
/// each row.
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
