// Calls the host part of sgljit-activation in a process without Python, on a processor that is imitated.
//
//   call_activation HOST.so FUNCTIONS DTYPE_CODE BITS ROWS COLUMNS IN OUT
//
// FUNCTIONS lists the compiled deferred functions: a line for each, its name and its library, separated by a tab. OUT
// gets silu(first half) * second half of the rows of IN.

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

using Call = int (*)(void*, const TVMFFIAny*, std::int32_t, TVMFFIAny*);

std::map<std::string, std::string> libraries;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

Call export_of(const std::string& library, const char* name) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(dlerror());
  void* symbol = dlsym(handle, (std::string("__tvm_ffi_") + name).c_str());
  if (symbol == nullptr) fail(dlerror());
  return reinterpret_cast<Call>(symbol);
}

// What the core answers as "sgljit.deferred": the address of a function, by (family, file, symbol, signature).
int deferred(void*, const TVMFFIAny* arguments, std::int32_t, TVMFFIAny* result) {
  const auto found = libraries.find(arguments[2].v_c_str);
  if (found == libraries.end()) fail(std::string("not compiled: ") + arguments[2].v_c_str);
  return export_of(found->second, "address")(nullptr, nullptr, 0, result);
}

TVMFFIAny tensor(DLTensor& one) {
  TVMFFIAny any{};
  any.type_index = kTVMFFIDLTensorPtr;
  any.v_ptr = &one;
  return any;
}

}  // namespace

int main(int, char** argv) {
  std::ifstream listed(argv[2]);
  for (std::string line; std::getline(listed, line);) {
    const auto tab = line.find('\t');
    libraries[line.substr(0, tab)] = line.substr(tab + 1);
  }
  TVMFFIObjectHandle function = nullptr;
  const char* name = "sgljit.deferred";
  const TVMFFIByteArray bytes{name, std::strlen(name)};
  if (TVMFFIFunctionCreate(nullptr, deferred, nullptr, &function) != 0) fail("no function was made");
  if (TVMFFIFunctionSetGlobal(&bytes, function, 1) != 0) fail("the function was not registered");

  const DLDataType dtype{
      static_cast<std::uint8_t>(std::atoi(argv[3])), static_cast<std::uint8_t>(std::atoi(argv[4])), 1};
  const std::int64_t rows = std::atoll(argv[5]), columns = std::atoll(argv[6]);
  std::ifstream input(argv[7], std::ios::binary);
  std::vector<char> in{std::istreambuf_iterator<char>(input), {}};
  std::vector<char> out(in.size() / 2);
  std::int64_t in_shape[] = {rows, columns}, in_strides[] = {columns, 1};
  std::int64_t out_shape[] = {rows, columns / 2}, out_strides[] = {columns / 2, 1};
  DLTensor from{in.data(), {kDLCPU, 0}, 2, dtype, in_shape, in_strides, 0};
  DLTensor to{out.data(), {kDLCPU, 0}, 2, dtype, out_shape, out_strides, 0};
  TVMFFIAny no{};
  no.type_index = kTVMFFIBool;
  TVMFFIAny arguments[] = {tensor(from), tensor(to), TVMFFIAny{}, no}, result{};
  if (export_of(argv[1], "silu_and_mul")(nullptr, arguments, 4, &result) != 0) fail("the call failed");
  std::ofstream(argv[8], std::ios::binary).write(out.data(), static_cast<std::streamsize>(out.size()));
}
