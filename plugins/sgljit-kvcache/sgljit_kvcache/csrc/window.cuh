#pragma once

#include <sgl_kernel/device.cuh>
#include <sgl_kernel/vec.cuh>

#include "window.h"

/// \file window.cuh
/// \brief The kernel of `append_to_window`. Compiles under NVRTC.

namespace kvcache {

using namespace device;

inline constexpr uint32_t kRowsOfThread = 8;  // that it asks for at once

/// \brief Each block has one head of one sequence, of keys or of values, and some columns of all of its rows.
///
/// A row comes from `tokens` rows behind it, in the same memory, and no block reads what another one writes: the
/// columns of a block are its own. The block goes from the first row to the last, in chunks. It loads for all rows of a
/// chunk, meets at the barrier, and stores them.
/// - In a chunk, all loads come before the barrier, and all stores after it.
/// - A chunk that begins at row b stores no row before b, and loads none before b + tokens: what earlier chunks have
///   stored lies before b. So no load finds a row that is already stored.
/// - A store overwrites a row that its own chunk or an earlier one loads. A thread that stores has passed the barrier
///   of its chunk, which each thread reaches after its loads of this and of all earlier chunks.
///
/// So one barrier for each chunk is enough. All threads of a block meet at each, also those without a column.
/// \tparam kBytes of a load. Addresses, rows and their strides are multiples of it.
template <uint32_t kBytes>
__global__ __launch_bounds__(kWindowThreads) void append(const __grid_constant__ Window params) {
  using Vector = Word<kBytes>;
  const uint32_t slices = params.sides[0].slices + params.sides[1].slices;
  const uint32_t plane = blockIdx.x / slices, number = blockIdx.x - plane * slices;
  const bool is_second = number >= params.sides[0].slices;
  const WindowSide& side = params.sides[is_second ? 1 : 0];
  const uint32_t slice = is_second ? number - params.sides[0].slices : number;
  const auto heads = static_cast<uint32_t>(params.heads);
  const uint32_t batch = plane / heads, head = plane - batch * heads;

  const uint32_t lanes = 1u << params.lane_bits, rows_at_once = kWindowThreads >> params.lane_bits;
  const int64_t column = ((int64_t{slice} << params.lane_bits) + (threadIdx.x & (lanes - 1))) * kBytes;
  const uint32_t first = threadIdx.x >> params.lane_bits;  // row of a chunk
  const int64_t kept = params.window - params.tokens;      // rows that come from the cache
  const int64_t end = column < side.row_bytes ? params.window : 0;
  const int64_t stride = side.row_bytes, rows_stride = side.rows_stride[2];
  const int64_t step = rows_at_once * stride, rows_step = rows_at_once * rows_stride;
  void* to = pointer::offset(side.cache, (plane * params.window + first) * stride, column);
  const void* from = pointer::offset(to, params.tokens * stride);
  const void* appended = pointer::offset(
      side.rows, batch * side.rows_stride[0], head * side.rows_stride[1], column, (first - kept) * rows_stride);

  constexpr auto kRows = int64_t{kRowsOfThread};
  PDLWaitPrimary();
  for (int64_t begin = 0; begin < params.window; begin += kRows * rows_at_once) {
    const auto in_chunk = [&](int64_t row) {
      const int64_t inside = row - begin, all = kRows * rows_at_once;
      return static_cast<int>(inside < 0 ? 0 : inside < all ? inside : all);
    };
    const int kept_here = in_chunk(kept), end_here = in_chunk(end);
    Vector vectors[kRowsOfThread];
#pragma unroll
    for (uint32_t i = 0; i < kRowsOfThread; ++i) {
      const auto row = static_cast<int>(i * rows_at_once + first);
      if (row < end_here) vectors[i] = load_as<Vector>(row < kept_here ? from : appended);
      from = pointer::offset(from, step);
      appended = pointer::offset(appended, rows_step);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < kRowsOfThread; ++i) {
      const auto row = static_cast<int>(i * rows_at_once + first);
      if (row < end_here) store_as<Vector>(to, vectors[i]);
      to = pointer::offset(to, step);
    }
  }
  PDLTriggerSecondary();
}

}  // namespace kvcache
