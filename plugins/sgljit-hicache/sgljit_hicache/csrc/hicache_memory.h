#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/error.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/launch.h>
#include <sgl_kernel/message.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

#include "hicache_job.h"

/// \file hicache_memory.h
/// \brief Checks that kernels can access the memory: host memory must be pinned or registered, device memory must be on
/// their device. For the CPU it must not be device memory.

namespace hicache {

/// The processor of the indices must be able to work on `device`, where `what` is.
inline void match_device(const Job& job, DLDevice device, const char* what, const char* is_on) {
  if (is_host(device)) return;  // the check for pinned memory comes last
  if (is_host(job.device))
    refuse(
        host::kTensorMatchError, job.op, "the indices are on ", job.device, " and ", what, is_on, device,
        ": a transfer from or to a CUDA device needs its indices on that device");
  if (device.device_id != job.device.device_id)
    refuse(
        host::kTensorMatchError, job.op, "two devices are mixed: the indices are on ", job.device, " and ", what, is_on,
        device);
}

/// The addresses of one cache as kernels see them; throws an error with its name if they cannot access the memory.
struct Reachable {
 public:
  Reachable(const Job& job, const Cache& cache) : m_job(job), m_cache(cache) {}

  /// The address of a layer. Memory in the same allocation as the last one costs no driver call.
  std::uint64_t resolve(std::uint64_t begin) {
    const auto end = begin + static_cast<std::uint64_t>(m_cache.span);
    if (begin < m_memory.begin || begin >= m_memory.begin + m_memory.size) {
      m_memory = m_find(begin);
      m_shift = reinterpret_cast<std::uintptr_t>(m_memory.device_address) - begin;
    }
    // A buffer may be registered in part, or in parts: check its other end, too.
    if (end > m_memory.begin + m_memory.size) static_cast<void>(m_find(end - 1));
    return begin + m_shift;
  }
  /// Whether the last resolved address is in host memory.
  bool was_host() const {
    return m_memory.type == host::driver::kMemoryTypeHost;
  }

 private:
  host::driver::Memory m_find(std::uintptr_t address) const {
    const auto memory = host::driver::memory_at(reinterpret_cast<const void*>(address));
    if (memory.type == host::driver::kMemoryTypeDevice && memory.device_id >= 0)
      match_device(m_job, {kDLCUDA, memory.device_id}, m_cache.name, " is on ");
    // Memory that kernels here cannot access has no address, not even if it is another device's.
    if (memory.type != 0 && memory.device_address != nullptr) [[likely]]
      return memory;
    host::Message view;
    if (m_cache.view != nullptr) view << ": " << *m_cache.view;
    refuse(
        "ValueError", m_job.op, m_cache.name,
        " is in pageable host memory, which a kernel cannot access: allocate it with pin_memory=True, or register it "
        "with CUDA",
        view.c_str());
  }

  const Job& m_job;
  const Cache& m_cache;
  host::driver::Memory m_memory;
  std::uintptr_t m_shift = 0;
};

/// Refuse null addresses: on the CPU one would end the process, on a device the context.
inline void refuse_null(const Job& job, const Cache& cache) {
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    if (cache.layers[layer] == 0)
      refuse("ValueError", job.op, cache.name, "[", layer, "] is a null address: layer ", layer, " has no cache there");
  }
}

/// Check the addresses in device memory, which the launch does not read: the kernel must be able to use each.
inline void check_addresses(const Job& job, const Cache& cache, std::int64_t word_bytes) {
  refuse_null(job, cache);
  Reachable reachable(job, cache);
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    const auto address = cache.layers[layer];
    if (address % static_cast<std::uint64_t>(word_bytes) != 0)
      refuse(
          "ValueError", job.op, cache.name, "[", layer, "] is ", reinterpret_cast<const void*>(address),
          "; for these rows, addresses on the device must be multiples of ", word_bytes, ": pass them as CPU tensors");
    static_cast<void>(reachable.resolve(address));
  }
}

/// Memory of a device, copied to the host, which waits for it.
inline host::Tensor copy_to_host(const void* from, std::int64_t bytes, host::native_stream_t stream) {
  auto copy = host::ffi::allocate({bytes}, {kDLUInt, 8, 1}, {kDLCPU, 0});
  const auto& driver = host::driver::api();
  host::driver::check(driver.MemcpyDtoHAsync(copy.data_ptr(), from, static_cast<std::size_t>(bytes), stream));
  host::driver::check(driver.StreamSynchronize(stream));
  return copy;
}

/// \brief Throw if an address for the CPU is in device memory, which would end the process. Does not initialise CUDA.
inline void refuse_device_memory(const Job& job, const Cache& cache) {
  namespace driver = host::driver;
  const auto query = driver::loaded_pointer_query();
  constexpr int kPointerIsManaged = 8;
  constexpr int kAttributes[] = {driver::kPointerMemoryType, driver::kPointerDeviceOrdinal, kPointerIsManaged};
  int type = 0;
  int device_id = 0;
  unsigned is_managed = 0;
  void* values[] = {&type, &device_id, &is_managed};
  const auto* const pointer = reinterpret_cast<const void*>(cache.layers[0]);
  if (query == nullptr || query(3, kAttributes, values, pointer) != driver::kSuccess) return;
  if (type == driver::kMemoryTypeDevice && is_managed == 0)
    match_device(job, {kDLCUDA, device_id}, cache.name, " is on ");
}

}  // namespace hicache
