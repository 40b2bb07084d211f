/// \file null_driver.cpp
/// \brief A CUDA driver without a device, for recordings: it loads any kernel, launches nothing, and calls all memory
/// the device's, but for the addresses that it is told. The library's name is the driver's, so that a process that has
/// loaded it finds no other. It has no stream memory operations: kernels do their work.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define SGL_DRIVER extern "C" __attribute__((visibility("default"))) int

namespace {

char g_handle;  // what every context, library and kernel is
std::uint64_t g_pinned_begin = 0, g_pinned_end = 0;
void (*g_on_launch)(const void* config, void* kernel, void** arguments) = nullptr;

int give(void** handle) {
  *handle = &g_handle;
  return 0;
}

}  // namespace

/// These addresses are of pinned host memory.
SGL_DRIVER sgl_null_driver_pins(std::uint64_t begin, std::uint64_t end) {
  g_pinned_begin = begin;
  g_pinned_end = end;
  return 0;
}

/// Every launch is told to this function.
SGL_DRIVER sgl_null_driver_tells(void (*on_launch)(const void*, void*, void**)) {
  g_on_launch = on_launch;
  return 0;
}

SGL_DRIVER cuInit(unsigned) {
  return 0;
}
SGL_DRIVER cuGetExportTable(const void**, const void*) {
  return 500;  // not found: NVRTC asks, and does without
}
SGL_DRIVER cuGetErrorName(int, const char** name) {
  *name = "none";
  return 0;
}
SGL_DRIVER cuGetErrorString(int, const char** text) {
  *text = "a driver without a device";
  return 0;
}
SGL_DRIVER cuDriverGetVersion(int* version) {
  *version = 99000;
  return 0;
}
SGL_DRIVER cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}
SGL_DRIVER cuCtxGetCurrent(void** context) {
  return give(context);
}
SGL_DRIVER cuCtxPushCurrent_v2(void*) {
  return 0;
}
SGL_DRIVER cuCtxPopCurrent_v2(void** context) {
  return give(context);
}
SGL_DRIVER cuDevicePrimaryCtxRetain(void** context, int) {
  return give(context);
}
SGL_DRIVER cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 16:  // multiprocessors
      *value = 132;
      break;
    case 39:  // threads of a multiprocessor
      *value = SGL_NULL_MAJOR == 7                                                   ? 1024
               : SGL_NULL_MAJOR == 12 || (SGL_NULL_MAJOR == 8 && SGL_NULL_MINOR > 0) ? 1536
                                                                                     : 2048;
      break;
    case 75:
      *value = SGL_NULL_MAJOR;
      break;
    case 76:
      *value = SGL_NULL_MINOR;
      break;
    case 97:  // shared memory of a block
      *value = SGL_NULL_MAJOR == 9 || SGL_NULL_MAJOR == 10 ? 232448 : 101376;
      break;
    default:
      *value = 1;
  }
  return 0;
}
SGL_DRIVER cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  return give(library);
}
SGL_DRIVER cuLibraryGetKernel(void** kernel, void*, const char*) {
  return give(kernel);
}
SGL_DRIVER cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return 0;
}
SGL_DRIVER cuKernelSetAttribute(int, int, void*, int) {
  return 0;
}
SGL_DRIVER cuKernelGetAttribute(int* value, int attribute, void*, int device) {
  return attribute == 8 ? cuDeviceGetAttribute(value, 97, device) : (*value = 0);  // all of the block's shared memory
}
SGL_DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  *blocks = 1;
  return 0;
}
SGL_DRIVER cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, void*, int, int) {
  *bytes = 65536;
  return 0;
}
SGL_DRIVER cuLaunchKernelEx(const void* config, void* kernel, void** arguments, void**) {
  if (g_on_launch != nullptr) g_on_launch(config, kernel, arguments);
  return 0;
}
SGL_DRIVER cuPointerGetAttributes(unsigned count, const int* attributes, void** values, std::uint64_t address) {
  const bool is_pinned = address >= g_pinned_begin && address < g_pinned_end;
  const bool is_behind = address >= g_pinned_end;
  const std::uint64_t start = is_pinned ? g_pinned_begin : is_behind ? g_pinned_end : 1;
  const std::uint64_t end = is_pinned ? g_pinned_end : is_behind ? ~std::uint64_t{0} : g_pinned_begin;
  const std::uint64_t size = end - start;
  const int memory_type = is_pinned ? 1 : 2;
  const int device = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == 2) std::memcpy(values[i], &memory_type, sizeof(int));
    if (attributes[i] == 3) std::memcpy(values[i], &address, sizeof(address));
    if (attributes[i] == 9) std::memcpy(values[i], &device, sizeof(int));
    if (attributes[i] == 11) std::memcpy(values[i], &start, sizeof(start));
    if (attributes[i] == 12) std::memcpy(values[i], &size, sizeof(size));
  }
  return 0;
}
SGL_DRIVER cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = std::calloc(1, bytes);
  return *memory == nullptr ? 2 : 0;
}
SGL_DRIVER cuMemcpyDtoHAsync_v2(void* to, const void* from, std::size_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return 0;
}
SGL_DRIVER cuMemsetD32Async(void*, unsigned, std::size_t, void*) {
  return 0;
}
SGL_DRIVER cuStreamSynchronize(void*) {
  return 0;
}
SGL_DRIVER cuStreamIsCapturing(void*, int* is_capturing) {
  *is_capturing = 0;
  return 0;
}
