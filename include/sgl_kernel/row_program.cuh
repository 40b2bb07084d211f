#pragma once

#include <sgl_kernel/impl/row_program_params.h>
#include <sgl_kernel/cluster.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/row.cuh>

#if defined(USE_ROCM)
#error "row programs need NVRTC and CUDA's driver: on ROCm write a __global__ kernel for load_jit"
#endif

/// \file row_program.cuh
/// \brief The kernel of `host::RowProgram`: a functor that says what becomes of each row. Compiles under NVRTC.

namespace device {

namespace details {

template <unsigned kCode>
using ElementOf =
    sgl::details::TypeAt<kCode, fp32_t, fp16_t, bf16_t, fp8_e4m3_t, fp8_e5m2_t, int32_t, int64_t, int8_t, uint8_t>;

/// A part of a row whose vectors begin after so many elements, at a multiple of their size.
struct PeeledPart : RowPart {
  int64_t head;
};
/// One element, before the first such vector or behind the last; `index` is its number in the row.
struct RowElement : RowPart {
  enum : bool { kIsElement = true };
};

/// One element of a vector.
template <typename T, uint32_t kElements>
SGL_DEVICE float element(const RowVector<T, kElements>& vector, uint32_t i) {
  constexpr uint32_t kTogether = RowVector<T, kElements>::kTogether;
  float floats[kTogether];
  vector.get(i / kTogether, floats);
  return floats[i % kTogether];
}

/// The same of values that have been stored to an operand.
template <int kOperand, uint32_t kElements, uint32_t kHeld>
struct StoredRow : KeptRow<kElements, kHeld> {
  enum : int { kStoredTo = kOperand };
};
template <int kOperand, typename T>
concept kIsStored = T::kStoredTo == kOperand;

/// A value for each vector of a row, in registers.
template <uint32_t kHeld>
struct HeldValues {
  struct Vector {
    float value;

    template <int kTogether>
    SGL_DEVICE void get(long long, float (&to)[kTogether]) const {
#pragma unroll
      for (float& one : to) one = value;
    }
  };
  Vector vectors[kHeld];

  SGL_DEVICE const Vector& open(const RowPart& part) const {
    return vectors[part.held];
  }
};

/// An element for each pair of a row, in registers.
template <typename Order, typename T, uint32_t kElements, uint32_t kHeld>
struct HeldPairs {
  RowVector<T, kElements> vectors[kHeld];
};

}  // namespace details

using sgl::kMostTerms;

/// \brief A row, as a row program sees it on a device. The threads that share it call together.
/// \tparam kShape the number of a `sgl::RowShape`. Its elements divide its columns, unless it has a tail; with
///   columns of 0 a block has a row.
///   Its threads are a power of two within a warp, else a block of whole warps, or in a map one for each vector; from a
///   warp on each that is here has a row. Where i makes a pair with i + half, half of the pairs' vectors are a multiple
///   of the threads.
/// \tparam kHoldsForAll whether registers are left to hold rows for all from where the program names them. Their
///   latency then hides behind that of the others.
/// \tparam kTypes, kPlaces of the operands, see row_program_params.h.
template <int kOperands, uint64_t kShape, bool kHoldsForAll, uint64_t kTypes, uint64_t kPlaces>
struct ProgramRow {
 private:
  static constexpr sgl::RowShape kRow = sgl::RowShape::of(kShape);
  enum : uint32_t {
    kColumns = kRow.columns,
    kPaired = kRow.paired,
    kElements = kRow.elements,
    kThreads = kRow.threads,
    kVectors = kColumns / kElements,
    kBlocks = kRow.blocks,
    kAllThreads = kBlocks * kThreads,
    kHeld = kColumns > 0 ? div_ceil(kVectors, kAllThreads) : 1,
    kTogether = kElements % 2 == 0 ? 2 : 1,
    kHalfHeld = kRow.is_map ? 0 : kPaired / 2 / kElements / kThreads,  // where i makes a pair with i + kPaired / 2
  };
  enum : bool {
    kIsHeld = kColumns > 0,
    kIsMap = kRow.is_map,
    kAllHaveRows = kIsMap || kThreads >= kWarpThreads,
    kIsDouble = kRow.is_double,
    kHasTail = kIsMap && kRow.has_tail,
    kIsPeeled = !kIsMap && !kIsHeld && kRow.has_tail,
    kHasIndexes = (kPlaces & 0x333333333333333) != 0,
  };

  template <int kOperand>
  using element_t = typename details::ElementOf<sgl::four_bits(kTypes, kOperand)>::type;
  SGL_UNCALLED static constexpr bool has(int operand, unsigned bits) {
    return (sgl::four_bits(kPlaces, operand) & bits) != 0;
  }

