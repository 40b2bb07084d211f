#pragma once

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/launch.h>

#include <cstdint>

#include "hicache_job.h"
#include "hicache_launch.h"
#include "hicache_match.h"
#include "hicache_memory.h"

/// \file hicache_device_check.h
/// \brief Checked mode: the host checks the indices, and that layers do not overlap. What is in device memory is copied
/// to the host, which waits for it. Host only, for one host part.

namespace hicache {

inline host::Deferred<void(const Job&)> check_on_cpu{"hicache_check.cpp", "check_on_cpu"};
inline host::Deferred<void(const Job&)> check_layers_on_cpu{"hicache_check_layers.cpp", "check_layers_on_cpu"};

/// Memory of a device, copied to the host.
inline host::Tensor copy_to_host(const void* from, std::int64_t bytes, host::native_stream_t stream) {
  auto copy = host::ffi::allocate({bytes}, {kDLUInt, 8, 1}, {kDLCPU, 0});
  const auto& driver = host::driver::api();
  host::driver::check(driver.MemcpyDtoHAsync(copy.data_ptr(), from, static_cast<std::size_t>(bytes), stream));
  host::driver::check(driver.StreamSynchronize(stream));
  return copy;
}

/// Check the addresses in device memory, which the launch does not read: the kernel must be able to use each.
inline void check_addresses(const Job& job, const CacheAddresses& cache) {
  refuse_null(job, cache);
  const auto word_bytes = static_cast<std::uint64_t>(word_of(job, 0));
  Reachable reachable(job, cache);
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    const auto address = cache.layers[layer];
    if (address % word_bytes != 0)
      refuse(
          "ValueError", job.op, cache.name, "[", layer, "] is ", reinterpret_cast<const void*>(address),
          "; for these rows, addresses on the device must be multiples of ", word_bytes, ": pass them as CPU tensors");
    static_cast<void>(reachable.resolve(address));
  }
}

/// \brief Check the indices and, of all layers, the addresses, and that no layer writes what another writes or reads.
inline void check_on_device(const Job& job, bool is_all_layers) {
  const auto stream = host::LaunchKernel::resolve_device(job.device);
  int is_capturing = 0;
  host::driver::check(host::driver::api().StreamIsCapturing(stream, &is_capturing));
  host::RuntimeCheck(
      is_capturing == 0, job.op,
      ": indices cannot be checked while the stream is being captured, because the host waits for the answer: pass "
      "check_indices=False");

  auto copy = job;
  const auto index_bytes = static_cast<std::int64_t>(job.transfer.num_rows) * job.index_dtype.bits / 8;
  const auto dst_indices = copy_to_host(job.transfer.dst_indices, index_bytes, stream);
  const auto src_indices = copy_to_host(job.transfer.src_indices, index_bytes, stream);
  copy.transfer.dst_indices = dst_indices.data_ptr();
  copy.transfer.src_indices = src_indices.data_ptr();
  check_on_cpu(copy);
  if (!is_all_layers) return;
  host::Tensor tables[4];
  auto* table = tables;
  for (auto* side : {copy.dst, copy.src}) {
    for (int c = 0; c < job.num_caches && job.has_device_table; ++c) {
      *table = copy_to_host(side[c].layers, job.transfer.num_layers * std::int64_t{8}, stream);
      side[c].layers = static_cast<const std::uint64_t*>((table++)->data_ptr());
      check_addresses(copy, side[c]);
    }
  }
  check_layers_on_cpu(copy);
}

}  // namespace hicache
