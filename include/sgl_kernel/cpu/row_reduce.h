#pragma once

#include <sgl_kernel/cpu/elements.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/cpu/row_job.h>
#include <sgl_kernel/functor.h>
#include <sgl_kernel/utils.h>

#include <cstdint>

/// \file cpu/row_reduce.h
/// \brief `host::RowReduce` on the CPU: each row is reduced, and then mapped with the result.

namespace host::cpu {

namespace details {

template <bool kMax>
[[gnu::always_inline]] inline double combine(double a, double b) {
  if constexpr (kMax) return a < b ? b : a;
  else return a + b;
}

template <int kFloats>
using Floats [[gnu::vector_size(4 * kFloats)]] = float;

template <bool kMax, typename Vector>
[[gnu::always_inline]] inline void combine_vectors(Vector& a, const Vector& b) {
  if constexpr (kMax) a = a < b ? b : a;
  else a = a + b;
}

/// \brief The reduction of all floats, by halves: one after the other would take longer than a short row. In vectors,
/// because g++ takes some arrays apart for it.
template <bool kMax, int kFloats, int kCount>
[[gnu::always_inline]] inline float combined(const Floats<kFloats> (&vectors)[kCount]) {
  constexpr sgl::details::Reduce<kMax> reduce;
  if constexpr (kCount > 1) {
    Floats<kFloats> halves[kCount / 2];
    for (int i = 0; i < kCount / 2; ++i) {
      halves[i] = vectors[i];
      combine_vectors<kMax>(halves[i], vectors[i + kCount / 2]);
    }
    return combined<kMax, kFloats>(halves);
  } else if constexpr (kFloats > 4) {
    Floats<4> parts[kFloats / 4];
    __builtin_memcpy(parts, vectors, sizeof(parts));
    return combined<kMax, 4>(parts);
  } else {
    return reduce(reduce(vectors[0][0], vectors[0][2]), reduce(vectors[0][1], vectors[0][3]));
  }
}

}  // namespace details

/// \brief The sum, or the maximum, of the terms of elements [0, size). The error of a sum does not grow with the size:
/// each lane adds at most kBlock / kLanes terms in float, with an error of some ulp, and the sums of blocks are added
/// in double.
/// \param visit an always_inline lambda: `visit(Vectors<n>{}, first, length, add)` calls `add(i, terms)` once for each
///   i below `length`, which is 32, or less with Vectors<1>; `terms` are the `sgl::Values` of the elements from `first`
///   on, in any order.
template <sgl::Reduction kReduction, int kFloats, int N, typename Visit>
[[gnu::always_inline]] inline void reduce_over(
    Vectors<kFloats> vectors, std::int64_t size, sgl::Values<N>& reduced, const Visit& visit) {
  constexpr std::int64_t kLanes = 32;  // independent, which fit into vectors: two of AVX-512, four of AVX2
  constexpr std::int64_t kBlock = 8192;
  constexpr int kVectors = kLanes / kFloats;
  constexpr bool kMax = kReduction == sgl::Reduction::kMax;
  double totals[N];
  for (double& total : totals) total = sgl::details::kIdentity<kMax>;
  std::int64_t i = 0;
  while (i + kLanes <= size) {
    const auto block_end = size - i < kBlock ? size : i + kBlock;
    details::Floats<kFloats> lanes[N][kVectors];
    for (auto& of_term : lanes) {
      for (auto& vector : of_term) vector = details::Floats<kFloats>{} + sgl::details::kIdentity<kMax>;
    }
    for (; i + kLanes <= block_end; i += kLanes) {
      float found[N][kLanes];
      visit(vectors, i, kLanes, [&](std::int64_t lane, const auto& terms) __attribute__((always_inline)) {
        for (int n = 0; n < N; ++n) found[n][lane] = terms.values[n];
      });
      for (int n = 0; n < N; ++n) {
        details::Floats<kFloats> terms[kVectors];
        __builtin_memcpy(terms, found[n], sizeof(terms));
        for (int k = 0; k < kVectors; ++k) details::combine_vectors<kMax>(lanes[n][k], terms[k]);
      }
    }
    for (int n = 0; n < N; ++n)
      totals[n] = details::combine<kMax>(totals[n], details::combined<kMax, kFloats>(lanes[n]));
  }
  visit(Vectors<1>{}, i, size - i, [&](std::int64_t, const auto& terms) __attribute__((always_inline)) {
    for (int n = 0; n < N; ++n) totals[n] = details::combine<kMax>(totals[n], terms.values[n]);
  });
  for (int n = 0; n < N; ++n) reduced.values[n] = static_cast<float>(totals[n]);
}

namespace details {

/// \brief One row of a reduction: where it begins in each input, shared row and output.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kShared, int kOutputs, typename T, typename U>
struct Row {
  static constexpr bool kCombines = sgl::details::kCombines<F>;
  static constexpr int kKept = sgl::details::kKept<F, kInputs>;