 public:
  /// \param thread of those that share the row, in all blocks.
  SGL_DEVICE ProgramRow(const sgl::RowSegment<kOperands>& segment, int64_t row, int64_t thread, float* smem)
      : m_segment(segment), m_thread(static_cast<decltype(m_thread)>(thread)), m_smem(smem) {
    m_has_row = kAllHaveRows || row < segment.num_rows;
    if (kIsDouble && !m_has_row) row = segment.num_rows - 2;
    m_outer = row;
    if constexpr ((kPlaces & sgl::kIsFlat) == 0) {
      m_outer = segment.inverse == 0 ? row : sgl::divided(row, segment.inverse);
      m_inner = row - m_outer * segment.inner;
    }
  }

  /// \brief Waits for the kernel before this one, and reads the indexes of the row: all at once, as rows wait for them.
  /// \return whether there is something to do: none of the threads that share a row that is not counted has.
  SGL_DEVICE bool begin() {
    PDLWaitPrimary();
    if constexpr ((kPlaces & sgl::kIsCounted) != 0) {
      const auto* counts = static_cast<const int32_t*>(m_segment.counts);
      m_has_row = m_has_row && (counts == nullptr || m_inner < counts[m_outer]);
      if (kAllHaveRows && !m_has_row) return false;  // lanes of a part of a warp take part in reductions
    }
    if constexpr (kHasIndexes) m_read_indexes(sgl::details::IndexListUpTo<kOperands>{});
    return true;
  }

  /// \brief The next inner row of the same outer one.
  SGL_DEVICE ProgramRow next() const {
    auto result = *this;
    ++result.m_inner;
    return result;
  }

  /// \brief The number of elements.
  SGL_DEVICE float size() const {
    return static_cast<float>(kIsHeld ? kColumns : m_segment.columns);
  }
  /// \brief The largest magnitude that elements of an operand's type have on both sides of zero: 448 for e4m3, 127 for
  /// int8.
  template <int kOperand>
  SGL_DEVICE static float largest_of(sgl::Operand<kOperand>) {
    constexpr float kLargest = sgl::largest_of(sgl::four_bits(kTypes, kOperand));
    static_assert(kLargest > 0, "row.largest_of: the operand must be float8 or int8");
    return kLargest;
  }

  /// \brief The elements of an operand.
  template <int kOperand>
  SGL_DEVICE auto operator[](sgl::Operand<kOperand>) const {
    using T = element_t<kOperand>;
    static_assert(!has(kOperand, sgl::kOneValue), "row[x] is for rows: row.value(x) is the value of an operand");
    const void* row = m_find(kOperand);
    if constexpr (kIsMap || (kIsHeld && (kHoldsForAll || !has(kOperand, sgl::kForAll)))) {
      HeldRow<T, kElements, kHeld> held;
      if (m_is_there(kOperand, row)) {
        if constexpr (kIsHeld) m_stripes().load(row, held);
        else if (const auto part = m_part(0); kHasTail && m_count(part) != kElements)
          held.vectors[0].load(row, part.index, m_count(part));
        else held.vectors[0].load(row, part.index);
      }
      return held;
    } else {
      return StreamedRow<T, kElements>{row};
    }
  }

  /// \brief The elements of a value, computed here and not again where they are used: in registers, if the row is held
  /// there.
  template <typename Of>
  SGL_DEVICE auto keep(const Of& of) const {
    if constexpr (sgl::details::kIsGrouped<Of>) {
      sgl::details::Grouped<Of::kGroupSize, details::HeldValues<kHeld>> kept;
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k) {
        if (!m_has_vector(k)) continue;
        float floats[1];
        of.open(m_part(k)).get(0, floats);
        kept.vectors[k].value = floats[0];
      }
      return kept;
    } else {
      if constexpr (kIsHeld) m_trigger();
      return m_kept(of);
    }
  }
  /// \brief The same of a value that the program stores to an operand. It may be stored here, before what follows is
  /// computed; so operands are named before.
  template <int kOperand, typename Of>
  SGL_DEVICE auto keep(sgl::Operand<kOperand> operand, const Of& of) const {
    if constexpr (kIsHeld) {
      m_trigger();  // the store waits for what it stores
      const details::StoredRow<kOperand, kElements, kHeld> kept{m_stripes().keep(of)};
      if (m_has_row) {
        const auto output = operand = static_cast<const KeptRow<kElements, kHeld>&>(kept);
#pragma unroll
        for (uint32_t k = 0; k < kHeld; ++k)
          if (m_has_vector(k)) m_store(output, m_computed(output, m_part(k)), m_part(k));
      }
      return kept;
    } else {
      return of;
    }
  }

  /// \brief An element for each pair of the row: part `index` of `count` of an operand, for `pairs`.
  template <typename Order, int kOperand>
  SGL_DEVICE auto of_pairs(Order, sgl::Operand<kOperand>, int index = 0, int = 1) const {
    using T = element_t<kOperand>;
    constexpr bool kInVector = device::details::is_same<Order, sgl::Interleaved>;
    constexpr uint32_t kOwn = kInVector ? div_ceil(kElements, 2u) : kElements;
    details::HeldPairs<Order, T, kOwn, kInVector ? kHeld : kHalfHeld> pairs;
    const auto* begin = static_cast<const T*>(m_find(kOperand, kIsDouble)) + index * int64_t{kPaired / 2};
    m_each([&](const auto& part) {
      if (kInVector ? part.index * kElements < kPaired : part.held < kHalfHeld) {
        if (m_always_has(kOperand) || m_reads())
          pairs.vectors[part.held].load(
              static_cast<const void*>(begin), part.index * kElements / (kInVector ? 2 : 1) / kOwn);
      }
    });
    return pairs;
  }

