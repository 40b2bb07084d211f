#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/error.h>
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
  const Job& job;
  const Cache& cache;
  host::driver::Memory memory = {};  ///< where the last address is
  std::uintptr_t shift = 0;          ///< from an address there to that in kernels

  /// The address of a layer. Memory in the same allocation as the last one costs no driver call.
  std::uint64_t resolve(std::uint64_t begin) {
    const auto end = begin + static_cast<std::uint64_t>(cache.span);
    if (begin < memory.begin || begin >= memory.begin + memory.size) {
      memory = find(begin);
      shift = reinterpret_cast<std::uintptr_t>(memory.device_address) - begin;
    }
    // A buffer may be registered in part, or in parts: check its other end, too.
    if (end > memory.begin + memory.size) static_cast<void>(find(end - 1));
    return begin + shift;
  }
  /// Whether the last resolved address is in host memory.
  bool was_host() const {
    return memory.type == host::driver::kMemoryTypeHost;
  }
  host::driver::Memory find(std::uintptr_t address) const {
    const auto found = host::driver::memory_at(reinterpret_cast<const void*>(address));
    if (found.type == host::driver::kMemoryTypeDevice && found.device_id >= 0)
      match_device(job, {kDLCUDA, found.device_id}, cache.name, " is on ");
    // Memory that kernels here cannot access has no address, not even if it is another device's.
    if (found.type != 0 && found.device_address != nullptr) [[likely]]
      return found;
    host::Message view;
    if (cache.view != nullptr) view << ": " << *cache.view;
    refuse(
        "ValueError", job.op, cache.name,
        " is in pageable host memory, which a kernel cannot access: allocate it with pin_memory=True, or register it "
        "with CUDA",
        view.c_str());
  }
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
  Reachable reachable{job, cache};
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    const auto address = cache.layers[layer];
    if (address % static_cast<std::uint64_t>(word_bytes) != 0)
      refuse(
          "ValueError", job.op, cache.name, "[", layer, "] is ", reinterpret_cast<const void*>(address),
          "; for these rows, addresses on the device must be multiples of ", word_bytes, ": pass them as CPU tensors");
    static_cast<void>(reachable.resolve(address));
  }
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
