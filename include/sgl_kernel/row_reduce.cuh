#pragma once

#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/row_reduce_params.h>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/ptx.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>

/// \file row_reduce.cuh
/// \brief The kernels of `host::RowReduce`: each row is reduced, and then mapped with the result. Compiles under NVRTC.
///
/// A kernel with other rows, such as those of two tensors, is made of the same pieces: `ResidentRow` for a row in
/// registers, `reduce_row_generic` for one of any size. An *address* is a function from the number of an operand
/// (inputs, shared rows, outputs) to where the row begins in it.

namespace device {

/// \brief The shared memory of the reductions of one row, in floats.
inline constexpr uint32_t kRowSmem = sgl::kMostTerms * kWarpThreads;

/// \brief The registers that a thread can have where `blocks` blocks of `threads` threads share a multiprocessor, or 0
/// if it does not hold as many. Each of its four schedulers has 16384 for its warps, and deals them out by eights.
SGL_DEVICE constexpr uint32_t registers_of(uint32_t threads, uint32_t blocks) {
  constexpr bool kIsSmall = (SGL_CUDA_ARCH > 800 && SGL_CUDA_ARCH < 900) || SGL_CUDA_ARCH >= 1100;
  constexpr uint32_t kMostThreads = SGL_CUDA_ARCH == 750 ? 1024 : kIsSmall ? 1536 : 2048;
  if (blocks * threads > kMostThreads) return 0;
  const uint32_t warps = div_ceil(blocks * div_ceil(threads, kWarpThreads), 4u);
  return 16384 / (warps * kWarpThreads) / 8 * 8;
}

/// \brief The part of a row that a thread holds in registers: vectors number thread, kThreads + thread, ...
/// \tparam kElements elements of a vector, an even number.
/// \tparam kVectors vectors of a row.
/// \tparam kThreads threads that share a row.
template <typename T, uint32_t kElements, uint32_t kVectors, uint32_t kThreads>
struct RowFragment {
  static_assert(kElements % 2 == 0, "RowFragment: a vector must be of whole pairs");
  static constexpr uint32_t kHeld = div_ceil(kVectors, kThreads);
  static constexpr uint32_t kPairs = kElements / 2;

  AlignedVector<packed_t<T>, kPairs> vectors[kHeld];

  /// \brief Whether vector number `i` of a thread is inside the row.
  SGL_DEVICE static bool in_bounds(uint32_t i, uint32_t thread) {
    return (i + 1) * kThreads <= kVectors || i * kThreads + thread < kVectors;
  }
  SGL_DEVICE void load(const void* row, uint32_t thread) {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (in_bounds(i, thread)) vectors[i].load(row, i * kThreads + thread);
    }
  }
  /// \brief Hides from the compiler what it knows of the elements. It would keep them as floats until they are used
  /// again, in twice the registers.
  SGL_DEVICE void keep_packed() {
    if constexpr (sizeof(packed_t<T>) == sizeof(uint32_t)) {
#pragma unroll
      for (uint32_t i = 0; i < kHeld; ++i) {
#pragma unroll
        for (uint32_t pair = 0; pair < kPairs; ++pair) {
          uint32_t word;
          memcpy(&word, &vectors[i][pair], sizeof(word));
          ptx::forget(word);
          memcpy(&vectors[i][pair], &word, sizeof(word));
        }
      }
    }
  }
  SGL_DEVICE void store_one(uint32_t i, void* row, uint32_t thread) const {
    vectors[i].store(row, i * kThreads + thread);
  }
  /// \brief Both elements of a pair as floats: bf16 widens with one instruction each.
  SGL_DEVICE void widen(uint32_t i, uint32_t pair, float& low, float& high) const {
    const auto wide = cast<fp32x2_t>(vectors[i][pair]);
    low = wide.x;
    high = wide.y;
  }
};

/// \brief A row operation on a row that its threads hold in registers: `load`, `reduce` and `store`, in this order.
///
/// The threads that share the row call; `thread` numbers them. Without a row nothing is read or written.
/// \tparam kThreads a power of two within a warp, else a whole block of whole warps.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <
    typename F, int kInputs, int kShared, int kOutputs, int64_t kColumns, uint32_t kElements, uint32_t kThreads,
    typename T, typename U>