  /// \brief The value whose pairs of elements are `f` of those of another, a `sgl::Values<2>`. `f` gets both elements,
  /// and one of each of `others`, which are of `of_pairs`. Elements beyond the pairs stay as they are.
  template <typename Order, typename F, typename Of, typename... Others>
  SGL_DEVICE auto pairs(Order, const F& f, const Of& of, const Others&... others) const {
    static_assert(kIsHeld, "row.pairs is for rows that are held in registers");
    auto kept = m_kept(of);
    if constexpr (device::details::is_same<Order, sgl::Interleaved> && kElements == 1) {
      const bool is_second = m_thread % 2 != 0;  // the other of the pair is in the next thread
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k) {
        float& own = kept.vectors[k].floats[0];
        const float other = warp::exchange(own, 1);
        const auto pair =
            f(is_second ? other : own, is_second ? own : other, details::element(others.vectors[k], 0)...);
        if (k * kThreads + m_thread < kPaired) own = pair.values[is_second];
      }
    } else if constexpr (device::details::is_same<Order, sgl::Interleaved>) {
      m_each([&](const auto& part) {
        if (part.index * kElements >= kPaired) return;
        auto& floats = kept.vectors[part.held].floats;
#pragma unroll
        for (uint32_t j = 0; j < kElements / 2; ++j) {
          const auto pair = f(floats[2 * j], floats[2 * j + 1], details::element(others.vectors[part.held], j)...);
          floats[2 * j] = pair.values[0];
          floats[2 * j + 1] = pair.values[1];
        }
      });
    } else {
#pragma unroll
      for (uint32_t k = 0; k < kHalfHeld; ++k) {
        auto& first = kept.vectors[k].floats;
        auto& second = kept.vectors[k + kHalfHeld].floats;
#pragma unroll
        for (uint32_t j = 0; j < kElements; ++j) {
          const auto pair = f(first[j], second[j], details::element(others.vectors[k], j)...);
          first[j] = pair.values[0];
          second[j] = pair.values[1];
        }
      }
    }
    return kept;
  }

  /// \brief One element of an operand, in each thread that asks.
  template <int kOperand>
  SGL_DEVICE float at(sgl::Operand<kOperand>, int64_t column) const {
    const void* row = m_find(kOperand);
    return m_is_there(kOperand, row) ? cast<fp32_t>(static_cast<const element_t<kOperand>*>(row)[column]) : 0.0f;
  }

  /// \brief The value that an operand has for this row.
  template <int kOperand>
  SGL_DEVICE auto value(sgl::Operand<kOperand>) const {
    static_assert(has(kOperand, sgl::kOneValue), "row.value(x) is for operands with one value for each row");
    using T = element_t<kOperand>;
    const void* place = m_find(kOperand);
    const T value = m_is_there(kOperand, place) ? *static_cast<const T*>(place) : T{};
    return static_cast<details::conditional_t<sizeof(T) == 2, fp32_t, T>>(value);
  }

  /// \brief A value rounded to the dtype of an operand: what another kernel would read that this one had stored.
  template <int kOperand, typename Of>
  SGL_DEVICE auto round(sgl::Operand<kOperand>, const Of& of) const {
    using T = element_t<kOperand>;
    return sgl::map([](float value) { return cast<fp32_t>(cast<T>(value)); }, of);
  }

  /// \brief The elements of a value by a monoid: `of(element, column)` and `merge(a, b)` are of its state, of at most
  /// 16 bytes; `identity()` changes nothing. `merge` is associative and commutative. In each thread.
  template <typename M, typename Of>
  SGL_DEVICE auto reduce(const M& monoid, const Of& of) const {
    m_reduces_row();
    m_trigger();
    auto state = sgl::details::identity_of(monoid);
    if (m_reads()) {
      m_each([&, monoid]<typename Part>(const Part& part) {
        details::merge<Part::kIsElement ? 1 : kElements>(monoid, state, of, part, m_column(part));
      });
    }
    const auto merge = [&](const auto& a, const auto& b) { return monoid.merge(a, b); };
    state = warp::all_reduce<(kThreads < kWarpThreads ? kThreads : kWarpThreads)>(state, merge);
    if constexpr (kThreads > kWarpThreads)
      state = cta::all_reduce_warps<kThreads>(
          state, reinterpret_cast<decltype(state)*>(m_next_smem()), monoid.identity(), merge);
    m_merge_blocks(state, merge);
    return state;
  }

  /// \brief The states `next(0)`, `next(1)`, ... which all threads compute. Thread i % kThreads holds number i.
  template <typename Next>
  SGL_DEVICE auto list(int size, const Next& next) const {
    m_reduces_row();
    constexpr int kMost = kIsHeld && kColumns < sgl::kMostListed ? kColumns : sgl::kMostListed;
    constexpr int kListed = div_ceil(kMost, static_cast<int>(kThreads));
    sgl::details::List<decltype(next(0)), kListed> list;
    list.size = size;
#pragma unroll 1
    for (int i = 0; i < size; ++i) {
      const auto state = next(i);
#pragma unroll
      for (int k = 0; k < kListed; ++k) {
        if (i == m_listed(k)) list.states[k] = state;
      }
    }
    return list;
  }

  /// \brief The sum of `term` of the elements of values, a float or `sgl::Values`, in each thread.
  template <typename F, typename... Of>
  SGL_DEVICE auto sum(const F& term, const Of&... of) const {
    return m_reduce<false>(sgl::details::terms(term, of...));
  }
  /// \brief The largest of `term` of the elements of values; NaN is ignored.
  template <typename F, typename... Of>
  SGL_DEVICE auto max(const F& term, const Of&... of) const {
    return m_reduce<true>(sgl::details::terms(term, of...));
  }

  /// \brief A number near the mean of the elements of an operand, to be taken away from them before they are squared:
  /// the mean of at least the first 32 vectors. Where threads of several warps share the row, each warp reads these by
  /// itself, which saves a barrier. It costs a float some bits, which elements of two bytes do not have.
  template <int kOperand>
  SGL_DEVICE float rough_mean(sgl::Operand<kOperand> operand) const {
    using T = element_t<kOperand>;
    if constexpr (kIsHeld && kThreads > kWarpThreads && kVectors >= kWarpThreads && sizeof(T) < sizeof(float)) {
      const uint32_t lane = threadIdx.x % kWarpThreads;
      HeldRow<T, kElements, 1> held;
      held.vectors[0].load(m_find(kOperand), lane);
      m_trigger();
      const auto terms = sgl::details::terms([](float v) { return v; }, held);
      const auto sum = details::reduced<false, kElements>(terms, RowPart{0, lane});
      return warp::reduce_sum(sum.values[0]) / (kWarpThreads * kElements);
    } else {
      return sum([](float v) { return v; }, (*this)[operand]) / size();
    }
  }

  /// \brief The sum, or the largest, of `term` of the elements of each group: a value, which is the same for all
  /// elements of a group, and which is stored once for each.
  template <int kSize, typename F, typename... Of>
  SGL_DEVICE auto sum(sgl::Groups<kSize>, const F& term, const Of&... of) const {
    return m_reduce_groups<kSize, false>(sgl::details::terms(term, of...));
  }
  template <int kSize, typename F, typename... Of>
  SGL_DEVICE auto max(sgl::Groups<kSize>, const F& term, const Of&... of) const {
    return m_reduce_groups<kSize, true>(sgl::details::terms(term, of...));
  }

  /// \brief Stores the result of the program.
  template <typename... Output>
  SGL_DEVICE void finish(const sgl::Stores<Output...>& stores) const {
    if constexpr (!kIsMap) m_trigger();  // a map's next kernel would take issue slots from this one
    if (!m_has_row) return;
    m_finish(stores.outputs);
#if SGL_ARCH_HOPPER_OR_GREATER
    if constexpr (kBlocks > 1) ptx::cluster_sync();  // the others read this block's shared memory
#endif
  }

 private:
  template <typename Of>
  SGL_DEVICE auto m_kept(const Of& of) const {
    if constexpr (kIsHeld) return m_stripes().keep(of);
    else return of;
  }

  /// Whoever reduces a row says so. `auto` makes this the first error: its body is read where it is called.
  SGL_DEVICE static auto m_reduces_row() {
    static_assert(
        !kIsMap, "a reduction that the host part did not see: the steps of a program must not depend on values");
  }

  /// Lets the next kernel start: once, where the rows have been asked for. The compiler knows where it has been done.
  SGL_DEVICE void m_trigger() const {
    if (!m_has_triggered) PDLTriggerSecondary();
    m_has_triggered = true;
  }

  /// Which state of a list is number k of this thread.
  SGL_DEVICE int m_listed(int k) const {
    return k * static_cast<int>(kThreads) + static_cast<int>(m_thread);
  }

  /// The largest power of two that is at most `n`.
  SGL_UNCALLED static constexpr uint32_t m_power_of_two(uint32_t n) {
    return n < 2 ? n : 2 * m_power_of_two(n / 2);
  }

  /// Reductions take two parts of the shared memory by turns. So no barrier is between two: when one is used again, all
  /// threads have passed the barrier of the other, and read this one before.
  SGL_DEVICE float* m_next_smem() const {
    m_turn ^= 1;
    return m_smem + m_turn * kMostTerms * kWarpThreads;
  }

  /// The results of the blocks that share the row: the same bits in every thread of all. It follows a reduction of the
  /// block, whose turn it takes.
  template <typename T, typename Merge>
  SGL_DEVICE void m_merge_blocks(T& value, const Merge& merge) const {
    if constexpr (kBlocks > 1) {
      static_assert(kThreads > kWarpThreads && sizeof(T) <= kMostTerms * sizeof(float));
      cluster::all_reduce<kBlocks>(value, m_smem + (2 * kWarpThreads + m_turn) * kMostTerms, merge);
    }
  }

  SGL_UNCALLED static constexpr bool m_is_indexed(int operand) {
    return has(operand, sgl::kIndexed | sgl::kLongIndexed);
  }

  /// Whether each thread that is here has a row of an operand.
  SGL_UNCALLED static constexpr bool m_always_has(int operand) {
    return has(operand, sgl::kForAll) || (kAllHaveRows && !m_is_indexed(operand));
  }

  /// Whether this thread has a row to read. With `kIsDouble` those without one read the last, so that no load waits for
  /// a branch; they store nothing.
  SGL_DEVICE bool m_reads() const {
    return kIsDouble || m_has_row;
  }

  /// Whether this thread can read the row of an operand that begins there.
  SGL_DEVICE bool m_is_there(int operand, const void* row) const {
    if constexpr (kIsDouble) return true;
    return m_is_indexed(operand) ? row != nullptr : m_always_has(operand) || m_has_row;
  }

  /// Whether the row of an output is left as it is.
  SGL_DEVICE bool m_skips(int operand) const {
    return m_is_indexed(operand) && m_indexes[operand] < 0;
  }

  /// Whether vector number `k` of this thread is one of the row.
  SGL_DEVICE bool m_has_vector(uint32_t k) const {
    if constexpr (kIsMap) return true;
    else return m_stripes().has(k);
  }
  SGL_DEVICE RowPart m_part(uint32_t k) const {
    if constexpr (kIsMap) return {0, m_thread};
    else return m_stripes().part(k);
  }
  /// The row, if it is held.
  SGL_DEVICE Stripes<kColumns, kElements, kAllThreads> m_stripes() const {
    return {static_cast<uint32_t>(m_thread)};
  }

  /// The elements of a vector: fewer in the last one of a map's row.
  SGL_DEVICE uint32_t m_count(const RowPart& part) const {
    return part.index == m_segment.vectors - 1 ? static_cast<uint32_t>(m_segment.columns) % kElements : kElements;
  }

  /// The index of this row for an operand. The compiler drops those that the program does not use.
  SGL_DEVICE int64_t m_index_of(int operand) const {
    const void* index = m_segment.places[operand].index;
    // A segment that does not use the operand has none.
    if (!m_is_indexed(operand) || !m_reads() || index == nullptr) return -1;
    if (has(operand, sgl::kIndexed)) return static_cast<const int32_t*>(index)[m_outer];
    return static_cast<const int64_t*>(index)[m_outer];
  }

  template <size_t... I>
  SGL_DEVICE void m_read_indexes(sgl::details::IndexList<I...>) {
    ((m_indexes[I] = m_index_of(I)), ...);
  }

  /// Where the row of an operand begins; null if there is none. With `kIsDouble` there is always one to read.
  SGL_DEVICE void* m_find(int operand, bool is_of_all_inner = false) const {
    if (has(operand, sgl::kForAll)) return m_segment.data[operand];
    int64_t outer = m_outer;
    if constexpr (kHasIndexes) {
      if (m_is_indexed(operand)) outer = m_indexes[operand];
      if (m_is_indexed(operand) && outer < 0) {
        if constexpr (!kIsDouble) return nullptr;
        outer = 0;
      }
    }
    return m_segment.template find<kPlaces>(operand, outer, is_of_all_inner ? 0 : m_inner);
  }

  /// The number of a part's first element.
  template <typename Part>
  SGL_DEVICE static int64_t m_column(const Part& part) {
    if constexpr (requires { part.head; }) return part.head + part.index * kElements;
    else return part.index * (Part::kIsElement ? 1 : kElements);
  }

  /// The first operand that has rows of its own. Where it has n elements before a multiple of a vector's size, all
  /// have.
  SGL_UNCALLED static constexpr int m_peeled_operand() {
    int operand = 0;
    while (has(operand, sgl::kForAll | sgl::kOneValue)) ++operand;
    return operand;
  }

  /// Calls `body(part)` for each vector of this thread, and for its elements without one.
  template <typename Body>
  SGL_DEVICE void m_each(const Body& body) const {
    if constexpr (kIsMap || kIsHeld) {
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k)
        if (m_has_vector(k)) body(m_part(k));
    } else if constexpr (kIsPeeled) {
      constexpr int kOperand = m_peeled_operand();
      constexpr uint32_t kBytes = sizeof(element_t<kOperand>);
      const auto address = reinterpret_cast<uintptr_t>(m_find(kOperand));
      const int64_t before = -address % (kElements * kBytes) / kBytes;
      const int64_t head = before < m_segment.columns ? before : m_segment.columns;
      const int64_t vectors = (m_segment.columns - head) / kElements;
      const int64_t last = head + vectors * kElements + m_thread;
      if (m_thread < head) body(details::RowElement{0, m_thread});
      for (int64_t index = m_thread; index < vectors; index += kAllThreads) body(details::PeeledPart{{0, index}, head});
      if (last < m_segment.columns) body(details::RowElement{0, last});
    } else {
      for (int64_t index = m_thread; index < m_segment.columns / kElements; index += kAllThreads)
        body(RowPart{0, index});
    }
  }

  template <bool kMax, typename Terms>
  SGL_DEVICE auto m_reduce(const Terms& terms) const {
    m_reduces_row();
    m_trigger();
    using reduced_t = typename Terms::reduced_t;
    const auto identity = terms.template identity<kMax>();
    // A sum of each vector, and then of halves: the bits do not depend on how many threads of a warp share a row.
    reduced_t of_vector[kHeld];
#pragma unroll
    for (auto& one : of_vector) one = identity;
    if (m_reads()) {
      if constexpr (kIsHeld) {
#pragma unroll
        for (uint32_t k = 0; k < kHeld; ++k)
          if (m_has_vector(k))
            sgl::details::accumulate<kMax>(of_vector[k], details::reduced<kMax, kElements>(terms, m_part(k)));
      } else {
        m_each([&]<typename Part>(const Part& part) {
          sgl::details::accumulate<kMax>(
              of_vector[0], details::reduced<kMax, Part::kIsElement ? 1 : kElements>(terms, part));
        });
      }
    }
    constexpr sgl::details::Reduce<kMax> op;
#pragma unroll
    for (uint32_t distance = m_power_of_two(kHeld); distance > 0; distance /= 2) {
#pragma unroll
      for (uint32_t k = 0; k + distance < kHeld && k < distance; ++k)
        sgl::details::accumulate<kMax>(of_vector[k], of_vector[k + distance]);
    }
    auto& reduced = of_vector[0];
    if constexpr (kThreads > kWarpThreads) {
      cta::all_reduce<kThreads>(reduced.values, m_next_smem(), sgl::details::kIdentity<kMax>, op);
      m_merge_blocks(reduced, [](auto a, const auto& b) {
        sgl::details::accumulate<kMax>(a, b);
        return a;
      });
    } else {
#pragma unroll
      for (float& value : reduced.values) value = warp::all_reduce<kThreads>(value, op);
    }
    return Terms::result(reduced);
  }

  template <int kSize, bool kMax, typename Terms>
  SGL_DEVICE auto m_reduce_groups(const Terms& terms) const {
    m_reduces_row();
    constexpr uint32_t kLanes = kSize / kElements;
    static_assert(
        kIsHeld && kSize % kElements == 0 && kLanes <= kWarpThreads && kThreads % kLanes == 0,
        "row_program: the threads of a row must be whole groups");
    constexpr sgl::details::Reduce<kMax> op;
    sgl::details::Grouped<kSize, details::HeldValues<kHeld>> grouped;
#pragma unroll
    for (auto& vector : grouped.vectors) vector.value = sgl::details::kIdentity<kMax>;
    if (m_reads()) {
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k) {
        if (!m_has_vector(k)) continue;
        const auto opened = terms.open(m_part(k));
        float& value = grouped.vectors[k].value;
#pragma unroll
        for (uint32_t j = 0; j < kElements / kTogether; ++j) {
          sgl::Values<1> found[kTogether];
          opened.get(j, found);
#pragma unroll
          for (const auto& one : found) value = op(value, one.values[0]);
        }
      }
    }
