/// \file hicache_check.cpp
/// \brief Checks indices on the CPU, and writes the error for a bad one. Compiled when it is first needed.

#include <sgl_kernel/deferred.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hicache_job.h"

namespace {

using hicache::Job, hicache::refuse;

[[noreturn, gnu::cold, gnu::noinline]] void refuse_index(
    const char* op, const char* name, std::uint32_t position, std::int64_t index, std::int64_t num_rows) {
  if (num_rows == hicache::kUnknown)
    refuse("IndexError", op, name, "[", position, "] is ", index, "; an index must not be negative");
  refuse("IndexError", op, name, "[", position, "] is ", index, ", out of range for a cache of ", num_rows, " rows");
}

/// Throw for the first position with an index out of range, a repeated destination, or a source that is
/// overwritten.
template <typename Index>
void check(const Job& job, const Index* dst, const Index* src) {
  const auto num_rows = job.transfer.num_rows;
  constexpr auto kNone = 0xffffffffu;
  // Where each destination is named first: a hash table of positions, with open addressing.
  std::vector<std::uint32_t> positions(std::bit_ceil(2 * std::size_t{num_rows} + 1), kNone);
  const auto position_of = [&](Index index) -> std::uint32_t& {
    auto at = static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15u >> 32;
    for (;; ++at) {
      auto& position = positions[at & (positions.size() - 1)];
      if (position == kNone || dst[position] == index) return position;
    }
  };
  for (std::uint32_t i = 0; i < num_rows; ++i) {
    if (src[i] < 0 || src[i] >= job.src->num_rows) refuse_index(job.op, "indices_src", i, src[i], job.src->num_rows);
    if (dst[i] < 0 || dst[i] >= job.dst->num_rows) refuse_index(job.op, "indices_dst", i, dst[i], job.dst->num_rows);
    auto& before = position_of(dst[i]);
    if (before != kNone)
      refuse(
          "ValueError", job.op, "indices_dst[", i, "] is ", dst[i], ", as is indices_dst[", before,
          "]: two rows would be written to one place");
    before = i;
  }
  if (!job.is_in_place) return;
  for (std::uint32_t i = 0; i < num_rows; ++i) {
    const auto writer = position_of(src[i]);
    if (writer != kNone && writer != i)
      refuse(
          "ValueError", job.op, "indices_src[", i, "] is ", src[i], ", and indices_dst[", writer,
          "] overwrites that row: source and destination are one cache");
  }
}

/// Throw for the first bad index, if there is one.
void check_on_cpu(const Job& job) {
  job.with_indices([&](const auto* dst, const auto* src) { check(job, dst, src); });
}

}  // namespace