  const F& f;
  std::int64_t columns;
  const T* inputs[kInputs];
  const T* shared[kShared + 1];
  U* outputs[kOutputs];

  [[gnu::always_inline]] Row(const F& f, const RowJob<kInputs + kShared + kOutputs>& job, std::int64_t row)
      : f(f), columns(job.columns) {
    const auto at = [&](int i) { return pointer::offset(job.operands[i].data, row * job.operands[i].stride); };
    for (int i = 0; i < kInputs; ++i) inputs[i] = static_cast<const T*>(at(i));
    for (int i = 0; i < kShared; ++i) shared[i] = static_cast<const T*>(at(kInputs + i));
    for (int i = 0; i < kOutputs; ++i) outputs[i] = static_cast<U*>(at(kInputs + kShared + i));
  }

  /// Sets `kept` to the values of an element that the functor keeps.
  [[gnu::always_inline]] void keep(const float (&values)[kInputs], float* kept) const {
    if constexpr (kCombines) kept[0] = sgl::details::combine_inputs(f, values);
    else
      for (int i = 0; i < kInputs; ++i) kept[i] = values[i];
  }

  /// Whether the rows that are read next are asked for while this one is reduced, and not while it is mapped, when
  /// memory is busy with what is written. Two rows of float32 leave little of the first cache: a single pass over one
  /// takes longer for it, two passes gain.
  static constexpr bool kAsksEarly = sizeof(T) < 4 || sgl::details::kHasSecondPass<F>;

  /// Reduces the row to its statistic.
  /// \param ahead the distance in bytes of the rows that are read next, for each input.
  template <int kFloats>
  [[gnu::always_inline]] auto statistic(Vectors<kFloats> vectors, const std::int64_t (&ahead)[kInputs]) const {
    // An eighth is enough for an estimate; with a short row this would save little. It is rounded up to whole chunks of
    // all types. An eighth that lies far from the rest costs some bits, which elements of two bytes do not have.
    const bool estimates = sgl::details::kEstimates<F> && sizeof(T) < 4 && columns >= 1024;
    const auto estimated = estimates ? div_ceil(columns, 8 * 64) * 64 : columns;
    const auto reduce = [&](const auto& pass) __attribute__((always_inline)) {
      auto reduced = sgl::details::identity<F, kKept, decltype(pass)>();
      constexpr bool kMax = sgl::details::kIsMax<F, decltype(pass)>;
      constexpr bool kFirst = sgl::details::kIsFirst<decltype(pass)>;
      const auto visit = [&](auto part, std::int64_t first, std::int64_t length,
                             const auto& add) __attribute__((always_inline)) {
        const auto term = [&](std::int64_t i, const float (&values)[kInputs]) __attribute__((always_inline)) {
          float kept[kKept];
          keep(values, kept);
          add(i, pass.terms(f, kept));
        };
        if constexpr (kAsksEarly && (!kFirst || !sgl::details::kHasSecondPass<F>)) {
          for (int i = 0; i < kInputs; ++i) {
            for (std::int64_t line = first; line < first + length; line += 64 / sizeof(T))
              __builtin_prefetch(reinterpret_cast<const char*>(inputs[i] + line) + ahead[i]);
          }
        }
        for_each_element(part, inputs, first, length, term);
      };
      reduce_over<kMax ? sgl::Reduction::kMax : sgl::Reduction::kSum>(
          vectors, kFirst ? estimated : columns, reduced, visit);
      return reduced;
    };
    return sgl::details::statistic_of(f, static_cast<float>(columns), reduce, static_cast<float>(estimated));
  }

