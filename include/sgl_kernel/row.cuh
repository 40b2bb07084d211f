#pragma once

#include <sgl_kernel/impl/row_expression.h>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>

/// \file row.cuh
/// \brief A row in the registers of the threads that share it. For kernels of your own; row programs are made of it.
///
/// \code
///   const Stripes<4096, 8, 256> row{threadIdx.x};  // 256 threads share 4096 elements: two vectors of 8 a thread
///   const auto x = row.load(in);
///   const float own = row.sum([](float v) { return v * v; }, x);  // of this thread
///   const float sum = cta::all_reduce<256>(own, smem, 0.0f, [](float a, float b) { return a + b; });
///   row.store(out, sgl::map([=](float v) { return v * math::rsqrt(sum); }, x));
/// \endcode
/// A *value* is what `load`, `keep` and `sgl::map` return. Each thread acts by itself: nothing here synchronises or
/// uses shared memory. Compiles under NVRTC, and for CUDA alone.

namespace device {

/// \brief A vector of a row in registers: `kElements` elements, a power of two, in words of at most 16 bytes. Each
/// thread by itself; an address is a multiple of a word.
template <typename T, uint32_t kElements>
struct RowVector {
  enum : uint32_t {
    kTogether = kElements % 2 == 0 ? 2 : 1,  // elements that are converted at once
    kMost = sgl::kWordBytes / sizeof(T),
    kWordElements = kElements < kMost ? kElements : kMost,
    kWords = kElements / kWordElements,
    kWordUnits = kWordElements / kTogether,
    kUnits = kElements / kTogether,
  };
  using Unit = details::conditional_t<kTogether == 2, packed_t<T>, T>;
  // CUDA's types of 16 bits are copied by functions, which the compiler would instantiate and inline every time.
  using Bits = details::conditional_t<sizeof(T) == 2, Word<sizeof(Unit)>, Unit>;
  using word_t = Word<sizeof(T) * kWordElements>;

  alignas(word_t) Bits units[kUnits];

  /// \brief Vector number `index` of a row.
  SGL_DEVICE void load(const void* row, int64_t index) {
#pragma unroll
    for (uint32_t i = 0; i < kWords; ++i) {
      const word_t word = static_cast<const word_t*>(row)[index * kWords + i];
      memcpy(units + i * kWordUnits, &word, sizeof(word));
    }
  }
  SGL_DEVICE void store(void* row, int64_t index) const {
#pragma unroll
    for (uint32_t i = 0; i < kWords; ++i) {
      word_t word;
      memcpy(&word, units + i * kWordUnits, sizeof(word));
      static_cast<word_t*>(row)[index * kWords + i] = word;
    }
  }
  /// \brief The first `count` elements of it.
  SGL_DEVICE void load(const void* row, int64_t index, uint32_t count) {
    T elements[kElements] = {};
#pragma unroll
    for (uint32_t i = 0; i < kElements; ++i) {
      if (i < count) elements[i] = static_cast<const T*>(row)[index * kElements + i];
    }
    memcpy(&units, &elements, sizeof(elements));
  }
  SGL_DEVICE void store(void* row, int64_t index, uint32_t count) const {
    T elements[kElements];
    memcpy(&elements, &units, sizeof(elements));
#pragma unroll
    for (uint32_t i = 0; i < kElements; ++i) {
      if (i < count) static_cast<T*>(row)[index * kElements + i] = elements[i];
    }
  }
  /// \brief The same elements, of which the compiler knows nothing.
  SGL_DEVICE RowVector forgotten() const {
    auto result = *this;
#pragma unroll
    for (auto& unit : result.units) ptx::forget(unit);
    return result;
  }
  /// \brief Elements kTogether * j and up, as floats.
  SGL_DEVICE void get(long long j, float (&floats)[kTogether]) const {
    Unit unit;
    memcpy(&unit, &units[j], sizeof(unit));
    if constexpr (kTogether == 2) {
      const float2 wide = details::to_fp32x2(unit);
      floats[0] = wide.x;
      floats[1] = wide.y;
    } else {
      floats[0] = details::to_fp32(unit);
    }
  }
  SGL_DEVICE void set(long long j, const float (&floats)[kTogether]) {
    Unit unit;
    if constexpr (kTogether == 2) unit = dtype_trait<Unit>::from(fp32x2_t{floats[0], floats[1]});
    else unit = cast<Unit>(floats[0]);
    memcpy(&units[j], &unit, sizeof(unit));
  }
};

/// \brief A part of a row: a vector of one thread.
struct RowPart {
  enum : bool { kIsElement = false };
  uint32_t held;  ///< which of the thread's vectors
  int64_t index;  ///< its number in the row
};

/// \brief Elements in global or shared memory, loaded where they are used: a value.
template <typename T, uint32_t kElements>
struct StreamedRow {
  const void* row;