struct ResidentRow {
  static_assert(kColumns % kElements == 0, "row_reduce: a row must be a whole number of vectors");

 public:
  static constexpr uint32_t kVectors = kColumns / kElements;
  static constexpr uint32_t kHeld = div_ceil(kVectors, kThreads);

 private:
  static constexpr bool kCombines = sgl::details::kCombines<F>;
  static constexpr int kKept = sgl::details::kKept<F, kInputs>;
  static constexpr int kEarly = kCombines ? 1 : 0;  // outputs that are written before the reduction
  static constexpr int kLate = kOutputs - kEarly;
  static constexpr uint32_t kPairs = kElements / 2;
  // Registers of a thread. kForRow: the row. kNeeded: the row and all else; elements of two bytes need more, as some of
  // them are floats at a time, unless they were combined to floats before. kForShared: the shared rows.
  static constexpr uint32_t kForRow = kHeld * kElements * kInputs * sizeof(T) / sizeof(uint32_t);
  static constexpr uint32_t kNeeded = kForRow + (sizeof(T) < 4 && !kCombines ? 40 : 24);
  static constexpr uint32_t kForShared = kHeld * kElements * kShared * sizeof(T) / sizeof(uint32_t);
  static constexpr uint32_t kBlockThreads = kThreads > 4 * kWarpThreads ? kThreads : 4 * kWarpThreads;
  // A multiprocessor does well with three rows: one waits for memory, one is reduced, one is stored.
  static constexpr uint32_t kBlocks = kNeeded <= registers_of(kBlockThreads, 3)   ? 3
                                      : kNeeded <= registers_of(kBlockThreads, 2) ? 2
                                                                                  : 1;
  // Early, the latency of the shared rows hides behind that of the inputs, if registers are left to hold them.
  static constexpr bool kSharedFirst = kForRow + kForShared + 24 <= registers_of(kBlockThreads, kBlocks);

 public:
  /// \brief The blocks of a multiprocessor that the compiler must leave registers for, or 0 for no bound: with shared
  /// rows that are loaded early it mostly leaves room for more blocks, and with many vectors it would spill.
  static constexpr uint32_t kLeastBlocks = kSharedFirst || kHeld > 8 ? 0 : kBlocks;

  SGL_DEVICE ResidentRow(const F& f, uint32_t thread, bool has_row) : m_f(f), m_thread(thread), m_has_row(has_row) {}

