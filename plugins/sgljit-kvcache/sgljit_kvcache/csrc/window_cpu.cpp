/// \file window_cpu.cpp
/// \brief `append_to_window` on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/utils.h>

#include <cstdint>
#include <cstring>

#include "window.h"

namespace kvcache {

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
      const auto row_bytes = static_cast<std::size_t>(side.row_bytes);
      void* cache = host::pointer::offset(side.cache, plane * params.window * side.row_bytes);
      const void* oldest = host::pointer::offset(cache, params.tokens * side.row_bytes);
      std::memmove(cache, oldest, static_cast<std::size_t>(kept) * row_bytes);
      const void* rows = host::pointer::offset(side.rows, batch * side.rows_stride[0], head * side.rows_stride[1]);
      for (std::int64_t token = 0; token < params.tokens; ++token)
        std::memcpy(
            host::pointer::offset(cache, (kept + token) * side.row_bytes),
            host::pointer::offset(rows, token * side.rows_stride[2]), row_bytes);
    }
  });
}

}  // namespace kvcache