  template <typename Part>
  SGL_DEVICE auto open(const Part& part) const {
    RowVector<T, Part::kIsElement ? 1 : kElements> vector;
    if constexpr (requires { part.head; }) vector.load(static_cast<const T*>(row) + part.head, part.index);
    else vector.load(row, part.index);
    return vector;
  }
};

/// \brief Elements that were loaded, in registers: a value, as `sgl::map` takes it.
template <typename T, uint32_t kElements, uint32_t kHeld>
struct HeldRow {
  // With several vectors the compiler would keep the elements as floats from one pass to the next, in twice the
  // registers.
  enum : bool { kStaysPacked = kHeld > 2 && sizeof(T) == 2 && kElements % 2 == 0 };

  RowVector<T, kElements> vectors[kHeld];

  SGL_DEVICE decltype(auto) open(const RowPart& part) const {
    if constexpr (kStaysPacked) return vectors[part.held].forgotten();
    else return (vectors[part.held]);
  }
};

/// \brief Elements that were computed, in registers as floats: a value.
template <uint32_t kElements, uint32_t kHeld>
struct KeptRow {
  struct Vector {
    float floats[kElements];

    template <int kTogether>
    SGL_DEVICE void get(long long j, float (&to)[kTogether]) const {
#pragma unroll
      for (int n = 0; n < kTogether; ++n) to[n] = floats[j * kTogether + n];
    }
  };
  Vector vectors[kHeld];

  SGL_DEVICE const Vector& open(const RowPart& part) const {
    return vectors[part.held];
  }
};

namespace details {

/// The elements of a value at a part, rounded to `T`; the same bits if they are of `T`.
template <typename T, uint32_t kElements, typename Of, typename Part>
SGL_DEVICE RowVector<T, kElements> rounded(const Of& value, const Part& part) {
  const auto opened = value.open(part);
  if constexpr (is_same<decltype(opened), const RowVector<T, kElements>>) {
    return opened;
  } else {
    RowVector<T, kElements> vector;
#pragma unroll
    for (uint32_t j = 0; j < vector.kUnits; ++j) {
      float floats[vector.kTogether];
      opened.get(j, floats);
      vector.set(j, floats);
    }
    return vector;
  }
}

/// The reduced terms of one vector.
template <bool kMax, uint32_t kElements, typename Terms, typename Part>
SGL_DEVICE auto reduced(const Terms& terms, const Part& part) {
  constexpr uint32_t kAtOnce = kElements % 2 == 0 ? 2 : 1;
  const auto opened = terms.open(part);
  typename Terms::reduced_t of_unit[kAtOnce];  // two chains: an addition takes four cycles
#pragma unroll
  for (auto& one : of_unit) one = terms.template identity<kMax>();
#pragma unroll
  for (uint32_t j = 0; j < kElements / kAtOnce; ++j) {
    typename Terms::reduced_t found[kAtOnce];
    opened.get(j, found);
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) sgl::details::accumulate<kMax>(of_unit[n], found[n]);
  }
  if constexpr (kAtOnce == 2) sgl::details::accumulate<kMax>(of_unit[0], of_unit[1]);
  return of_unit[0];
}

/// Merges the elements of one vector, the first of which has number `column`, into the state of a monoid.
template <uint32_t kElements, typename M, typename State, typename Of, typename Part>
SGL_DEVICE void merge(const M& monoid, State& state, const Of& of, const Part& part, int64_t column) {
  constexpr uint32_t kAtOnce = kElements % 2 == 0 ? 2 : 1;
  const auto& opened = of.open(part);
#pragma unroll
  for (uint32_t j = 0; j < kElements / kAtOnce; ++j) {
    float floats[kAtOnce];
    opened.get(j, floats);
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) state = monoid.merge(state, monoid.of(floats[n], column + j * kAtOnce + n));
  }
}

}  // namespace details