  template <typename Address>
  SGL_DEVICE void load(const Address& address) {
    if (!m_has_row) return;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) m_inputs[i].load(address(i), m_thread);
    if constexpr (kEstimates) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) m_first[i].load(address(i), m_thread % kWarpThreads);
    }
    if constexpr (kSharedFirst) m_load_shared(address);
  }

  /// \brief The statistic of the row, in each of its threads. `smem`, `kRowSmem` floats, is used by rows of a block
  /// alone, with a barrier; what the functor combines is written here.
  template <typename Address>
  SGL_DEVICE auto reduce(const Address& address, float* smem) {
    if constexpr (kCombines) m_combine(address);
    const auto reduce = [&](const auto& pass) {
      if constexpr (kEstimates && sgl::details::kIsFirst<decltype(pass)>) return m_estimated(pass);
      else return m_reduced(pass, smem);
    };
    constexpr int64_t kFirst = kEstimates ? kWarpThreads * kElements : kColumns;
    return sgl::details::statistic_of(m_f, static_cast<float>(kColumns), reduce, static_cast<float>(kFirst));
  }

  template <typename Address, typename Statistic>
  SGL_DEVICE void store(const Address& address, int64_t row, const Statistic& statistic) {
    if (!m_has_row) return;
    if constexpr (sgl::details::kWritesRows<F>) {
      if (m_thread == 0) m_f.write_row(row, statistic);
    }
    // All loads come before the first store, which the compiler must take for one to their memory.
    if constexpr (!kSharedFirst) m_load_shared(address);
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      if (!m_inputs[0].in_bounds(k, m_thread)) continue;
      RowFragment<U, kElements, kVectors, kThreads> y[kLate];
#pragma unroll
      for (uint32_t j = 0; j < kPairs; ++j) {
        float low[kKept + kShared], high[kKept + kShared];
        m_widen(k, j, low, high);
#pragma unroll
        for (int i = 0; i < kShared; ++i) m_shared[i].widen(k, j, low[kKept + i], high[kKept + i]);
        const auto first = sgl::details::call<kLate>(m_f, low, statistic);
        const auto second = sgl::details::call<kLate>(m_f, high, statistic);
#pragma unroll
        for (int i = 0; i < kLate; ++i)
          y[i].vectors[k][j] = cast<packed_t<U>>(fp32x2_t{first.values[i], second.values[i]});
      }
#pragma unroll
      for (int i = 0; i < kLate; ++i) y[i].store_one(k, address(kInputs + kShared + kEarly + i), m_thread);
    }
  }

 private:
  // Each warp estimates from the first 32 vectors of the row, of at most 4096, by itself, which saves a barrier. That
  // costs a float some bits, which elements of two bytes do not have.
  static constexpr bool kEstimates =
      sgl::details::kEstimates<F> && !kCombines && sizeof(T) < 4 && kThreads > kWarpThreads&& kVectors >= kWarpThreads;
  // A thread with few elements needs few registers, packed or not. Combined values stay floats.
  static constexpr bool kKeepsPacked = kHeld > 2 && !kCombines;

  template <typename Address>
  SGL_DEVICE void m_load_shared(const Address& address) {
#pragma unroll
    for (int i = 0; i < kShared; ++i) m_shared[i].load(address(kInputs + i), m_thread);
  }

  template <typename Address>
  SGL_DEVICE void m_combine(const Address& address) {
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      if (!m_has_row || !m_inputs[0].in_bounds(k, m_thread)) continue;
      RowFragment<U, kElements, kVectors, kThreads> y;
#pragma unroll
      for (uint32_t j = 0; j < kPairs; ++j) {
        float low[kInputs], high[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) m_inputs[i].widen(k, j, low[i], high[i]);
        m_combined[k][j] = {sgl::details::combine_inputs(m_f, low), sgl::details::combine_inputs(m_f, high)};
        y.vectors[k][j] = cast<packed_t<U>>(m_combined[k][j]);
      }
      y.store_one(k, address(kInputs + kShared), m_thread);
    }
  }

  /// Sets `low` and `high` to the kept values of a pair of elements.
  SGL_DEVICE void m_widen(uint32_t k, uint32_t j, float* low, float* high) const {
    if constexpr (kCombines) {
      low[0] = m_combined[k][j].x;
      high[0] = m_combined[k][j].y;
    } else {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) m_inputs[i].widen(k, j, low[i], high[i]);
    }
  }

  /// The terms of the first pass of the first vectors, reduced in each thread.
  template <typename Pass>
  SGL_DEVICE auto m_estimated(const Pass& pass) const {
    constexpr bool kMax = sgl::details::kIsMax<F, Pass>;
    auto reduced = sgl::details::identity<F, kKept, Pass>();
#pragma unroll
    for (uint32_t j = 0; j < kPairs; ++j) {
      float low[kInputs], high[kInputs];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) m_first[i].widen(0, j, low[i], high[i]);
      sgl::details::accumulate<kMax>(reduced, pass.terms(m_f, low));
      sgl::details::accumulate<kMax>(reduced, pass.terms(m_f, high));
    }
    constexpr sgl::details::Reduce<kMax> op;
