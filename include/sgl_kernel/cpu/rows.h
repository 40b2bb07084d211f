#pragma once

#include <sgl_kernel/cpu/elements.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/functor.h>
#include <sgl_kernel/utils.h>

#include <cstdint>

/// \file cpu/rows.h
/// \brief Rows on the CPU: how threads share them, and how one is reduced.

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

/// Puts lanes in the order of their elements: lane n * (lanes / kTogether) + j is that of element kTogether * j + n.
template <int kTogether, typename Lanes>
[[gnu::always_inline]] inline void put_in_order(Lanes& lanes) {
  constexpr int kLanes = sizeof(Lanes) / sizeof(float), kEach = kLanes / kTogether;
  float found[kLanes], ordered[kLanes];
  __builtin_memcpy(found, &lanes, sizeof(found));
  for (int lane = 0; lane < kLanes; ++lane) ordered[lane % kEach * kTogether + lane / kEach] = found[lane];
  __builtin_memcpy(&lanes, ordered, sizeof(ordered));
}

}  // namespace details

/// \brief The sum, or the maximum, of the terms of elements [0, size). The error of a sum does not grow with the size:
/// each lane adds at most kBlock / kLanes terms in float, with an error of some ulp, and the sums of blocks are added
/// in double.
/// \param visit an always_inline lambda: `visit(Vectors<n>{}, first, length, add)` calls `add(i, terms)` once for each
///   i below `length`, which is 32, or less with Vectors<1>; `terms` are the `sgl::Values` of the elements from `first`
///   on.
/// \tparam kTogether the elements of a word that is read at once: with the widest vectors, i is
///   n * (length / kTogether) + j for element kTogether * j + n. The bits of the result do not depend on it.
template <sgl::Reduction kReduction, int kTogether = 1, int kFloats, int N, typename Visit>
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
    for (int n = 0; n < N; ++n) {
      if constexpr (kTogether > 1 && !kMax) details::put_in_order<kTogether>(lanes[n]);
      totals[n] = details::combine<kMax>(totals[n], details::combined<kMax, kFloats>(lanes[n]));
    }
  }
  visit(Vectors<1>{}, i, size - i, [&](std::int64_t, const auto& terms) __attribute__((always_inline)) {
    for (int n = 0; n < N; ++n) totals[n] = details::combine<kMax>(totals[n], terms.values[n]);
  });
  for (int n = 0; n < N; ++n) reduced.values[n] = static_cast<float>(totals[n]);
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

/// \brief Calls `body(Vectors<n>{}, row, first, count)` for pieces of rows that together are all of them, on several
/// threads if that pays off, in the version for the widest vectors. Threads share a long row too.
template <typename Body>
void for_each_piece(std::int64_t num_rows, std::int64_t columns, const Body& body) {
  constexpr std::int64_t kElementsPerThread = 1 << 17;  // 50-100 us
  constexpr std::int64_t kMostElements = 1 << 9;        // of a piece
  if (columns == 0) return;
  const auto length = columns < kMostElements ? columns : kMostElements;
  const auto pieces_of_row = div_ceil(columns, length);
  parallel_for(
      num_rows * pieces_of_row, div_ceil(kElementsPerThread, length), [&](std::int64_t begin, std::int64_t end) {
        with_widest_vectors([&](auto vectors) __attribute__((always_inline)) {
          for (auto piece = begin; piece < end; ++piece) {
            const auto row = piece / pieces_of_row;
            const auto first = (piece - row * pieces_of_row) * length;
            body(vectors, row, first, columns - first < length ? columns - first : length);
          }
          end_streams();
        });
      });
}

}  // namespace host::cpu
