#pragma once

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/variant.h>

#include <cstdint>

#include "hicache_job.h"
#include "hicache_launch.h"
#include "hicache_match.h"
#include "hicache_memory.h"

/// \file hicache_device_check.h
/// \brief Checked mode on CUDA: the device checks the indices, the host the addresses of the layers. Every function
/// here waits for the device. Host only, for one host part.

namespace hicache {

namespace driver = host::driver;

inline host::Deferred<void(const Job&, const void*, const void*)> check_on_cpu{"hicache_check.cpp", "check_on_cpu"};
inline host::Deferred<void(const Job&, const void*, const void*, const LayerTables&)> check_layers_on_cpu{
    "hicache_check_layers.cpp", "check_layers_on_cpu"};

inline host::Kernel<Check> check_indices{"hicache.cuh", "hicache::check_indices"};
inline host::Kernel<Check> check_reads{"hicache.cuh", "hicache::check_reads"};

/// Both lists of indices, copied to the host.
struct HostIndices {
  HostIndices(const Job& job, host::native_stream_t stream) {
    const auto bytes = static_cast<std::size_t>(job.transfer.num_rows) * job.index_dtype.bits / 8;
    m_memory = host::ffi::allocate({static_cast<std::int64_t>(2 * bytes)}, {kDLUInt, 8, 1}, {kDLCPU, 0});
    auto* const copies = static_cast<char*>(m_memory.data_ptr());
    driver::check(driver::api().MemcpyDtoHAsync(copies, job.transfer.dst_indices, bytes, stream));
    driver::check(driver::api().MemcpyDtoHAsync(copies + bytes, job.transfer.src_indices, bytes, stream));
    driver::check(driver::api().StreamSynchronize(stream));
    dst = copies;
    src = copies + bytes;
  }
  const void* dst;
  const void* src;

 private:
  host::Tensor m_memory;
};

/// \brief Check the indices on the device, and wait for its answer. If one is bad, the host finds its position and
/// writes the error.
inline void check_on_device(const Job& job) {
  constexpr std::uint32_t kThreads = 256;
  const auto stream = host::LaunchKernel::resolve_device(job.device);
  const host::details::ContextGuard guard(job.device.device_id, host::DebugInfo{});
  int is_capturing = 0;
  driver::check(driver::api().StreamIsCapturing(stream, &is_capturing));
  host::RuntimeCheck(
      is_capturing == 0, job.op,
      ": indices cannot be checked while the stream is being captured, because the host waits for the answer: pass "
      "check_indices=False");

  const auto num_rows = job.transfer.num_rows;
  std::int64_t size = 64;
  while (size < 2 * static_cast<std::int64_t>(num_rows)) size *= 2;
  const auto scratch = host::ffi::allocate({size + 1}, {kDLInt, 64, 1}, job.device);
  auto* const table = static_cast<std::uint64_t*>(scratch.data_ptr());
  driver::check(driver::api().MemsetD32Async(table, 0, 2 * static_cast<std::size_t>(size + 1), stream));
  const Check check{
      .dst_indices = job.transfer.dst_indices,
      .src_indices = job.transfer.src_indices,
      .dst_rows = job.dst_rows,
      .src_rows = job.src_rows,
      .num_rows = num_rows,
      .mask = static_cast<std::uint32_t>(size - 1),
      .table = table,
      .is_bad = reinterpret_cast<std::uint32_t*>(table + size),
  };
  const host::LaunchKernel launch(host::div_ceil(num_rows, kThreads), kThreads, job.device);
  launch(check_indices.get(job.index_dtype), check);
  if (job.is_in_place) launch(check_reads.get(job.index_dtype), check);
  std::uint64_t is_bad = 0;
  driver::check(driver::api().MemcpyDtoHAsync(&is_bad, check.is_bad, sizeof(is_bad), stream));
  driver::check(driver::api().StreamSynchronize(stream));
  if (is_bad == 0) [[likely]]
    return;

  const HostIndices copies(job, stream);
  check_on_cpu(job, copies.dst, copies.src);
}

/// The address tables of a call, copied to the host from device memory.
struct HostTables {
  HostTables(const Job& job, const PointerTable* dst, const PointerTable* src, host::native_stream_t stream) {
    const std::int64_t num_layers = job.transfer.num_layers;
    m_memory = host::ffi::allocate({2 * job.num_caches, num_layers}, {kDLUInt, 64, 1}, {kDLCPU, 0});
    auto* to = static_cast<std::uint64_t*>(m_memory.data_ptr());
    const auto copy = [&](const PointerTable& from) {
      const auto bytes = static_cast<std::size_t>(num_layers) * sizeof(std::uint64_t);
      driver::check(driver::api().MemcpyDtoHAsync(to, from.view->data_ptr(), bytes, stream));
      to += num_layers;
      return to - num_layers;
    };
    for (int c = 0; c < job.num_caches; ++c) {
      tables.dst[c] = copy(dst[c]);
      tables.src[c] = copy(src[c]);
    }
    driver::check(driver::api().StreamSynchronize(stream));
  }
  LayerTables tables = {};

 private:
  host::Tensor m_memory;
};

/// \brief Check the addresses in device memory, which the launch does not read: the kernel must be able to use each.
inline void check_addresses(const Job& job, const PointerTable& pointers, const std::uint64_t* addresses) {
  refuse_null(job, pointers, addresses);
  const auto word_bytes = static_cast<std::uint64_t>(word_of(alignment_of(job.transfer)));
  Reachable reachable(job);
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    const auto address = addresses[layer];
    if (address % word_bytes != 0) [[unlikely]]
      throw host::Error(
          "ValueError", job.op, ": ", pointers.name, "[", layer, "] is ", reinterpret_cast<const void*>(address),
          "; for these rows, addresses on the device must be multiples of ", word_bytes, ": pass them as CPU tensors");
    static_cast<void>(reachable.resolve(pointers.name, address, 1, nullptr));
  }
}

/// \brief Check all layers: the indices, the addresses, and that no layer writes what another writes or reads.
inline void check_layers_on_device(
    const Job& job, const PointerTable* dst, const PointerTable* src, const LayerTables* by_value) {
  check_on_device(job);
  const auto stream = host::LaunchKernel::resolve_device(job.device);
  const HostIndices indices(job, stream);
  if (by_value != nullptr) return check_layers_on_cpu(job, indices.dst, indices.src, *by_value);
  const HostTables copies(job, dst, src, stream);
  for (int c = 0; c < job.num_caches; ++c) {
    check_addresses(job, dst[c], copies.tables.dst[c]);
    check_addresses(job, src[c], copies.tables.src[c]);
  }
  check_layers_on_cpu(job, indices.dst, indices.src, copies.tables);
}

}  // namespace hicache