#pragma unroll
    for (float& value : reduced.values) value = warp::details::reduce<kWarpThreads>(value, kFullMask, op);
    return reduced;
  }

  /// The terms of a pass over the row, reduced in each thread. `smem` moves on, so that the next pass has its own, and
  /// no barrier is between them.
  template <typename Pass>
  SGL_DEVICE auto m_reduced(const Pass& pass, float*& smem) {
    constexpr bool kMax = sgl::details::kIsMax<F, Pass>;
    auto reduced = m_own(pass);
    if constexpr (kKeepsPacked) {
#pragma unroll
      for (auto& input : m_inputs) input.keep_packed();
    }
    constexpr sgl::details::Reduce<kMax> op;
    if constexpr (kThreads > kWarpThreads) {
      cta::all_reduce<kThreads>(reduced.values, smem, sgl::details::kIdentity<kMax>, op);
      smem += reduced.kCount * kWarpThreads;
    } else {
#pragma unroll
      for (float& value : reduced.values) value = warp::details::reduce<kThreads>(value, kFullMask, op);
    }
    return reduced;
  }

  /// This thread's terms of a pass, reduced.
  template <typename Pass>
  SGL_DEVICE auto m_own(const Pass& pass) const {
    constexpr bool kMax = sgl::details::kIsMax<F, Pass>;
    const auto identity = sgl::details::identity<F, kKept, Pass>();
    auto reduced = identity;
    if (!m_has_row) return reduced;
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      if (!m_inputs[0].in_bounds(k, m_thread)) continue;
      auto of_low = identity, of_high = identity;  // short chains: one after the other, additions take four cycles each
#pragma unroll
      for (uint32_t j = 0; j < kPairs; ++j) {
        float low[kKept], high[kKept];
        m_widen(k, j, low, high);
        sgl::details::accumulate<kMax>(of_low, pass.terms(m_f, low));
        sgl::details::accumulate<kMax>(of_high, pass.terms(m_f, high));
      }
      sgl::details::accumulate<kMax>(of_low, of_high);
      sgl::details::accumulate<kMax>(reduced, of_low);
    }
    return reduced;
  }

  const F& m_f;
  uint32_t m_thread;
  bool m_has_row;
  RowFragment<T, kElements, kVectors, kThreads> m_inputs[kInputs];
  RowFragment<T, kElements, kVectors, kThreads> m_shared[kShared > 0 ? kShared : 1];
  RowFragment<T, kElements, kWarpThreads, kWarpThreads> m_first[kInputs];  // the same in each warp
  fp32x2_t m_combined[kCombines ? kHeld : 1][kPairs];
};

/// \brief A row operation on a row of any size, which is read once for each pass and once more, `kElements` elements at
/// a time.
///
/// All threads of a block of whole warps call, once for each row. `smem` is `kRowSmem` floats; rows take two by turns.
/// Addresses must be multiples of kElements elements of their type, and the columns of kElements.
template <
    typename F, int kInputs, int kShared, int kOutputs, uint32_t kElements, typename T, typename U, typename Address>
SGL_DEVICE void reduce_row_generic(const F& f, int64_t columns, int64_t row, float* smem, const Address& address) {
  constexpr bool kCombines = sgl::details::kCombines<F>;
  constexpr int kKept = sgl::details::kKept<F, kInputs>;
  constexpr int kLate = kOutputs - kCombines;
  const int64_t vectors = columns / kElements;
  const auto keep = [&](const AlignedVector<T, kElements>* x, uint32_t j, float* kept) {
    float values[kInputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) values[i] = cast<fp32_t>(x[i][j]);
    if constexpr (kCombines) kept[0] = sgl::details::combine_inputs(f, values);
#pragma unroll
    for (int i = 0; i < kInputs && !kCombines; ++i) kept[i] = values[i];
  };
  const auto statistic = sgl::details::statistic_of(f, static_cast<float>(columns), [&](const auto& pass) {
    constexpr bool kMax = sgl::details::kIsMax<F, decltype(pass)>;
    auto reduced = sgl::details::identity<F, kKept, decltype(pass)>();
    for (int64_t k = threadIdx.x; k < vectors; k += blockDim.x) {
      AlignedVector<T, kElements> x[kInputs];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) x[i].load(address(i), k);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        float kept[kKept];
        keep(x, j, kept);
        sgl::details::accumulate<kMax>(reduced, pass.terms(f, kept));
      }
    }
    cta::all_reduce(reduced.values, smem, sgl::details::kIdentity<kMax>, sgl::details::Reduce<kMax>{});
    smem += reduced.kCount * kWarpThreads;
    return reduced;
  });
  if constexpr (sgl::details::kWritesRows<F>) {
    if (threadIdx.x == 0) f.write_row(row, statistic);
  }
  for (int64_t k = threadIdx.x; k < vectors; k += blockDim.x) {
    AlignedVector<T, kElements> x[kInputs + kShared];
#pragma unroll
    for (int i = 0; i < kInputs + kShared; ++i) x[i].load(address(i), k);
    AlignedVector<U, kElements> y[kOutputs];
#pragma unroll
    for (uint32_t j = 0; j < kElements; ++j) {
      float values[kKept + kShared];
      keep(x, j, values);
#pragma unroll
      for (int i = 0; i < kShared; ++i) values[kKept + i] = cast<fp32_t>(x[kInputs + i][j]);
      const auto results = sgl::details::call<kLate>(f, values, statistic);
      if constexpr (kCombines) y[0][j] = cast<U>(values[0]);
#pragma unroll
      for (int i = 0; i < kLate; ++i) y[kCombines + i][j] = cast<U>(results.values[i]);
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) y[i].store(address(kInputs + kShared + i), k);
  }
}

