#pragma once

#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/launch.h>
#include <sgl_kernel/utils.h>

#include <cstdint>

#if defined(USE_ROCM)
#error "variants and row programs need NVRTC and CUDA's driver: on ROCm write a __global__ kernel for load_jit"
#endif

/// \file driver.h
/// \brief The few functions of the CUDA driver that launch a variant, found at run time; and stream memory operations
/// and facts about addresses, for kernels that share memory with the host.
///
/// Compiling and linking need no part of CUDA: the structures and numbers below are the driver's stable ABI (a test
/// compares them with cuda.h). A process without a driver pays nothing until it asks for a kernel.

namespace host::driver {

using result_t = int;
using device_t = int;
using context_t = void*;
using kernel_t = void*;  // a CUkernel, which belongs to no context: functions below that take a CUfunction take it, too
using function_t = void*;  // a CUfunction: a kernel in one context

inline constexpr result_t kSuccess = 0;

/// \brief CUlaunchAttribute: an id, and a value padded to 64 bytes.
struct LaunchAttribute {
  static constexpr int kClusterDimension = 4;
  static constexpr int kProgrammaticStreamSerialization = 6;
  int id;
  char pad[8 - sizeof(int)];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int serialization_allowed;
  } value;
};

/// \brief CUlaunchConfig.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned dynamic_smem;
  native_stream_t stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

/// \brief CUfunction_attribute and CUdevice_attribute numbers.
inline constexpr int kMaxDynamicSharedSizeBytes = 8;
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kMaxThreadsPerMultiprocessor = 39;
inline constexpr int kComputeCapabilityMajor = 75;
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kMaxSharedMemoryPerBlockOptin = 97;
inline constexpr int kCanUse64BitStreamMemOps = 122;
inline constexpr int kCanUseStreamWaitValueNor = 123;

/// \brief CUpointer_attribute numbers, and CUmemorytype.
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerDevicePointer = 3;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerRangeStart = 11;
inline constexpr int kPointerRangeSize = 12;
inline constexpr int kMemoryTypeHost = 1;
inline constexpr int kMemoryTypeDevice = 2;

/// \brief CUstreamWaitValue_flags.
inline constexpr unsigned kWaitValueGreaterOrEqual = 0;
inline constexpr unsigned kWaitValueEqual = 1;
inline constexpr unsigned kWaitValueAnd = 2;
inline constexpr unsigned kWaitValueNor = 3;

/// \brief Flags of cuMemHostAlloc: memory that every context can use.
inline constexpr unsigned kHostAllocPortable = 1;

/// \brief The driver's entry points.
struct Api {
  result_t (*Init)(unsigned);
  result_t (*GetErrorName)(result_t, const char**);
  result_t (*GetErrorString)(result_t, const char**);
  result_t (*DriverGetVersion)(int*);
  result_t (*CtxGetDevice)(device_t*);
  result_t (*CtxGetCurrent)(context_t*);
  result_t (*CtxPushCurrent)(context_t);
  result_t (*CtxPopCurrent)(context_t*);
  result_t (*DevicePrimaryCtxRetain)(context_t*, device_t);
  result_t (*DeviceGetAttribute)(int*, int, device_t);
  result_t (*KernelGetAttribute)(int*, int, kernel_t, device_t);
  result_t (*KernelGetFunction)(function_t*, kernel_t);
  result_t (*OccupancyMaxActiveBlocksPerMultiprocessor)(int*, kernel_t, int, std::size_t);
  result_t (*OccupancyAvailableDynamicSMemPerBlock)(std::size_t*, kernel_t, int, int);
  result_t (*LaunchKernelEx)(const LaunchConfig*, function_t, void**, void**);
  result_t (*PointerGetAttributes)(unsigned, const int*, void**, const void*);
  result_t (*MemHostAlloc)(void**, std::size_t, unsigned);
  result_t (*MemcpyDtoHAsync)(void*, const void*, std::size_t, native_stream_t);
  result_t (*MemsetD32Async)(void*, unsigned, std::size_t, native_stream_t);
  result_t (*StreamSynchronize)(native_stream_t);
  result_t (*StreamIsCapturing)(native_stream_t, int*);
  // Null if the driver lacks the second version of the stream memory operations, which every device supports.
  result_t (*StreamWaitValue32)(native_stream_t, void*, std::uint32_t, unsigned);
  result_t (*StreamWaitValue64)(native_stream_t, void*, std::uint64_t, unsigned);
  result_t (*StreamWriteValue32)(native_stream_t, void*, std::uint32_t, unsigned);
  result_t (*StreamWriteValue64)(native_stream_t, void*, std::uint64_t, unsigned);
};

/// \brief The entry points. Throws a RuntimeError if this machine has no CUDA driver.
SGL_INLINE const Api& api();

namespace details {

[[noreturn, gnu::cold]] SGL_INLINE void raise(result_t error, DebugInfo location, const host::LaunchConfig* launch);

}  // namespace details

/// \brief Throw a RuntimeError with the error's name and `location` unless `error` is success.
inline void check(result_t error, DebugInfo location = {}, const host::LaunchConfig* launch = nullptr) {
  if (error != kSuccess) [[unlikely]]
    details::raise(error, location, launch);
}

