/// \file hicache_check.cpp
/// \brief Checks indices on the CPU, and writes the error for a bad one. Compiled when it is first needed.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/utils.h>

#include <cstdint>
#include <cstdlib>

#include "hicache_job.h"

namespace {

using hicache::Job;
using hicache::kUnknownRows;
using host::Error;

/// The first position of each number.
template <typename Index>
struct IndexSet {
 public:
  explicit IndexSet(std::uint32_t size) {
    while (m_mask < 2 * static_cast<std::uint64_t>(size)) m_mask = 2 * m_mask + 1;
    m_slots = static_cast<Slot*>(std::calloc(m_mask + 1, sizeof(Slot)));
    host::RuntimeCheck(m_slots != nullptr, "no memory to check ", size, " indices");
  }
  ~IndexSet() {
    std::free(m_slots);
  }
  IndexSet(const IndexSet&) = delete;
  IndexSet& operator=(const IndexSet&) = delete;

  /// The position at which `index` was first inserted; `position`, if it is new.
  std::uint32_t insert(Index index, std::uint32_t position) {
    auto& slot = m_find(index);
    if (slot.is_used) return slot.position;
    slot = {index, position, true};
    return position;
  }
  /// The position of `index`, or -1.
  std::int64_t find(Index index) {
    const auto& slot = m_find(index);
    return slot.is_used ? static_cast<std::int64_t>(slot.position) : -1;
  }

 private:
  struct Slot {
    Index index;
    std::uint32_t position;
    bool is_used;
  };
  Slot& m_find(Index index) {
    auto at = static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15u >> 32;
    while (m_slots[at & m_mask].is_used && m_slots[at & m_mask].index != index) ++at;
    return m_slots[at & m_mask];
  }
  std::uint64_t m_mask = 63;
  Slot* m_slots;
};

[[noreturn, gnu::cold, gnu::noinline]] void refuse_index(
    const char* op, const char* name, std::uint32_t position, std::int64_t index, std::int64_t num_rows) {
  if (num_rows == kUnknownRows)
    throw Error("IndexError", op, ": ", name, "[", position, "] is ", index, "; an index must not be negative");
  throw Error(
      "IndexError", op, ": ", name, "[", position, "] is ", index, ", out of range for a cache of ", num_rows, " rows");
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
      throw Error(
          "ValueError", job.op, ": indices_dst[", i, "] is ", dst[i], ", as is indices_dst[", before,
          "]: two rows would be written to one place");
  }
  if (!job.is_in_place) return;
  for (std::uint32_t i = 0; i < job.transfer.num_rows; ++i) {
    const auto writer = seen.find(src[i]);
    if (writer >= 0 && writer != i)
      throw Error(
          "ValueError", job.op, ": indices_src[", i, "] is ", src[i], ", and indices_dst[", writer,
          "] overwrites that row: source and destination are one cache");
  }
}

/// Throw for the first bad index, if there is one.
void check_on_cpu(const Job& job, const void* dst_indices, const void* src_indices) {
  if (host::is_type<std::int32_t>(job.index_dtype)) {
    check(job, static_cast<const std::int32_t*>(dst_indices), static_cast<const std::int32_t*>(src_indices));
  } else {
    check(job, static_cast<const std::int64_t*>(dst_indices), static_cast<const std::int64_t*>(src_indices));
  }
}

}  // namespace
