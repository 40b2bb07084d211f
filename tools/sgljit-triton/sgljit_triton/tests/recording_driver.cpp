/// \file recording_driver.cpp
/// \brief The CUDA driver without a device of the tools, which also keeps the last launch, for tests to look at.

#define cuLaunchKernelEx cuLaunchKernelExThatDoesNothing
#define cuLibraryLoadData cuLibraryLoadDataThatSucceeds
#include "null_driver.cpp"
#undef cuLaunchKernelEx
#undef cuLibraryLoadData

namespace {

constexpr int kMostArguments = 80;
struct {
  unsigned grid[3], block[3], dynamic_smem, attributes;
  int count;      // of launches
  int arguments;  // to be kept of each
  std::uint64_t values[kMostArguments];
  int load_status, launch_status;  // that the next calls return
} g_last = {};

}  // namespace

extern "C" __attribute__((visibility("default"))) void* test_last_launch() {
  return &g_last;
}

SGL_DRIVER cuLaunchKernelEx(const void* config, void*, void** arguments, void**) {
  std::memcpy(g_last.grid, config, 7 * sizeof(unsigned));
  std::memcpy(&g_last.attributes, static_cast<const char*>(config) + 48, sizeof(unsigned));
  ++g_last.count;
  for (int i = 0; i < g_last.arguments; ++i) std::memcpy(&g_last.values[i], arguments[i], 8);
  return g_last.launch_status;
}

SGL_DRIVER cuLibraryLoadData(
    void** library, const void* image, void* options, void* values, unsigned count, void* more, void* others,
    unsigned n) {
  const int status = cuLibraryLoadDataThatSucceeds(library, image, options, values, count, more, others, n);
  return g_last.load_status == 0 ? status : g_last.load_status;
}