/// \brief The driver's record of an address; all zero for memory that it has not allocated or registered.
struct Memory {
  int type = 0;                    ///< kMemoryTypeHost, kMemoryTypeDevice or 0
  int device_id = -1;              ///< of the context that it was allocated or registered in
  void* device_address = nullptr;  ///< the address in kernels; null if they cannot access it
  std::uintptr_t begin = 0;        ///< of the allocation
  std::size_t size = 0;            ///< of the allocation
};

/// \brief Ask the driver about an address. A context must be current. Takes a few hundred nanoseconds. Do not keep the
/// answer: the memory may be freed, or registered, at any time.
[[nodiscard]] SGL_INLINE Memory memory_at(const void* address, DebugInfo location = {});

/// \brief The type of cuPointerGetAttributes.
using pointer_query_t = decltype(Api::PointerGetAttributes);

/// \brief cuPointerGetAttributes of a driver that this process has loaded, or null. Loads and initialises nothing: a
/// process that uses the CPU alone can still fork. Takes a few hundred nanoseconds, with a driver or without.
[[nodiscard]] SGL_INLINE pointer_query_t loaded_pointer_query();

}  // namespace host::driver

#if SGL_BODIES

#include <dlfcn.h>
#include <link.h>

namespace host::driver {

namespace details {

/// The names of `Api`'s members, in their order. A question mark precedes the names that older drivers lack.
inline constexpr const char* kNames[] = {
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDriverGetVersion",
    "cuCtxGetDevice",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceGetAttribute",
    "cuKernelGetAttribute",
    "cuKernelGetFunction",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuLaunchKernelEx",
    "cuPointerGetAttributes",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD32Async",
    "cuStreamSynchronize",
    "cuStreamIsCapturing",
    "?cuStreamWaitValue32_v2",
    "?cuStreamWaitValue64_v2",
    "?cuStreamWriteValue32_v2",
    "?cuStreamWriteValue64_v2",
};
static_assert(sizeof(kNames) / sizeof(*kNames) == sizeof(Api) / sizeof(void*));

/// How many libraries this process has loaded so far.
inline unsigned long long loaded_libraries() {
  unsigned long long loaded = 0;
  const auto count = [](dl_phdr_info* info, std::size_t, void* to) {
    *static_cast<unsigned long long*>(to) = info->dlpi_adds;
    return 1;  // every library has the same number
  };
  ::dl_iterate_phdr(count, &loaded);
  return loaded;
}

/// Called by one thread at a time, until it returns.
[[gnu::cold, gnu::noinline]] inline Api load_api() {
  // A look for a library that is not there searches the disk, so another is made only after something was loaded.
  static unsigned long long g_missed = 0;  // what had been loaded when the driver was last missed
  static Message g_reason;
  void* library = nullptr;
  if (g_missed != loaded_libraries()) {
    library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      g_reason = Message{};
      g_reason << ::dlerror();
      g_missed = loaded_libraries();
    }
  }
  RuntimeCheck(library != nullptr, "no CUDA driver on this machine: ", g_reason.c_str());
  Api found = {};
  auto* entry = reinterpret_cast<void**>(&found);
  for (const char* name : kNames) {
    const bool may_lack = name[0] == '?';
    *entry = ::dlsym(library, name + may_lack);
    RuntimeCheck(*entry != nullptr || may_lack, "the CUDA driver of this machine is older than 11.8 and has no ", name);
    ++entry;
  }
  found.Init(0);  // the first call reports a failure, with its location
  return found;
}

SGL_INLINE void raise(result_t error, DebugInfo location, const host::LaunchConfig* launch) {
  const char* name = "unknown";
  const char* text = "";
  api().GetErrorName(error, &name);
  api().GetErrorString(error, &text);
  host::details::raise_device_error(error, name, text, location, launch);
}

}  // namespace details

SGL_INLINE const Api& api() {
  static const Api table = details::load_api();
  return table;
}

SGL_INLINE Memory memory_at(const void* address, DebugInfo location) {
  static constexpr int kAttributes[] = {
      kPointerMemoryType, kPointerDeviceOrdinal, kPointerDevicePointer, kPointerRangeStart, kPointerRangeSize};
  Memory memory;
  void* values[] = {&memory.type, &memory.device_id, &memory.device_address, &memory.begin, &memory.size};
  check(api().PointerGetAttributes(5, kAttributes, values, address), location);
  return memory;
}

SGL_INLINE pointer_query_t loaded_pointer_query() {
  // A look for a library that is not loaded searches the disk, so one is made only after something was loaded.
  static unsigned long long g_missed = 0;  // what had been loaded when the driver was last missed
  const auto loaded = details::loaded_libraries();
  if (__atomic_load_n(&g_missed, __ATOMIC_RELAXED) == loaded) return nullptr;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    __atomic_store_n(&g_missed, loaded, __ATOMIC_RELAXED);
    return nullptr;
  }
  const auto query = reinterpret_cast<pointer_query_t>(::dlsym(library, "cuPointerGetAttributes"));
  ::dlclose(library);  // drops the reference of this call; the library stays loaded
  return query;
}

}  // namespace host::driver

#endif  // SGL_BODIES
