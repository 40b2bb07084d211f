/// \file hicache_check_layers.cpp
/// \brief Checks that the layers of a transfer do not overlap. Compiled when it is first needed.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/error.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hicache_job.h"
#include "hicache_rows.h"

namespace {

using hicache::Job;

/// A row that a transfer touches in each layer.
struct Row {
  std::int64_t offset;     // in bytes from the cache's address
  std::uint32_t position;  // in the indices
  std::int64_t index;
};

/// A cache of one layer.
struct Cache {
  std::int64_t address;
  int kv;
  std::uint32_t layer;
};

/// The destinations of a transfer, or its sources.
struct Side {
  const char* names[2];
  const char* indices_name;
  hicache::Rows rows;
  std::vector<Row> touched = {};  // by offset
  std::vector<Cache> caches = {};
};

template <typename Index>
std::vector<Row> rows_of(const hicache::Rows& rows, const void* indices, std::uint32_t num_rows) {
  std::vector<Row> found;
  found.reserve(num_rows);
  for (std::uint32_t i = 0; i < num_rows; ++i) {
    const auto index = static_cast<std::int64_t>(static_cast<const Index*>(indices)[i]);
    found.push_back({hicache::offset_of(rows, index), i, index});
  }
  std::sort(found.begin(), found.end(), [](const Row& a, const Row& b) { return a.offset < b.offset; });
  return found;
}

Side side_of(
    const Job& job, bool is_dst, const void* indices, const std::uint64_t* const* table, const hicache::Rows& rows) {
  Side side{
      {job.num_caches == 1 ? (is_dst ? "ptr_dst" : "ptr_src") : (is_dst ? "k_ptr_dst" : "k_ptr_src"),
       is_dst ? "v_ptr_dst" : "v_ptr_src"},
      is_dst ? "indices_dst" : "indices_src",
      rows};
  const auto num_rows = job.transfer.num_rows;
  side.touched = host::is_type<std::int32_t>(job.index_dtype) ? rows_of<std::int32_t>(rows, indices, num_rows)
                                                              : rows_of<std::int64_t>(rows, indices, num_rows);
  for (int kv = 0; kv < job.num_caches; ++kv) {
    for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer)
      side.caches.push_back({static_cast<std::int64_t>(table[kv][layer]), kv, layer});
  }
  return side;
}

/// Throw if a written row of `a` shares memory with a touched row of `b`, other than its own source.
void check_pair(
    const Job& job, const Side& dst, const Cache& a, const Side& side, const Cache& b, bool is_written_twice) {
  const auto row_bytes = job.transfer.row_bytes;
  const auto distance = b.address - a.address;
  const auto& written = dst.touched;
  const auto& touched = side.touched;
  if (written.back().offset + row_bytes <= touched.front().offset + distance ||
      touched.back().offset + distance + row_bytes <= written.front().offset)
    return;
  if (hicache::is_same(dst.rows, side.rows) && distance != 0 && hicache::are_interleaved(dst.rows, distance, row_bytes))
    return;
  auto first = touched.begin();
  for (const auto& row : written) {
    while (first != touched.end() && first->offset + distance + row_bytes <= row.offset) ++first;
    for (auto other = first; other != touched.end() && other->offset + distance < row.offset + row_bytes; ++other) {
      const bool is_own_source = !is_written_twice && a.kv == b.kv && a.layer == b.layer &&
                                 row.position == other->position && row.offset == other->offset + distance;
      if (is_own_source) continue;
      throw host::Error(
          "ValueError", job.op, is_written_twice ? ": two rows would be written to one place: row " : ": row ",
          row.index, " of ", dst.names[a.kv], "[", a.layer, "], which ", dst.indices_name, "[", row.position,
          "] names, and row ", other->index, " of ", side.names[b.kv], "[", b.layer, "], which ", side.indices_name,
          "[", other->position, "] names",
          is_written_twice ? "" : ", overlap: a write of one would change the other while it is read");
    }
  }
}

/// Throw if a row of a layer would overwrite another row that is written or read. The indices have been checked.
///
/// Caches that are disjoint, or interleave, take a comparison per pair; others one per row.
void check_layers_on_cpu(
    const Job& job, const void* dst_indices, const void* src_indices, const hicache::LayerTables& table) {
  const auto dst = side_of(job, true, dst_indices, table.dst, job.transfer.dst);
  const auto src = side_of(job, false, src_indices, table.src, job.transfer.src);
  for (std::size_t i = 0; i < dst.caches.size(); ++i) {
    for (std::size_t j = i + 1; j < dst.caches.size(); ++j)
      check_pair(job, dst, dst.caches[i], dst, dst.caches[j], true);
    for (const auto& other : src.caches) check_pair(job, dst, dst.caches[i], src, other, false);
  }
}

}  // namespace
