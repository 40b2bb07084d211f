#pragma once

#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor_view.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "hicache_params.h"

/// \file hicache_job.h
/// \brief A checked transfer, and the caller's options. Host only.

namespace hicache {

/// The number of rows if the caller has not given it.
inline constexpr std::int64_t kUnknownRows = INT64_MAX;

inline constexpr std::uint64_t kUnknownPool = UINT64_MAX;

/// \brief A transfer, without the caches' addresses.
struct Job {
  const char* op;  ///< for errors
  int num_caches;  ///< 2: K and V; 1: a cache that holds both
  Transfer transfer = {};
  DLDataType index_dtype = {};
  DLDevice device = {};  ///< the device of the indices, which does the work
  std::int64_t dst_rows = kUnknownRows;
  std::int64_t src_rows = kUnknownRows;
  bool is_in_place = false;     ///< source and destination are one cache
  bool from_host = false;       ///< the source is in host memory, or may be
  bool to_host = false;         ///< the destination is, or may be
  std::uint64_t host_pool = 0;  ///< bytes of the allocations of host memory that it touches, `kUnknownPool` if unknown
  host::Optional<std::int64_t> unroll = {};
  host::Optional<std::int64_t> block_quota = {};
  SGL_FIELDS(
      op, num_caches, transfer, index_dtype, device, dst_rows, src_rows, is_in_place, from_host, to_host, host_pool,
      unroll, block_quota)
};

/// \brief The options of any transfer.
struct Options {
  host::Optional<std::int64_t> unroll;
  host::Optional<std::int64_t> block_quota;
  host::Optional<bool> check_indices;
  host::Optional<std::int64_t> page_size = {};  ///< checked, and that is all: each row has an index of its own

  /// \brief Whether to check indices: as the call says, or SGLJIT_CHECK_INDICES, or else on the CPU, where it costs
  /// little. The variable is read once, at the first transfer that leaves it open.
  bool checks(bool on_cpu) const {
    static const host::Optional<bool> by_environment = [] {
      const char* text = std::getenv("SGLJIT_CHECK_INDICES");
      if (text == nullptr || text[0] == '\0') return host::Optional<bool>{};
      return host::Optional<bool>{std::strcmp(text, "0") != 0};
    }();
    return check_indices.value_or(by_environment.value_or(on_cpu));
  }
};

inline bool is_host(DLDevice device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost;
}

}  // namespace hicache
