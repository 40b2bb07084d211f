/// \file window_cpu.cpp
/// \brief `append_to_window` on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/utils.h>

#include <cstdint>
#include <cstring>

#include "window.h"

namespace kvcache {

namespace {

/// Moves rows towards the front of a cache, or into it. Rows that are written from are not written before: rows go in
/// ascending order, and dense ones, which can overlap what they become, all together.
void move_rows(
    void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride, std::int64_t count,
    std::int64_t bytes) {
  if (to_stride == bytes && from_stride == bytes) {
    std::memmove(to, from, static_cast<std::size_t>(count * bytes));
    return;
  }
  for (std::int64_t row = 0; row < count; ++row)
    std::memcpy(
        host::pointer::offset(to, row * to_stride), host::pointer::offset(from, row * from_stride),
        static_cast<std::size_t>(bytes));
}

}  // namespace

void append_on_cpu(const Window& params) {
  constexpr std::int64_t kBytesPerThread = 1 << 20;  // 50 to 100 us
  const auto planes = params.batch * params.heads, kept = params.window - params.tokens;
  const auto bytes = params.window * (params.sides[0].row_bytes + params.sides[1].row_bytes) / 2;  // of a plane
  const auto grain = host::div_ceil(kBytesPerThread, bytes > 0 ? bytes : 1);
  host::cpu::parallel_for(2 * planes, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto number = begin; number < end; ++number) {
      const auto& side = params.sides[number < planes ? 0 : 1];
      const auto plane = number < planes ? number : number - planes;
      const auto batch = plane / params.heads, head = plane - batch * params.heads;
      if (side.row_bytes == 0) continue;
      void* cache = host::pointer::offset(side.cache, batch * side.cache_stride[0], head * side.cache_stride[1]);
      const void* rows = host::pointer::offset(side.rows, batch * side.rows_stride[0], head * side.rows_stride[1]);
      const auto stride = side.cache_stride[2];
      const void* oldest = host::pointer::offset(cache, params.tokens * stride);
      move_rows(cache, stride, oldest, stride, kept, side.row_bytes);
      void* newest = host::pointer::offset(cache, kept * stride);
      move_rows(newest, stride, rows, side.rows_stride[2], params.tokens, side.row_bytes);
    }
  });
}

}  // namespace kvcache
