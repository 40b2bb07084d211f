/// \file hicache_check_layers.cpp
/// \brief Checks that the layers of a transfer do not overlap. Compiled when it is first needed.

#include <sgl_kernel/deferred.h>

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

/// The destinations of a transfer, or its sources.
struct Side {
  const char* indices_name;
  const hicache::Cache* caches;
  std::vector<Row> touched = {};              // by offset
  std::vector<host::MemoryRows> layers = {};  // of each cache; up to the last row that is touched
};

template <typename Index>
Side side_of(const Job& job, const char* indices_name, const Index* indices, const hicache::Cache* caches) {
  Side side{indices_name, caches};
  std::int64_t count = 0;
  side.touched.reserve(job.transfer.num_rows);
  for (std::uint32_t i = 0; i < job.transfer.num_rows; ++i) {
    const std::int64_t index = indices[i];
    side.touched.push_back({caches->offset_of(index), i, index});
    count = std::max(count, index + 1);
  }
  std::sort(side.touched.begin(), side.touched.end(), [](const Row& a, const Row& b) { return a.offset < b.offset; });
  for (int c = 0; c < job.num_caches; ++c) {
    auto cache = caches[c];
    cache.num_rows = count;
    for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
      cache.address = cache.layers[layer];
      side.layers.push_back(cache.memory(job.row_bytes));
    }
  }
  return side;
}

/// Throw if a written row of layer `a` shares memory with a touched row of layer `b`, other than its own source.
void check_pair(const Job& job, const Side& dst, std::size_t a, const Side& side, std::size_t b) {
  if (!host::rows_meet(dst.layers[a], side.layers[b])) return;
  const bool is_written_twice = &dst == &side;
  const auto row_bytes = job.row_bytes;
  const auto num_layers = job.transfer.num_layers;
  const std::int64_t distance = side.layers[b].first - dst.layers[a].first;
  auto first = side.touched.begin();
  for (const auto& row : dst.touched) {
    while (first != side.touched.end() && first->offset + distance + row_bytes <= row.offset) ++first;
    for (auto other = first; other != side.touched.end() && other->offset + distance < row.offset + row_bytes;
         ++other) {
      const bool is_own_source =
          !is_written_twice && a == b && row.position == other->position && row.offset == other->offset + distance;
      if (is_own_source) continue;
      hicache::refuse(
          "ValueError", job.op, is_written_twice ? "two rows would be written to one place: row " : "row ", row.index,
          " of ", dst.caches[a / num_layers].name, "[", a % num_layers, "], which ", dst.indices_name, "[",
          row.position, "] names, and row ", other->index, " of ", side.caches[b / num_layers].name, "[",
          b % num_layers, "], which ", side.indices_name, "[", other->position, "] names",
          is_written_twice ? "" : ", overlap: a write of one would change the other while it is read");
    }
  }
}

/// Throw if a row that is written shares memory with `bytes` at `data`, which are read meanwhile.
void check_list(const Job& job, const Side& dst, const char* name, const void* data, std::int64_t bytes) {
  const host::MemoryRows list(data, bytes);
  for (std::size_t a = 0; a < dst.layers.size(); ++a) {
    if (!host::rows_meet(dst.layers[a], list)) continue;
    const std::int64_t begin = list.begin - dst.layers[a].first;
    for (const auto& row : dst.touched) {
      if (row.offset + job.row_bytes <= begin || row.offset >= begin + bytes) continue;
      hicache::refuse(
          "ValueError", job.op, name, " and row ", row.index, " of ", dst.caches[a / job.transfer.num_layers].name, "[",
          a % job.transfer.num_layers, "], which ", dst.indices_name, "[", row.position,
          "] names, overlap: a write of the row would change ", name, " while it is read");
    }
  }
}

/// Throw if a row of a layer would overwrite another row that is written or read. The indices have been checked.
///
/// Caches that are disjoint, or interleave, take a comparison per pair; others one per row. The CPU reads the indices
/// and the addresses while it writes rows, so they are compared, too; what a device reads is not at hand here.
void check_layers_on_cpu(const Job& job) {
  job.with_indices([&](const auto* dst_indices, const auto* src_indices) {
    const auto dst = side_of(job, "indices_dst", dst_indices, job.dst);
    const auto src = side_of(job, "indices_src", src_indices, job.src);
    for (std::size_t i = 0; i < dst.layers.size(); ++i) {
      for (std::size_t j = i + 1; j < dst.layers.size(); ++j) check_pair(job, dst, i, dst, j);
      for (std::size_t j = 0; j < src.layers.size(); ++j) check_pair(job, dst, i, src, j);
    }
    if (!hicache::is_host(job.device)) return;
    const auto index_bytes = std::int64_t{job.transfer.num_rows} * job.index_dtype.bits / 8;
    check_list(job, dst, "indices_dst", dst_indices, index_bytes);
    check_list(job, dst, "indices_src", src_indices, index_bytes);
    for (const auto* caches : {job.dst, job.src}) {
      for (int c = 0; c < job.num_caches; ++c)
        check_list(job, dst, caches[c].name, caches[c].layers, std::int64_t{job.transfer.num_layers} * 8);
    }
  });
}

}  // namespace
