/// \file empty_op.cpp
/// \brief An op of PyTorch's with rmsnorm's schema that does nothing, in C++: what the dispatcher alone costs.
///
/// It is registered with torch's stable ABI (torch/csrc/stable/c/shim.h), whose functions are looked up at run time.

#include <sgl_kernel/utils.h>

#include <dlfcn.h>

#include <cstdint>

namespace {

using Handle = void*;
using Kernel = void (*)(std::uint64_t*, std::uint64_t, std::uint64_t);

void* find(const char* name) {
  void* library = ::dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  void* found = library == nullptr ? nullptr : ::dlsym(library, name);
  host::RuntimeCheck(found != nullptr, "this torch has no ", name);
  return found;
}

const auto g_delete_tensor = reinterpret_cast<int (*)(Handle)>(find("aoti_torch_delete_tensor_object"));

/// A kernel owns its arguments.
void do_nothing(std::uint64_t* stack, std::uint64_t, std::uint64_t) {
  for (int i = 0; i < 3; ++i) g_delete_tensor(reinterpret_cast<Handle>(stack[i]));
}

void implement(const char* ns, const char* name) {
  const auto init = reinterpret_cast<int (*)(const char*, const char*, const char*, std::uint32_t, Handle*)>(
      find("aoti_torch_library_init_impl"));
  const auto impl = reinterpret_cast<int (*)(Handle, const char*, Kernel)>(find("aoti_torch_library_impl"));
  Handle library = nullptr;
  host::RuntimeCheck(init(ns, "CPU", __FILE__, __LINE__, &library) == 0, "no library ", ns);
  host::RuntimeCheck(impl(library, name, do_nothing) == 0, "no op ", name);
}

}  // namespace