#pragma unroll
    for (auto& vector : grouped.vectors) vector.value = warp::all_reduce<kLanes>(vector.value, op);
    return grouped;
  }

  template <size_t... I, int... kOperand, typename... T>
  SGL_DEVICE void m_finish(
      const sgl::details::PackOf<sgl::details::IndexList<I...>, sgl::Bound<kOperand, T>...>& outputs) const {
    if constexpr ((sgl::details::kIsNumber<T> || ...)) (m_store_value(sgl::details::get<I>(outputs)), ...);
    // All outputs of a vector are computed before the first is stored, as an output may be an input.
    if constexpr (kIsHeld) {
      // Rows for all are loaded here, all before the first store, which the compiler must take for one to their memory.
      using Computed = decltype(sgl::details::pack(m_computed(sgl::details::get<I>(outputs), RowPart{})...));
      Computed vectors[kHeld];
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k) {
        if (!m_has_vector(k)) continue;
        vectors[k] = {{m_computed(sgl::details::get<I>(outputs), m_part(k))}...};
        if constexpr (kHoldsForAll)
          (m_store(sgl::details::get<I>(outputs), sgl::details::get<I>(vectors[k]), m_part(k)), ...);
      }
#pragma unroll
      for (uint32_t k = 0; k < kHeld && !kHoldsForAll; ++k)
        if (m_has_vector(k)) (m_store(sgl::details::get<I>(outputs), sgl::details::get<I>(vectors[k]), m_part(k)), ...);
    } else {
      m_each([&](const auto& part) {
        const auto vectors = sgl::details::pack(m_computed(sgl::details::get<I>(outputs), part)...);
        (m_store(sgl::details::get<I>(outputs), sgl::details::get<I>(vectors), part), ...);
      });
    }
  }

  template <int kOperand, typename T>
  SGL_DEVICE void m_store_value(const sgl::Bound<kOperand, T>& output) const {
    if constexpr (sgl::details::kIsListed<T>) {
      using U = element_t<kOperand>;
      const auto& [f, list] = output.value;
      if (m_skips(kOperand)) return;
      void* place = m_find(kOperand);
      const auto distance = m_segment.places[kOperand].group_stride;
#pragma unroll
      for (int k = 0; k < static_cast<int>(sizeof(list.states) / sizeof(list.states[0])); ++k) {
        const int i = m_listed(k);
        if (i < list.size) *static_cast<U*>(pointer::offset(place, i * distance)) = static_cast<U>(f(list.states[k]));
      }
    } else if constexpr (sgl::details::kIsNumber<T>) {
      static_assert(has(kOperand, sgl::kOneValue), "a number is stored to an operand with one value for each row");
      if (m_thread == 0 && !m_skips(kOperand))
        *static_cast<element_t<kOperand>*>(m_find(kOperand)) = static_cast<element_t<kOperand>>(output.value);
    }
  }

  struct Nothing {};

  template <int kOperand, typename T, typename Part>
  SGL_DEVICE auto m_computed(const sgl::Bound<kOperand, T>& output, const Part& part) const {
    if constexpr (sgl::details::kIsNumber<T> || sgl::details::kIsGrouped<T> || details::kIsStored<kOperand, T>) {
      return Nothing{};
    } else {
      return details::rounded<element_t<kOperand>, Part::kIsElement ? 1 : kElements>(output.value, part);
    }
  }

  template <int kOperand, typename T, typename Vector, typename Part>
  SGL_DEVICE void m_store(const sgl::Bound<kOperand, T>& output, const Vector& vector, const Part& part) const {
    if constexpr (sgl::details::kIsGrouped<T>) {
      constexpr uint32_t kLanes = T::kGroupSize / kElements;
      if (part.index % kLanes != 0 || m_skips(kOperand)) return;
      void* row = m_find(kOperand);
      const int64_t group = part.index / kLanes;
      void* place = has(kOperand, sgl::kOneValue)
                        ? pointer::offset(row, group / 4 * m_segment.places[kOperand].group_stride, group % 4)
                        : pointer::offset(row, group * m_segment.places[kOperand].group_stride);
      float floats[kTogether];
      output.value.open(part).get(0, floats);
      *static_cast<element_t<kOperand>*>(place) = cast<element_t<kOperand>>(floats[0]);
    } else if constexpr (!sgl::details::kIsNumber<T> && !details::kIsStored<kOperand, T>) {
      if (m_skips(kOperand)) return;
      void* row = m_find(kOperand);
      if constexpr (requires { part.head; }) row = static_cast<element_t<kOperand>*>(row) + part.head;
      if constexpr (kHasTail) {
        if (m_count(part) != kElements) return vector.store(row, part.index, m_count(part));
      }
      vector.store(row, part.index);
    }
  }

  const sgl::RowSegment<kOperands>& m_segment;
  int64_t m_outer;
  int64_t m_inner = 0;
  int64_t m_indexes[kOperands];
  details::conditional_t<kIsMap, int64_t, uint32_t> m_thread;
  bool m_has_row;
  float* m_smem;
  mutable uint32_t m_turn = 0;
  mutable bool m_has_triggered = kIsDouble;  // `run_segment` does it, after both rows
};

