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

using FourLanes = float __attribute__((vector_size(16)));

/// \brief The reduction of lanes, by halves: one after the other would take longer than a short row. In vectors,
/// because g++ takes some arrays apart for it.
template <bool kMax, int kCount>
[[gnu::always_inline]] inline float combined(const FourLanes (&lanes)[kCount]) {
  if constexpr (kCount == 1) {
    constexpr sgl::details::Reduce<kMax> reduce;
    return reduce(reduce(lanes[0][0], lanes[0][2]), reduce(lanes[0][1], lanes[0][3]));
  } else {
    FourLanes halves[kCount / 2];
    for (int i = 0; i < kCount / 2; ++i) {
      const auto a = lanes[i], b = lanes[i + kCount / 2];
      if constexpr (kMax) halves[i] = a < b ? b : a;
      else halves[i] = a + b;
    }
    return combined<kMax>(halves);
  }
}

}  // namespace details

/// \brief The sum, or the maximum, of the terms of elements [0, size). The error of a sum does not grow with the size:
/// each lane adds at most kBlock / kLanes terms in float, with an error of some ulp, and the sums of blocks are added
/// in double.
/// \param visit an always_inline lambda: `visit(Vectors<n>{}, first, length, add)` calls `add(i, terms)` with the
///   `sgl::Values` of element first + i, for each of `length`: 32, or fewer with Vectors<1>.
template <sgl::Reduction kReduction, int kFloats, int N, typename Visit>
[[gnu::always_inline]] inline void reduce_over(
    Vectors<kFloats> vectors, std::int64_t size, sgl::Values<N>& reduced, const Visit& visit) {
  constexpr std::int64_t kLanes = 32;  // independent, which fit into vectors: two of AVX-512, four of AVX2
  constexpr std::int64_t kBlock = 8192;
  constexpr bool kMax = kReduction == sgl::Reduction::kMax;
  double totals[N];
  for (double& total : totals) total = sgl::details::kIdentity<kMax>;
  std::int64_t i = 0;
  while (i + kLanes <= size) {
    const auto block_end = size - i < kBlock ? size : i + kBlock;
    float lanes[N][kLanes];
    for (auto& of_term : lanes) {
      for (float& lane : of_term) lane = sgl::details::kIdentity<kMax>;
    }
    for (; i + kLanes <= block_end; i += kLanes) {
      visit(vectors, i, kLanes, [&](std::int64_t lane, const auto& terms) __attribute__((always_inline)) {
        for (int n = 0; n < N; ++n) lanes[n][lane] = sgl::details::Reduce<kMax>{}(lanes[n][lane], terms.values[n]);
      });
    }
    for (int n = 0; n < N; ++n) {
      details::FourLanes vectors_of_lanes[kLanes / 4];
      __builtin_memcpy(vectors_of_lanes, lanes[n], sizeof(vectors_of_lanes));
      totals[n] = details::combine<kMax>(totals[n], details::combined<kMax>(vectors_of_lanes));
    }
  }
  visit(Vectors<1>{}, i, size - i, [&](std::int64_t, const auto& terms) __attribute__((always_inline)) {
    for (int n = 0; n < N; ++n) totals[n] = details::combine<kMax>(totals[n], terms.values[n]);
  });
  for (int n = 0; n < N; ++n) reduced.values[n] = static_cast<float>(totals[n]);
}

