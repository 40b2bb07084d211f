#pragma once

#include <sgl_kernel/cpu/elements.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/cpu/row_job.h>
#include <sgl_kernel/functor.h>
#include <sgl_kernel/utils.h>

#include <cstdint>

/// \file cpu/row_map.h
/// \brief `host::RowMap` on the CPU: a functor applied to every element of rows, on several threads if that pays off.

namespace host::cpu {

/// \brief Calls `body(Vectors<n>{}, row, first, count)` for pieces of rows that together are all of them, on several
/// threads if that pays off, in the version for the widest vectors. Threads share a long row too.
template <typename Body>
void for_each_piece(std::int64_t num_rows, std::int64_t columns, const Body& body) {
  constexpr std::int64_t kElementsPerThread = 1 << 17;  // 50-100 us
  if (columns == 0) return;
  const auto length = columns < kPiece ? columns : kPiece;
  const auto pieces_of_row = div_ceil(columns, length);
  parallel_for(
      num_rows * pieces_of_row, div_ceil(kElementsPerThread, length), [&](std::int64_t begin, std::int64_t end) {
        with_widest_vectors([&](auto vectors) __attribute__((always_inline)) {
          for (auto piece = begin; piece < end; ++piece) {
            const auto row = piece / pieces_of_row;
            const auto first = (piece - row * pieces_of_row) * length;
            body(vectors, row, first, columns - first < length ? columns - first : length);
          }
        });
      });
}

/// \brief Output i, element by element: result i of `f` for the inputs' elements, in float, rounded once.
///
/// An output may be an input. All is written when it returns.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kOutputs, typename T, typename U>
void row_map(const RowJob<kInputs + kOutputs>& job, const F& f) {
  const auto run = [&](auto vectors, std::int64_t row, std::int64_t first,
                       std::int64_t count) __attribute__((always_inline)) {
    const T* inputs[kInputs];
    U* outputs[kOutputs];
    const auto at = [&](int i) { return static_cast<char*>(job.operands[i].data) + row * job.operands[i].stride; };
    for (int i = 0; i < kInputs; ++i) inputs[i] = reinterpret_cast<const T*>(at(i)) + first;
    for (int i = 0; i < kOutputs; ++i) outputs[i] = reinterpret_cast<U*>(at(kInputs + i)) + first;
    for (int i = 0; i < kInputs; ++i) prefetch(inputs[i] + kPiece, count);
    const auto map = [&]<int kFloats>(Vectors<kFloats>, std::int64_t begin, std::int64_t length)
                         __attribute__((always_inline)) {
                           InputChunk<T, kFloats> x[kInputs];
                           OutputChunk<U, kFloats> y[kOutputs];
                           for (int i = 0; i < kInputs; ++i) x[i].load(inputs[i] + begin, length);
                           for (int i = 0; i < kOutputs; ++i) y[i].begin(outputs[i] + begin);
                           constexpr int kCount = kTogether<T, U, kFloats>;
                           SGL_INDEPENDENT_LOOP
                           for (std::int64_t j = 0; j < length / kCount; ++j) {
                             float from[kInputs][kCount], to[kOutputs][kCount];
                             for (int i = 0; i < kInputs; ++i) x[i].get(j, from[i]);
                             for (int n = 0; n < kCount; ++n) {
                               float values[kInputs];
                               for (int i = 0; i < kInputs; ++i) values[i] = from[i][n];
                               const auto results = sgl::details::call<kOutputs>(f, values);
                               for (int i = 0; i < kOutputs; ++i) to[i][n] = results.values[i];
                             }
                             for (int i = 0; i < kOutputs; ++i) y[i].set(j, to[i]);
                           }
                           for (auto& chunk : y) chunk.store(length);
                         };
    for_each_chunk<T, U>(vectors, count, map);
  };
  for_each_piece(job.num_rows, job.columns, run);
}

}  // namespace host::cpu
