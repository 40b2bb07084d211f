#pragma once

#include <sgl_kernel/dtype.h>
#include <sgl_kernel/error.h>
#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor_view.h>
#include <sgl_kernel/utils.h>

#include <cstdint>

#include "hicache_params.h"

/// \file hicache_job.h
/// \brief A checked transfer, and the caller's options. Host only.

namespace hicache {

/// A number of rows, or of bytes, that the caller has not given.
inline constexpr std::int64_t kUnknown = INT64_MAX;

/// \brief The grid of a kernel.
struct Launch {
  std::int64_t blocks;
  std::int64_t threads;
  std::int64_t chunk_rows = 0;  ///< see `Transfer`
  std::int64_t group_rows = 0;  ///< see `Transfer`; 0: a chunk is one group
  bool is_early = false;        ///< its blocks begin, and wait, before the previous kernel has ended
  SGL_FIELDS(blocks, threads, chunk_rows, group_rows, is_early)
};

/// \brief A cache: its rows, and an address for each layer.
struct Cache {
  const char* name;                        ///< of the argument
  const host::TensorView* view = nullptr;  ///< a cache of one layer, for errors; null for a table of addresses
  const std::uint64_t* layers = nullptr;   ///< as many as the transfer has layers
  std::uint64_t address = 0;               ///< of the only layer
  RowStrides rows = {0, 0, kNoPages};
  std::int64_t num_rows = kUnknown;
  std::int64_t span = 1;  ///< bytes that a kernel must be able to access, from each address on
  SGL_FIELDS(name, view, layers, address, rows, num_rows, span)

  /// Where the rows of the layer at `address` lie.
  host::MemoryRows memory(std::int64_t row_bytes) const {
    const bool is_paged = rows.page_size != kNoPages;
    const host::RowDimension pages{is_paged ? host::div_ceil(num_rows, rows.page_size) : 1, rows.page_stride};
    const host::RowDimension in_page{is_paged ? rows.page_size : num_rows, rows.row_stride};
    return {reinterpret_cast<const void*>(address), row_bytes, pages, in_page};
  }
  /// The offset of row `index`, in bytes from a layer's address.
  std::int64_t offset_of(std::int64_t index) const {
    if (rows.page_size == kNoPages) return index * rows.row_stride;
    return index / rows.page_size * rows.page_stride + index % rows.page_size * rows.row_stride;
  }
};

/// \brief The options of any transfer, as Python passes them.
struct Options {
  host::Optional<std::int64_t> unroll;
  host::Optional<std::int64_t> block_quota;
  host::Optional<std::int64_t> page_size;
  host::Optional<bool> check_indices;
  SGL_FIELDS(unroll, block_quota, page_size, check_indices)

  /// \brief Whether to check indices: as the call says, or SGLJIT_CHECK_INDICES, or else on the CPU, where it costs
  /// little. The variable is read once, at the first transfer that leaves it open.
  bool checks(bool on_cpu) const {
    return check_indices.has_value() ? *check_indices : host::checks_indices(on_cpu);
  }
};

/// \brief A transfer. K and V, or a single cache, which is the first.
struct Job {
  const char* op;  ///< for errors
  int num_caches;
  Cache dst[2];
  Cache src[2];
  Options options = {};
  Transfer transfer = {};
  std::int64_t row_bytes = 0;
  DLDataType index_dtype = {};
  DLDevice device = {};               ///< the device of the indices, which does the work
  bool is_in_place = false;           ///< source and destination are one cache
  bool has_device_table = false;      ///< the addresses are in device memory, so that the host cannot read them
  bool from_host = false;             ///< the source is in host memory, or may be
  bool to_host = false;               ///< the destination is, or may be
  std::int64_t host_span = kUnknown;  ///< from the first row to the last, of all caches in host memory
  const Launch* launch = nullptr;     ///< in place of the choice, for measurements
  SGL_FIELDS(
      op, num_caches, dst, src, options, transfer, row_bytes, index_dtype, device, is_in_place, has_device_table,
      from_host, to_host, host_span, launch)

  /// \brief Calls `use(cache)` for the destinations, then for the sources.
  template <typename Use>
  void for_each_cache(const Use& use) {
    for (auto* side : {dst, src}) {
      for (int c = 0; c < num_caches; ++c) use(side[c]);
    }
  }
  /// \brief Calls `use(dst_indices, src_indices)`, pointers to the indices' type.
  template <typename Use>
  void with_indices(const Use& use) const {
    const auto as = [&]<typename Index>(const Index* dst_indices) {
      use(dst_indices, static_cast<const Index*>(transfer.src_indices));
    };
    if (host::is_type<std::int32_t>(index_dtype)) return as(static_cast<const std::int32_t*>(transfer.dst_indices));
    as(static_cast<const std::int64_t*>(transfer.dst_indices));
  }
};

/// \brief Throw an error of this kind. The op is named before the text.
template <typename... Text>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(const char* kind, const char* op, const Text&... text) {
  throw host::Error(kind, op, ": ", text...);
}

inline bool is_host(DLDevice device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost;
}

}  // namespace hicache