/// \brief The body of a kernel once it knows its row: it waits for the previous kernel, and lets the next one start.
/// All threads of the block call, once.
template <typename Row, typename Address>
SGL_DEVICE void run_row(Row&& held, int64_t row, bool triggers_first, const Address& address) {
  alignas(16) __shared__ float smem[kRowSmem];
  if (triggers_first) PDLTriggerSecondary();
  PDLWaitPrimary();
  held.load(address);
  PDLTriggerSecondary();
  held.store(address, row, held.reduce(address, smem));
}

/// \brief Rows of a size known at compile time, held in registers: one read, one write.
///
/// Grid: a block for each `kBlock / kThreads` rows. Addresses and strides must be multiples of kElements elements of
/// their type. An output may be an input.
/// \tparam kBlock threads of a block; the others are those of `ResidentRow`.
template <
    typename F, int kInputs, int kShared, int kOutputs, int64_t kColumns, uint32_t kElements, uint32_t kThreads,
    uint32_t kBlock, typename T, typename U,
    uint32_t kLeastBlocks =
        ResidentRow<F, kInputs, kShared, kOutputs, kColumns, kElements, kThreads, T, U>::kLeastBlocks>
__global__ __launch_bounds__(kBlock, kLeastBlocks) void row_reduce(
    const __grid_constant__ sgl::RowReduceParams<kInputs + kShared + kOutputs> params, const __grid_constant__ F f) {
  using row_t = ResidentRow<F, kInputs, kShared, kOutputs, kColumns, kElements, kThreads, T, U>;
  // The compiler does not know that threadIdx.x is below kThreads: it would divide, and hold an address of the row for
  // each thread instead of one for the block.
  constexpr bool kIsBlock = kBlock == kThreads;
  const uint32_t thread = kIsBlock ? threadIdx.x : threadIdx.x % kThreads;
  const uint32_t row_of_block = kIsBlock ? 0 : threadIdx.x / kThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kBlock / kThreads) + row_of_block;
  const bool has_row = kIsBlock || row < params.num_rows;
  if (kThreads == kWarpThreads && !has_row) return;  // a whole warp; lanes of a part of one take part in the reductions
  run_row(row_t(f, thread, kThreads >= kWarpThreads || has_row), row, params.triggers_first, [&](int i) {
    const auto& operand = params.operands[i];
    const bool is_shared = i >= kInputs && i < kInputs + kShared;
    return is_shared ? operand.data : pointer::offset(operand.data, row * operand.stride);
  });
}

/// \brief Rows of any size. The blocks of any grid, of whole warps, share the rows.
///
/// Strides must be multiples of kElements elements of their type; the rest is as in `reduce_row_generic`.
template <typename F, int kInputs, int kShared, int kOutputs, uint32_t kElements, typename T, typename U>
__global__ __launch_bounds__(1024) void row_reduce_generic(
    const __grid_constant__ sgl::RowReduceParams<kInputs + kShared + kOutputs> params, const __grid_constant__ F f) {
  __shared__ float smem[2][kRowSmem];  // by turns, so that no barrier is between two rows
  uint32_t turn = 0;
  PDLWaitPrimary();
  for (int64_t row = blockIdx.x; row < params.num_rows; row += gridDim.x, turn ^= 1) {
    reduce_row_generic<F, kInputs, kShared, kOutputs, kElements, T, U>(f, params.columns, row, smem[turn], [&](int i) {
      return pointer::offset(params.operands[i].data, row * params.operands[i].stride);
    });
  }
}

}  // namespace device
