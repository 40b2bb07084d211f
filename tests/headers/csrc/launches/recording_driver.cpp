/// \file recording_driver.cpp
/// \brief The driver of dry runs, which also writes each launch to the file that RECORD names. Threads have no current
/// context.

#define cuCtxGetCurrent null_get_current
#define cuCtxGetDevice null_get_device
#define cuLaunchKernelEx null_launch
#define cuLibraryGetKernel null_get_kernel
#include "null_driver.cpp"
#undef cuCtxGetCurrent
#undef cuCtxGetDevice
#undef cuLaunchKernelEx
#undef cuLibraryGetKernel

#include <cstdio>

SGL_DRIVER cuCtxGetCurrent(void** context) {
  *context = nullptr;
  return 0;
}
SGL_DRIVER cuCtxGetDevice(int*) {
  return 201;  // no context
}
SGL_DRIVER cuLibraryGetKernel(void** kernel, void*, const char* name) {
  *kernel = strdup(name);
  return 0;
}

struct Launch {
  unsigned grid[3], block[3], dynamic_smem;
  void* stream;
};
SGL_DRIVER cuLaunchKernelEx(const Launch* launch, const char* name, void**, void**) {
  static std::FILE* const record = std::fopen(std::getenv("RECORD"), "w");
  std::fprintf(record, "%s %u %u %p\n", name, launch->grid[0], launch->dynamic_smem, launch->stream);
  return std::fflush(record);
}