/// \brief A row of `kColumns` elements that `kThreads` threads share: lanes, a warp, a block, or blocks.
///
/// Vectors are striped: a thread has numbers `thread`, thread + kThreads and so on of the row, in registers.
/// \tparam kElements of a vector, a power of two that divides `kColumns`.
template <uint32_t kColumns, uint32_t kElements, uint32_t kThreads>
struct Stripes {
  static_assert(kColumns % kElements == 0, "Stripes: a row must be a whole number of vectors");
  enum : uint32_t { kVectors = kColumns / kElements, kHeld = div_ceil(kVectors, kThreads) };

  uint32_t thread;  ///< of those that share the row

  /// \brief Whether vector number `k` of this thread is one of the row.
  SGL_DEVICE bool has(uint32_t k) const {
    return (k + 1) * kThreads <= kVectors || part(k).index < kVectors;
  }
  SGL_DEVICE RowPart part(uint32_t k) const {
    return {k, k * kThreads + thread};
  }

  /// \brief Loads the row; its address is a multiple of a vector, up to 16 bytes.
  template <typename T>
  SGL_DEVICE auto load(const T* row) const {
    HeldRow<T, kElements, kHeld> held;
    load(row, held);
    return held;
  }
  template <typename T>
  SGL_DEVICE void load(const void* row, HeldRow<T, kElements, kHeld>& held) const {
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k)
      if (has(k)) held.vectors[k].load(row, part(k).index);
  }

  /// \brief The row at the same kind of address, in global or shared memory, loaded where it is used.
  template <typename T>
  SGL_DEVICE StreamedRow<T, kElements> in_memory(const T* row) const {
    return {row};
  }

  /// \brief Stores a value, rounded once; the same bits if it was loaded as `T`.
  template <typename T, typename Of>
  SGL_DEVICE void store(T* row, const Of& value) const {
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k)
      if (has(k)) details::rounded<T, kElements>(value, part(k)).store(row, part(k).index);
  }

  /// \brief The same value, computed here and not again where it is used.
  template <typename Of>
  SGL_DEVICE auto keep(const Of& of) const {
    KeptRow<kElements, kHeld> kept;
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      if (!has(k)) continue;
      const auto& opened = of.open(part(k));
      constexpr uint32_t kTogether = kElements % 2 == 0 ? 2 : 1;
#pragma unroll
      for (uint32_t j = 0; j < kElements / kTogether; ++j) {
        float floats[kTogether];
        opened.get(j, floats);
#pragma unroll
        for (uint32_t n = 0; n < kTogether; ++n) kept.vectors[k].floats[j * kTogether + n] = floats[n];
      }
    }
    return kept;
  }

  /// \brief The sum of `term` of the elements of values that this thread has, a float or `sgl::Values`.
  template <typename F, typename... Of>
  SGL_DEVICE auto sum(const F& term, const Of&... of) const {
    return m_reduce<false>(sgl::details::terms(term, of...));
  }
  /// \brief The largest of them; NaN is ignored.
  template <typename F, typename... Of>
  SGL_DEVICE auto max(const F& term, const Of&... of) const {
    return m_reduce<true>(sgl::details::terms(term, of...));
  }
  /// \brief The elements that this thread has, by a monoid: `of(element, column)`, `merge(a, b)`, `identity()`.
  template <typename M, typename Of>
  SGL_DEVICE auto reduce(const M& monoid, const Of& of) const {
    auto state = monoid.identity();
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k)
      if (has(k)) details::merge<kElements>(monoid, state, of, part(k), part(k).index * kElements);
    return state;
  }

 private:
  template <bool kMax, typename Terms>
  SGL_DEVICE auto m_reduce(const Terms& terms) const {
    auto reduced = terms.template identity<kMax>();
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k)
      if (has(k)) sgl::details::accumulate<kMax>(reduced, details::reduced<kMax, kElements>(terms, part(k)));
    return terms.result(reduced);
  }
};

}  // namespace device