/// \brief Reduces and maps one row. An output may be an input.
/// \param addresses where the row begins in each input, shared row and output.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kShared, int kOutputs, typename T, typename U, int kFloats>
[[gnu::always_inline]] inline void reduce_row(
    Vectors<kFloats> vectors, const F& f, std::int64_t columns, std::int64_t row,
    void* const (&addresses)[kInputs + kShared + kOutputs]) {
  constexpr bool kCombines = sgl::details::kCombines<F>;
  constexpr int kKept = sgl::details::kKept<F, kInputs>;
  constexpr int kLate = kOutputs - kCombines;
  const T* inputs[kInputs + kShared];
  U* outputs[kOutputs];
  for (int i = 0; i < kInputs + kShared; ++i) inputs[i] = static_cast<const T*>(addresses[i]);
  for (int i = 0; i < kOutputs; ++i) outputs[i] = static_cast<U*>(addresses[kInputs + kShared + i]);
  const auto keep = [&](const auto& x, std::int64_t j, float* kept) __attribute__((always_inline)) {
    float values[kInputs];
    for (int i = 0; i < kInputs; ++i) values[i] = x[i][j];
    if constexpr (kCombines) kept[0] = sgl::details::combine_inputs(f, values);
    else
      for (int i = 0; i < kInputs; ++i) kept[i] = values[i];
  };
  const auto reduce = [&](const auto& pass) __attribute__((always_inline)) {
    auto reduced = sgl::details::identity<F, kKept, decltype(pass)>();
    constexpr bool kMax = sgl::details::kIsMax<F, decltype(pass)>;
    const auto visit = [&]<int kSize>(Vectors<kSize>, std::int64_t first, std::int64_t length, const auto& add)
                           __attribute__((always_inline)) {
                             InputChunk<T, kSize> x[kInputs];
                             for (int i = 0; i < kInputs; ++i) x[i].load(inputs[i] + first, length);
                             for (std::int64_t j = 0; j < length; ++j) {
                               float kept[kKept];
                               keep(x, j, kept);
                               add(j, pass.terms(f, kept));
                             }
                           };
    reduce_over<kMax ? sgl::Reduction::kMax : sgl::Reduction::kSum>(vectors, columns, reduced, visit);
    return reduced;
  };
  const auto statistic = sgl::details::statistic_of(f, static_cast<float>(columns), reduce);
  if constexpr (sgl::details::kWritesRows<F>) f.write_row(row, statistic);
  for (std::int64_t piece = 0; piece < columns; piece += kPiece) {
    const auto count = columns - piece < kPiece ? columns - piece : kPiece;
    for (int i = 0; i < kInputs; ++i) prefetch(inputs[i] + columns + piece, count);  // the next row, if none is between
    const auto map = [&]<int kSize>(Vectors<kSize>, std::int64_t begin, std::int64_t length)
                         __attribute__((always_inline)) {
                           const auto first = piece + begin;
                           InputChunk<T, kSize> x[kInputs + kShared];
                           OutputChunk<U, kSize> y[kOutputs];
                           for (int i = 0; i < kInputs + kShared; ++i) x[i].load(inputs[i] + first, length);
                           for (int i = 0; i < kOutputs; ++i) y[i].begin(outputs[i] + first);
                           SGL_INDEPENDENT_LOOP
                           for (std::int64_t j = 0; j < length; ++j) {
                             float values[kKept + kShared];
                             keep(x, j, values);
                             for (int i = 0; i < kShared; ++i) values[kKept + i] = x[kInputs + i][j];
                             const auto results = sgl::details::call<kLate>(f, values, statistic);
                             if constexpr (kCombines) y[0].set(j, values[0]);
                             for (int i = 0; i < kLate; ++i) y[kCombines + i].set(j, results.values[i]);
                           }
                           for (auto& chunk : y) chunk.store(length);
                         };
    for_each_chunk<T, U>(vectors, count, map);
  }
}

/// \brief Calls `body(Vectors<n>{}, row)` for each of `num_rows` rows, on several threads if that pays off, in the
/// version for the widest vectors.
/// \param columns elements of a row, for the work that it is.
template <typename Body>
void for_each_row(std::int64_t num_rows, std::int64_t columns, const Body& body) {
  constexpr std::int64_t kElementsPerThread = 1 << 17;  // 50-100 us
  const auto grain = div_ceil(kElementsPerThread, columns > 0 ? columns : 1);
  parallel_for(num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
    with_widest_vectors([&](auto vectors) __attribute__((always_inline)) {
      for (auto row = begin; row < end; ++row) body(vectors, row);
    });
  });
}

/// \brief Reduces and maps each row; all is written when it returns. An output may be an input.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kShared, int kOutputs, typename T, typename U>
void row_reduce(const RowJob<kInputs + kShared + kOutputs>& job, const F& f) {
  constexpr int kOperands = kInputs + kShared + kOutputs;
  for_each_row(job.num_rows, job.columns, [&](auto vectors, std::int64_t row) __attribute__((always_inline)) {
    void* addresses[kOperands];
    for (int i = 0; i < kOperands; ++i)
      addresses[i] = pointer::offset(job.operands[i].data, row * job.operands[i].stride);
    reduce_row<F, kInputs, kShared, kOutputs, T, U>(vectors, f, job.columns, row, addresses);
  });
}

}  // namespace host::cpu
