/// \file hicache_check_layers.cpp
/// \brief Checks that the layers of a transfer do not overlap. Compiled when it is first needed.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hicache_job.h"

namespace {

using hicache::Job;

/// A row that a transfer touches in each layer.
struct Row {
  std::int64_t offset;     // in bytes from the cache's address
  std::uint32_t position;  // in the indices
  std::int64_t index;
};

/// A cache of one layer.
struct Layer {
  const char* name;  // of the table of addresses
  int cache;
  std::uint32_t layer;
  std::int64_t address;
  host::MemoryRows rows;  // up to the last one that is touched
};

/// The destinations of a transfer, or its sources.
struct Side {
  const char* indices_name;
  std::vector<Row> touched = {};  // by offset
  std::vector<Layer> layers = {};
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
    const Job& job, const char* indices_name, const void* indices, const hicache::CacheAddresses* caches,
    const hicache::Rows& rows) {
  const auto& t = job.transfer;
  Side side{indices_name};
  side.touched = host::is_type<std::int32_t>(job.index_dtype) ? rows_of<std::int32_t>(rows, indices, t.num_rows)
                                                              : rows_of<std::int64_t>(rows, indices, t.num_rows);
  std::int64_t count = 0;
  for (const auto& row : side.touched) count = std::max(count, row.index + 1);
  for (int c = 0; c < job.num_caches; ++c) {
    for (std::uint32_t layer = 0; layer < t.num_layers; ++layer) {
      const auto address = caches[c].layers[layer];
      const auto memory = hicache::memory_of(rows, address, count, job.row_bytes);
      side.layers.push_back({caches[c].name, c, layer, static_cast<std::int64_t>(address), memory});
    }
  }
  return side;
}

/// Throw if a written row of `a` shares memory with a touched row of `b`, other than its own source.
void check_pair(const Job& job, const Side& dst, const Layer& a, const Side& side, const Layer& b) {
  if (!host::rows_meet(a.rows, b.rows)) return;
  const bool is_written_twice = &dst == &side;
  const auto row_bytes = job.row_bytes;
  const auto distance = b.address - a.address;
  auto first = side.touched.begin();
  for (const auto& row : dst.touched) {
    while (first != side.touched.end() && first->offset + distance + row_bytes <= row.offset) ++first;
    for (auto other = first; other != side.touched.end() && other->offset + distance < row.offset + row_bytes;
         ++other) {
      const bool is_own_source = !is_written_twice && a.cache == b.cache && a.layer == b.layer &&
                                 row.position == other->position && row.offset == other->offset + distance;
      if (is_own_source) continue;
      hicache::refuse(
          "ValueError", job.op, is_written_twice ? "two rows would be written to one place: row " : "row ", row.index,
          " of ", a.name, "[", a.layer, "], which ", dst.indices_name, "[", row.position, "] names, and row ",
          other->index, " of ", b.name, "[", b.layer, "], which ", side.indices_name, "[", other->position, "] names",
          is_written_twice ? "" : ", overlap: a write of one would change the other while it is read");
    }
  }
}

/// Throw if a row of a layer would overwrite another row that is written or read. The indices have been checked.
///
/// Caches that are disjoint, or interleave, take a comparison per pair; others one per row.
void check_layers_on_cpu(const Job& job) {
  const auto& t = job.transfer;
  const auto dst = side_of(job, "indices_dst", t.dst_indices, job.dst, t.dst);
  const auto src = side_of(job, "indices_src", t.src_indices, job.src, t.src);
  for (std::size_t i = 0; i < dst.layers.size(); ++i) {
    for (std::size_t j = i + 1; j < dst.layers.size(); ++j) check_pair(job, dst, dst.layers[i], dst, dst.layers[j]);
    for (const auto& other : src.layers) check_pair(job, dst, dst.layers[i], src, other);
  }
}

}  // namespace