  template <int kFloats>
  [[gnu::always_inline]] void map(
      Vectors<kFloats> vectors, const auto& statistic, const std::int64_t (&ahead)[kInputs]) const {
    constexpr int kLate = kOutputs - kCombines;
    for (std::int64_t piece = 0; piece < columns; piece += kPiece) {
      const auto count = columns - piece < kPiece ? columns - piece : kPiece;
      for (int i = 0; i < kInputs && !kAsksEarly; ++i)
        prefetch(reinterpret_cast<const T*>(reinterpret_cast<const char*>(inputs[i] + piece) + ahead[i]), count);
      const auto body = [&]<int kSize>(Vectors<kSize>, std::int64_t begin, std::int64_t length)
                            __attribute__((always_inline)) {
                              constexpr int kCount = kTogether<T, U, kSize>;
                              const auto first = piece + begin;
                              InputChunk<T, kSize> x[kInputs + kShared];
                              OutputChunk<U, kSize> y[kOutputs];
                              for (int i = 0; i < kInputs; ++i) x[i].load(inputs[i] + first, length);
                              for (int i = 0; i < kShared; ++i) x[kInputs + i].load(shared[i] + first, length);
                              for (int i = 0; i < kOutputs; ++i) y[i].begin(outputs[i] + first);
                              SGL_INDEPENDENT_LOOP
                              for (std::int64_t j = 0; j < length / kCount; ++j) {
                                float from[kInputs + kShared][kCount], to[kOutputs][kCount];
                                for (int i = 0; i < kInputs + kShared; ++i) x[i].get(j, from[i]);
                                for (int n = 0; n < kCount; ++n) {
                                  float own[kInputs], values[kKept + kShared];
                                  for (int i = 0; i < kInputs; ++i) own[i] = from[i][n];
                                  keep(own, values);
                                  for (int i = 0; i < kShared; ++i) values[kKept + i] = from[kInputs + i][n];
                                  const auto results = sgl::details::call<kLate>(f, values, statistic);
                                  if constexpr (kCombines) to[0][n] = values[0];
                                  for (int i = 0; i < kLate; ++i) to[kCombines + i][n] = results.values[i];
                                }
                                for (int i = 0; i < kOutputs; ++i) y[i].set(j, to[i]);
                              }
                              for (auto& chunk : y) chunk.store(length);
                            };
      for_each_chunk<T, U>(vectors, count, body);
    }
  }
};

}  // namespace details

/// \brief Reduces and maps rows [begin, end). An output may be an input.
///
/// Short rows are reduced several at a time, before they are mapped: from the first term of a row to its statistic the
/// processor waits most of the time, and what waits for the statistic keeps it from looking further ahead.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kShared, int kOutputs, typename T, typename U, int kFloats>
[[gnu::always_inline]] inline void reduce_rows(
    Vectors<kFloats> vectors, const F& f, const RowJob<kInputs + kShared + kOutputs>& job, std::int64_t begin,
    std::int64_t end) {
  using Row = details::Row<F, kInputs, kShared, kOutputs, T, U>;
  constexpr std::int64_t kMost = 4;
  // Bytes of a row, so that rows stay in the first cache until they are mapped.
  constexpr std::int64_t kResident = 4096;
  const std::int64_t at_once = job.columns * kInputs * sizeof(T) <= kResident ? kMost : 1;
  decltype(Row(f, job, 0).statistic(vectors, {})) statistics[kMost];
  std::int64_t ahead[kInputs];
  for (int i = 0; i < kInputs; ++i) ahead[i] = at_once * job.operands[i].stride;
  for (auto first = begin; first < end; first += at_once) {
    const auto last = end - first < at_once ? end : first + at_once;
    for (auto row = first; row < last; ++row) {
      const auto statistic = statistics[row - first] = Row(f, job, row).statistic(vectors, ahead);
      if constexpr (sgl::details::kWritesRows<F>) f.write_row(row, statistic);
    }
    for (auto row = first; row < last; ++row) Row(f, job, row).map(vectors, statistics[row - first], ahead);
  }
}

/// \brief Calls `body(Vectors<n>{}, begin, end)` for ranges that together make `num_rows` rows, on several threads if
/// that pays off, in the version for the widest vectors.
/// \param columns elements of a row, for the work that it is.
template <typename Body>
void for_rows(std::int64_t num_rows, std::int64_t columns, const Body& body) {
  constexpr std::int64_t kElementsPerThread = 1 << 17;  // 50-100 us
  const auto grain = div_ceil(kElementsPerThread, columns > 0 ? columns : 1);
  parallel_for(num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
    with_widest_vectors([&](auto vectors) __attribute__((always_inline)) { body(vectors, begin, end); });
  });
}

/// \brief Reduces and maps each row; all is written when it returns. An output may be an input.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kShared, int kOutputs, typename T, typename U>
void row_reduce(const RowJob<kInputs + kShared + kOutputs>& job, const F& f) {
  for_rows(
      job.num_rows, job.columns,
      [&](auto vectors, std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
        reduce_rows<F, kInputs, kShared, kOutputs, T, U>(vectors, f, job, begin, end);
      });
}

}  // namespace host::cpu
