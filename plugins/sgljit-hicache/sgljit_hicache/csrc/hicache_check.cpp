/// \file hicache_check.cpp
/// \brief Checks indices on the CPU, and writes the error for a bad one. Compiled when it is first needed.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hicache_job.h"

namespace {

using hicache::Job;
using hicache::kUnknownRows;
using hicache::refuse;

/// The first position of each number: a hash table with open addressing.
template <typename Index>
struct IndexSet {
 public:
  explicit IndexSet(std::size_t size) : m_slots(std::bit_ceil(2 * size + 1), Slot{0, kNone}) {}

  /// The position at which `index` was first inserted; `position`, if it is new.
  std::uint32_t insert(Index index, std::uint32_t position) {
    auto& slot = m_find(index);
    if (slot.position == kNone) slot = {index, position};
    return slot.position;
  }
  /// The position of `index`, or `kNone`.
  std::uint32_t find(Index index) {
    return m_find(index).position;
  }

  static constexpr std::uint32_t kNone = 0xffffffffu;

 private:
  struct Slot {
    Index index;
    std::uint32_t position;
  };
  Slot& m_find(Index index) {
    const auto mask = m_slots.size() - 1;
    auto at = static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15u >> 32;
    while (m_slots[at & mask].position != kNone && m_slots[at & mask].index != index) ++at;
    return m_slots[at & mask];
  }
  std::vector<Slot> m_slots;
};

[[noreturn, gnu::cold, gnu::noinline]] void refuse_index(
    const char* op, const char* name, std::uint32_t position, std::int64_t index, std::int64_t num_rows) {
  if (num_rows == kUnknownRows)
    refuse("IndexError", op, name, "[", position, "] is ", index, "; an index must not be negative");
  refuse("IndexError", op, name, "[", position, "] is ", index, ", out of range for a cache of ", num_rows, " rows");
}

/// Throw for the first position with an index out of range, a repeated destination, or a source that is
/// overwritten.
template <typename Index>
void check(const Job& job, const Index* dst, const Index* src) {
  IndexSet<Index> seen(job.transfer.num_rows);
  for (std::uint32_t i = 0; i < job.transfer.num_rows; ++i) {
    if (src[i] < 0 || src[i] >= job.src_rows) refuse_index(job.op, "indices_src", i, src[i], job.src_rows);
    if (dst[i] < 0 || dst[i] >= job.dst_rows) refuse_index(job.op, "indices_dst", i, dst[i], job.dst_rows);
    const auto before = seen.insert(dst[i], i);
    if (before != i)
      refuse(
          "ValueError", job.op, "indices_dst[", i, "] is ", dst[i], ", as is indices_dst[", before,
          "]: two rows would be written to one place");
  }
  if (!job.is_in_place) return;
  for (std::uint32_t i = 0; i < job.transfer.num_rows; ++i) {
    const auto writer = seen.find(src[i]);
    if (writer != IndexSet<Index>::kNone && writer != i)
      refuse(
          "ValueError", job.op, "indices_src[", i, "] is ", src[i], ", and indices_dst[", writer,
          "] overwrites that row: source and destination are one cache");
  }
}

/// Throw for the first bad index, if there is one.
void check_on_cpu(const Job& job) {
  const auto& t = job.transfer;
  if (host::is_type<std::int32_t>(job.index_dtype)) {
    check(job, static_cast<const std::int32_t*>(t.dst_indices), static_cast<const std::int32_t*>(t.src_indices));
  } else {
    check(job, static_cast<const std::int64_t*>(t.dst_indices), static_cast<const std::int64_t*>(t.src_indices));
  }
}

}  // namespace
