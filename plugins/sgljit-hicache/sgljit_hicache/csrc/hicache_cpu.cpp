/// \file hicache_cpu.cpp
/// \brief The transfer on the CPU. Compiled when it is first needed.

#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/utils.h>

#include <cstdint>
#include <cstring>

#include "hicache_job.h"

namespace {

/// Copies positions [begin, end) of one layer of one cache; rows that are neighbours on both sides are copied as one.
template <typename Index>
void copy_positions(
    const hicache::Job& job, char* dst, const char* src, const Index* dst_indices, const Index* src_indices,
    std::int64_t begin, std::int64_t end) {
  // With copies of the caches: as far as the compiler knows, a row that is written may be part of the job.
  const auto to = [&, cache = *job.dst](std::int64_t i) { return dst + cache.offset_of(dst_indices[i]); };
  const auto from = [&, cache = *job.src](std::int64_t i) { return src + cache.offset_of(src_indices[i]); };
  for (auto i = begin; i < end;) {
    char* const run_dst = to(i);
    const char* const run_src = from(i);
    auto size = job.row_bytes;
    for (++i; i < end && to(i) == run_dst + size && from(i) == run_src + size; ++i) size += job.row_bytes;
    if (run_dst != run_src) std::memcpy(run_dst, run_src, static_cast<std::size_t>(size));
  }
}

/// Moves the rows, at least one.
void transfer_on_cpu(const hicache::Job& job) {
  constexpr std::int64_t kBytesPerThread = 1 << 20;  // 50 to 100 us
  const auto& t = job.transfer;
  const auto grain = host::div_ceil(kBytesPerThread, job.row_bytes * job.num_caches);
  const auto total = static_cast<std::int64_t>(t.num_rows) * t.num_layers;
  host::cpu::parallel_for(total, grain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {  // layer by layer
      const auto layer = begin / t.num_rows;
      const auto first = begin - layer * t.num_rows;
      const auto left = t.num_rows - first;
      const auto count = end - begin < left ? end - begin : left;
      for (int c = 0; c < job.num_caches; ++c) {
        auto* const dst = reinterpret_cast<char*>(job.dst[c].layers[layer]);
        const auto* const src = reinterpret_cast<const char*>(job.src[c].layers[layer]);
        job.with_indices(
            [&](const auto* to, const auto* from) { copy_positions(job, dst, src, to, from, first, first + count); });
      }
      begin += count;
    }
  });
}

}  // namespace
