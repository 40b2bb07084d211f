#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/error.h>
#include <sgl_kernel/message.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/tensor_view.h>

#include <cstdint>

#include "hicache_job.h"

/// \file hicache_memory.h
/// \brief Checks that kernels can access the memory: host memory must be pinned or registered, device memory must be on
/// their device. For the CPU it must not be device memory.

namespace hicache {

/// Finds the addresses of memory in kernels; throws an error with the cache's name if kernels cannot access it.
struct Reachable {
 public:
  explicit Reachable(const Job& job) : m_job(job) {}

  /// The address of the `size` bytes from `begin`. Memory in the same allocation as the last one costs no driver call.
  /// `view`, if given, goes into the error.
  std::uint64_t resolve(const char* name, std::uint64_t begin, std::int64_t size, const host::TensorView* view) {
    const auto end = begin + static_cast<std::uint64_t>(size > 0 ? size : 1);
    if (begin < m_memory.begin || begin >= m_memory.begin + m_memory.size) {
      m_memory = m_find(begin, name, view);
      m_shift = reinterpret_cast<std::uintptr_t>(m_memory.device_address) - begin;
      if (was_host()) m_host_bytes += m_memory.size;
    }
    // A buffer may be registered in part, or in parts: check its other end, too.
    if (end > m_memory.begin + m_memory.size) static_cast<void>(m_find(end - 1, name, view));
    return begin + m_shift;
  }
  /// Whether the last resolved memory is in host memory.
  bool was_host() const {
    return m_memory.type == host::driver::kMemoryTypeHost;
  }
  /// The bytes of all allocations of host memory so far; an allocation counts again if it comes again after another.
  std::uint64_t host_bytes() const {
    return m_host_bytes;
  }

 private:
  host::driver::Memory m_find(std::uintptr_t address, const char* name, const host::TensorView* view) const {
    const auto memory = host::driver::memory_at(reinterpret_cast<const void*>(address));
    const auto device_id = m_job.device.device_id;
    if (memory.type == host::driver::kMemoryTypeDevice && memory.device_id >= 0 && memory.device_id != device_id)
        [[unlikely]]
      throw host::Error(
          host::kTensorMatchError, m_job.op, ": two devices are mixed: the indices are on ", m_job.device, " and ",
          name, " is on ", DLDevice{kDLCUDA, memory.device_id});
    // Memory that kernels here cannot access has no address, not even if it is another device's.
    if (memory.type == 0 || memory.device_address == nullptr) [[unlikely]]
      m_refuse(name, view);
    return memory;
  }
  [[noreturn, gnu::cold, gnu::noinline]] void m_refuse(const char* name, const host::TensorView* view) const {
    host::Message text;
    text << m_job.op << ": " << name
         << " is in pageable host memory, which a kernel cannot access: allocate it with pin_memory=True, or register "
            "it with CUDA";
    if (view != nullptr) text << ": " << *view;
    throw host::Error("ValueError", text.c_str());
  }

  const Job& m_job;
  host::driver::Memory m_memory;
  std::uintptr_t m_shift = 0;
  std::uint64_t m_host_bytes = 0;
};

/// \brief Throw if an address for the CPU is in device memory, which would end the process. Does not initialise CUDA.
inline void refuse_device_memory(const Job& job, const char* name, std::uint64_t address) {
  namespace driver = host::driver;
  const auto query = driver::loaded_pointer_query();
  constexpr int kPointerIsManaged = 8;
  constexpr int kAttributes[] = {driver::kPointerMemoryType, driver::kPointerDeviceOrdinal, kPointerIsManaged};
  int type = 0;
  int device_id = 0;
  unsigned is_managed = 0;
  void* values[] = {&type, &device_id, &is_managed};
  const auto* const pointer = reinterpret_cast<const void*>(address);
  if (query == nullptr || query(3, kAttributes, values, pointer) != driver::kSuccess) return;
  if (type != driver::kMemoryTypeDevice || is_managed != 0) [[likely]]
    return;
  throw host::Error(
      host::kTensorMatchError, job.op, ": the indices are on ", job.device, " and ", name, " is on ",
      DLDevice{kDLCUDA, device_id}, ": a transfer from or to a CUDA device needs its indices on that device");
}

}  // namespace hicache
