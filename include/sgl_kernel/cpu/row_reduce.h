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

/// \brief The sum, or the maximum, of the terms of `size` elements. The error of a sum does not grow with the size:
/// each lane adds at most kBlock / kLanes terms in float, with an error of some ulp, and the sums of blocks are added
/// in double.
/// \param inputs where the elements of each input begin.
/// \tparam kAsks whether to ask for what is read next.
/// \param ahead the distance to it in bytes, for each input.
/// \param terms_of an always_inline lambda from a float of each input, as an array, to `sgl::Values`.
template <sgl::Reduction kReduction, bool kAsks, typename T, int kFloats, int kInputs, int N, typename Terms>
[[gnu::always_inline]] inline void reduce_over(
    Vectors<kFloats>, const T* const (&inputs)[kInputs], const std::int64_t (&ahead)[kInputs], std::int64_t size,
    sgl::Values<N>& reduced, const Terms& terms_of) {
  constexpr int kLanes = 32;  // independent, which fit into vectors: two of AVX-512, four of AVX2
  constexpr std::int64_t kBlock = 8192;
  constexpr int kVectors = kLanes / kFloats;
  constexpr int kCount = kTogether<T, T, kFloats>;
  constexpr bool kMax = kReduction == sgl::Reduction::kMax;
  constexpr float kIdentity = sgl::details::kIdentity<kMax>;
  const auto find = [&](const T* const(&from)[kInputs], float (&found)[N][kLanes]) __attribute__((always_inline)) {
    InputChunk<T, kFloats> x[kInputs];
    for (int i = 0; i < kInputs; ++i) x[i].load(from[i], kLanes);
    SGL_ROLLED_LOOP
    for (int j = 0; j < kLanes / kCount; ++j) {
      float floats[kInputs][kCount];
      for (int i = 0; i < kInputs; ++i) x[i].get(j, floats[i]);
      for (int n = 0; n < kCount; ++n) {
        float values[kInputs];
        for (int i = 0; i < kInputs; ++i) values[i] = floats[i][n];
        const auto terms = terms_of(values);
        for (int k = 0; k < N; ++k) found[k][n * (kLanes / kCount) + j] = terms.values[k];
      }
    }
  };
  double totals[N];
  for (double& total : totals) total = kIdentity;
  for (std::int64_t first = 0; first < size;) {
    const auto block_end = size - first < kBlock ? size : first + kBlock;
    details::Floats<kFloats> lanes[N][kVectors];
    for (auto& of_term : lanes) {
      for (auto& vector : of_term) vector = details::Floats<kFloats>{} + kIdentity;
    }
    const auto add = [&](const float (&found)[N][kLanes]) __attribute__((always_inline)) {
      for (int n = 0; n < N; ++n) {
        details::Floats<kFloats> terms[kVectors];
        __builtin_memcpy(terms, found[n], sizeof(terms));
        for (int k = 0; k < kVectors; ++k) details::combine_vectors<kMax>(lanes[n][k], terms[k]);
      }
    };
    for (; first + kLanes <= block_end; first += kLanes) {
      const T* from[kInputs];
      for (int i = 0; i < kInputs; ++i) {
        from[i] = inputs[i] + first;
        for (int line = 0; kAsks && line < kLanes; line += 64 / sizeof(T))
          __builtin_prefetch(reinterpret_cast<const char*>(from[i] + line) + ahead[i]);
      }
      float found[N][kLanes];
      find(from, found);
      add(found);
    }
    if (first < block_end) {
      const auto left = block_end - first;
      PaddedChunk<T, kLanes> ends[kInputs];
      const T* from[kInputs];
      for (int i = 0; i < kInputs; ++i) from[i] = ends[i].copy(inputs[i] + first, left);
      float found[N][kLanes];
      find(from, found);
      constexpr int kIterations = kLanes / kCount;
      for (int k = 0; k < N * kCount; ++k) {
        float* terms = &found[k / kCount][k % kCount * kIterations];
        SGL_ROLLED_LOOP
        for (int j = 0; j < kIterations; ++j) terms[j] = j * kCount + k % kCount < left ? terms[j] : kIdentity;
      }
      add(found);
      first = block_end;
    }
    for (int n = 0; n < N; ++n)
      totals[n] = details::combine<kMax>(totals[n], details::combined<kMax, kFloats>(lanes[n]));
  }
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
  const T* read[kInputs + kShared];  // the shared rows behind the inputs
  U* outputs[kOutputs];

  [[gnu::always_inline]] Row(const F& f, const RowJob<kInputs + kShared + kOutputs>& job, std::int64_t row)
      : f(f), columns(job.columns) {
    const auto at = [&](int i) { return pointer::offset(job.operands[i].data, row * job.operands[i].stride); };
    for (int i = 0; i < kInputs; ++i) inputs[i] = static_cast<const T*>(at(i));
    for (int i = 0; i < kInputs + kShared; ++i) read[i] = static_cast<const T*>(at(i));
    for (int i = 0; i < kOutputs; ++i) outputs[i] = static_cast<U*>(at(kInputs + kShared + i));
  }

  /// What the functor keeps of an element.
  [[gnu::always_inline]] void keep(const float (&values)[kInputs], float* kept) const {
    if constexpr (kCombines) kept[0] = sgl::details::combine_inputs(f, values);
    else
      for (int i = 0; i < kInputs; ++i) kept[i] = values[i];
  }

  /// What the row is reduced to. Meanwhile the rows that are read next are asked for: while a row is mapped, memory is
  /// busy with what is written.
  /// \param ahead the distance in bytes of these rows, for each input.
  template <int kFloats>
  [[gnu::always_inline]] auto statistic(Vectors<kFloats> vectors, const std::int64_t (&ahead)[kInputs]) const {
    // An eighth for an estimate, in whole chunks; of a short row this would save little.
    const auto estimated = sgl::details::kEstimates<F> && columns >= 1024 ? columns / 8 & -64 : columns;
    const auto reduce = [&](const auto& pass) __attribute__((always_inline)) {
      auto reduced = sgl::details::identity<F, kKept, decltype(pass)>();
      constexpr bool kMax = sgl::details::kIsMax<F, decltype(pass)>;
      constexpr bool kFirst = sgl::details::kIsFirst<decltype(pass)>;
      const auto terms_of = [&](const float (&values)[kInputs]) __attribute__((always_inline)) {
        float kept[kKept];
        keep(values, kept);
        return pass.terms(f, kept);
      };
      constexpr bool kLast = !kFirst || !sgl::details::kHasSecondPass<F>;
      reduce_over<kMax ? sgl::Reduction::kMax : sgl::Reduction::kSum, kLast>(
          vectors, inputs, ahead, kFirst ? estimated : columns, reduced, terms_of);
      return reduced;
    };
    return sgl::details::statistic_of(f, static_cast<float>(columns), reduce, static_cast<float>(estimated));
  }

  template <int kFloats>
  [[gnu::always_inline]] void map(Vectors<kFloats>, const auto& statistic) const {
    constexpr int kLate = kOutputs - kCombines;
    constexpr int kSize = kChunk<U>;
    constexpr int kCount = kTogether<T, U, kFloats>;
    const auto body = [&](const T* const(&from)[kInputs + kShared], U* const(&to)[kOutputs])
                          __attribute__((always_inline)) {
                            InputChunk<T, kFloats> x[kInputs + kShared];
                            OutputChunk<U, kFloats> y[kOutputs];
                            for (int i = 0; i < kInputs + kShared; ++i) x[i].load(from[i], kSize);
                            for (int i = 0; i < kOutputs; ++i) y[i].begin(to[i]);
                            SGL_INDEPENDENT_LOOP
                            for (int j = 0; j < kSize / kCount; ++j) {
                              float floats[kInputs + kShared][kCount], results[kOutputs][kCount];
                              for (int i = 0; i < kInputs + kShared; ++i) x[i].get(j, floats[i]);
                              for (int n = 0; n < kCount; ++n) {
                                float values[kInputs], with_shared[kKept + kShared];
                                for (int i = 0; i < kInputs; ++i) values[i] = floats[i][n];
                                keep(values, with_shared);
                                for (int i = 0; i < kShared; ++i) with_shared[kKept + i] = floats[kInputs + i][n];
                                const auto late = sgl::details::call<kLate>(f, with_shared, statistic);
                                if constexpr (kCombines) results[0][n] = with_shared[0];
                                for (int i = 0; i < kLate; ++i) results[kCombines + i][n] = late.values[i];
                              }
                              for (int i = 0; i < kOutputs; ++i) y[i].set(j, results[i]);
                            }
                            for (auto& chunk : y) chunk.store(kSize);
                          };
    for_each_chunk(read, outputs, columns, body);
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
  constexpr std::int64_t kResident =
      4096;  // bytes of a row, so that rows stay in the first cache until they are mapped
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
    for (auto row = first; row < last; ++row) Row(f, job, row).map(vectors, statistics[row - first]);
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