namespace details {

/// Runs the program of segment number `kNumber` on a row of `segment`, which has this shape.
template <
    uint64_t kShape, uint32_t kBlock, bool kHoldsForAll, uint64_t kTypes, uint64_t kPlaces, int kNumber, typename F,
    int kOperands>
SGL_DEVICE void run_segment(const F& f, const sgl::RowSegment<kOperands>& segment, int64_t block, float* smem) {
  using Row = ProgramRow<kOperands, kShape, kHoldsForAll, kTypes, kPlaces>;
  constexpr auto kRow = sgl::RowShape::of(kShape);
  if constexpr (kRow.is_map) {
    const int64_t vector = block * kBlock + threadIdx.x;
    if (vector >= segment.num_rows * segment.vectors) return;
    const int64_t row = segment.vector_inverse == 0 ? vector : sgl::divided(vector, segment.vector_inverse);
    Row view(segment, row, vector - row * segment.vectors, smem);
    if (!view.begin()) return;
    view.finish(sgl::details::run_segment<kNumber>(f, view));
  } else {
    constexpr uint32_t kThreads = kRow.threads;
    // The compiler does not know that threadIdx.x is below kThreads: it would divide, and hold an address for each
    // thread.
    constexpr bool kIsBlock = kBlock == kThreads;
    const int64_t number = kIsBlock ? block / kRow.blocks : block * (kBlock / kThreads) + threadIdx.x / kThreads;
    const int64_t row = number * (kRow.is_double ? 2 : 1);
    if (kThreads == kWarpThreads && row >= segment.num_rows) return;  // lanes of part of a warp take part in reductions
    const int64_t first = kRow.blocks > 1 ? block % kRow.blocks * kThreads : 0;
    Row view(segment, row, first + (kIsBlock ? threadIdx.x : threadIdx.x % kThreads), smem);
    if (!view.begin()) return;
    if constexpr (kRow.is_double) {
      // No branch and no store is between the two, so that the compiler loads once what both need.
      const Row next = view.next();
      const auto stores = sgl::details::run_segment<kNumber>(f, view);
      const auto next_stores = sgl::details::run_segment<kNumber>(f, next);
      PDLTriggerSecondary();
      view.finish(stores);
      next.finish(next_stores);
    } else {
      view.finish(sgl::details::run_segment<kNumber>(f, view));
    }
  }
}

/// Whether a functor has one program for all segments.
template <typename F, typename Row>
concept kHasOneProgram = requires(const F& f, const Row& row) { f(row); };

/// The body of a kernel.
template <
    typename F, int kOperands, uint32_t kBlock, bool kHoldsForAll, uint64_t kTypes, uint64_t kPlaces,
    uint64_t... kShapes>
SGL_DEVICE void run_program(const sgl::RowProgramParams<kOperands, sizeof...(kShapes)>& params, const F& f) {
  // For the host nvcc would check that a functor, which is for the host too, calls nothing that is for devices alone.
#if defined(__CUDA_ARCH__) || !defined(__NVCC__)
  constexpr int kSegments = sizeof...(kShapes);
  constexpr uint64_t kAll[] = {kShapes...}, kShape = kAll[0];
  constexpr uint32_t kOfBlock = sgl::RowShape::of(kShape).blocks > 1;  // a result that the others of the cluster read
  alignas(16) __shared__ float smem[2 * kMostTerms * (kWarpThreads + kOfBlock)];
  if (params.segments[0].triggers_first) PDLTriggerSecondary();
  int number = 0;
#pragma unroll
  for (int i = 1; i < kSegments; ++i) number += blockIdx.x >= params.segments[i].first_block;
  const int64_t block = kSegments == 1 ? blockIdx.x : blockIdx.x - params.segments[number].first_block;
  using Row = ProgramRow<kOperands, kShape, kHoldsForAll, kTypes, kPlaces>;
  // One copy of a program serves all segments that have it and the same shape: less code to compile.
  constexpr int kAlike = [&] {
    constexpr int kMost = kHasOneProgram<F, Row> ? kSegments : sgl::details::alike_of<F>();
    for (int i = 1; i < kMost; ++i)
      if (kAll[i] != kShape) return 1;
    return kMost;
  }();
  const auto run = [&]<int I>(sgl::Segment<I>) {
    constexpr int kNumber = I == 0 ? 0 : kAlike - 1 + I;
    if (kAlike < kSegments && (I == 0 ? number >= kAlike : number != kNumber)) return;
    run_segment<kAll[kNumber], kBlock, kHoldsForAll, kTypes, kPlaces, kNumber>(
        f, params.segments[I == 0 && kAlike > 1 ? number : kNumber], block, smem);
  };
  [&]<size_t... I>(sgl::details::IndexList<I...>) {
    (run(sgl::Segment<static_cast<int>(I)>{}), ...);
  }(sgl::details::IndexListUpTo<kSegments - kAlike + 1>{});
#endif
}

}  // namespace details

