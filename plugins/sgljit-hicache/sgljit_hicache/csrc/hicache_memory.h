#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/error.h>
#include <sgl_kernel/message.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/tensor_view.h>

#include <dlfcn.h>

#include <cstdint>

#include "hicache_job.h"

/// \file hicache_memory.h
/// \brief What kernels can reach: host memory must be pinned or registered, device memory that of their device. And
/// what the CPU cannot.

namespace hicache {

/// Finds the addresses that kernels use for memory; an error that names the cache if they cannot use it.
struct Reachable {
 public:
  explicit Reachable(const Job& job) : m_job(job) {}

  /// The address of the `size` bytes from `begin`. The driver is not asked again about a neighbour in the same
  /// allocation. `view`, if it is given, goes into the error.
  std::uint64_t resolve(const char* name, std::uint64_t begin, std::int64_t size, const host::TensorView* view) {
    const auto end = begin + static_cast<std::uint64_t>(size > 0 ? size : 1);
    if (begin < m_memory.begin || begin >= m_memory.begin + m_memory.size) {
      m_memory = m_find(begin, name, view);
      m_shift = reinterpret_cast<std::uintptr_t>(m_memory.device_address) - begin;
      if (was_host()) m_host_bytes += m_memory.size;
    }
    // A buffer may be registered in part, or in parts: ask about its other end, too.
    if (end > m_memory.begin + m_memory.size) static_cast<void>(m_find(end - 1, name, view));
    return begin + m_shift;
  }
  /// Whether what was resolved last is in host memory.
  bool was_host() const {
    return m_memory.type == host::driver::kMemoryTypeHost;
  }
  /// The bytes of all allocations of host memory that were met; one that was met again after another counts again.
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
    // Of memory that kernels here cannot use there is no address, also where it is another device's.
    if (memory.type == 0 || memory.device_address == nullptr) [[unlikely]]
      m_refuse(name, view);
    return memory;
  }
  [[noreturn, gnu::cold, gnu::noinline]] void m_refuse(const char* name, const host::TensorView* view) const {
    host::Message text;
    text
        << m_job.op << ": " << name
        << " is in pageable host memory, which a kernel cannot reach: allocate it with pin_memory=True, or register it "
           "with CUDA";
    if (view != nullptr) text << ": " << *view;
    throw host::Error("ValueError", text.c_str());
  }

  const Job& m_job;
  host::driver::Memory m_memory;
  std::uintptr_t m_shift = 0;
  std::uint64_t m_host_bytes = 0;
};

/// \brief Throw if an address for the CPU is of device memory, which would end the process. A process that does not use
/// CUDA does not begin to.
inline void refuse_device_memory(const Job& job, const char* name, std::uint64_t address) {
  namespace driver = host::driver;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto query =
      reinterpret_cast<decltype(driver::Api::PointerGetAttributes)>(::dlsym(library, "cuPointerGetAttributes"));
  ::dlclose(library);  // the reference of this call; whoever loaded it holds another
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