/// \brief Rows by a program. Grid: of each segment, a block for each `kBlock / threads` rows.
///
/// Addresses and strides must be multiples of a vector of their type, up to 16 bytes, unless rows are peeled (has_tail
/// with columns of 0). An output may be an input. With columns of 0, the threads of a row are kBlock.
/// \tparam kLeastBlocks blocks of a multiprocessor that the compiler must leave registers for, or 0.
/// \tparam kShapes of each segment, the number of a `sgl::RowShape`.
template <
    typename F, int kOperands, uint32_t kBlock, uint32_t kLeastBlocks, bool kHoldsForAll, uint64_t kTypes,
    uint64_t kPlaces, uint64_t... kShapes>
__global__ __launch_bounds__(kBlock, kLeastBlocks) void row_program(
    const __grid_constant__ F f, const __grid_constant__ sgl::RowProgramParams<kOperands, sizeof...(kShapes)> params) {
  details::run_program<F, kOperands, kBlock, kHoldsForAll, kTypes, kPlaces, kShapes...>(params, f);
}

/// \brief The same for a functor without fields: nvcc has no parameters of an empty type.
template <
    typename F, int kOperands, uint32_t kBlock, uint32_t kLeastBlocks, bool kHoldsForAll, uint64_t kTypes,
    uint64_t kPlaces, uint64_t... kShapes>
__global__ __launch_bounds__(kBlock, kLeastBlocks) void row_program_without_fields(
    const __grid_constant__ sgl::RowProgramParams<kOperands, sizeof...(kShapes)> params) {
  details::run_program<F, kOperands, kBlock, kHoldsForAll, kTypes, kPlaces, kShapes...>(params, F{});
}

}  // namespace device
