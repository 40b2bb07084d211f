/// \file tvm.cpp
/// \brief A kernel's host code as other engines have it, with tvm-ffi's own types, beside light functions.

#include <sgl_kernel/tensor.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

namespace {

std::int64_t rows(const tvm::ffi::TensorView x, tvm::ffi::Optional<tvm::ffi::TensorView> y) {
  using namespace host;
  auto N = SymbolicSize{"rows"};
  TensorMatcher({N, -1}).with_dtype<float>().with_device<kDLCPU>().verify(x);
  if (y.has_value()) TensorMatcher({N, -1}).verify(y.value());
  RuntimeCheck(x.dtype() == x.dtype() && x.device() == x.device(), "tensor is ", x);
  return N.unwrap();
}
std::int64_t light_rows(host::TensorView x) {
  return x.size(0);
}
tvm::ffi::String greet(tvm::ffi::String name) {
  return "hello " + name;
}
void throw_tvm() {
  TVM_FFI_THROW(ValueError) << "thrown by tvm-ffi";
}
tvm::ffi::Tensor same(tvm::ffi::Tensor x) {
  return x;
}

}  // namespace

#include <sgl_kernel/export.h>

SGL_EXPORT(rows, (rows))
SGL_EXPORT(light_rows, (light_rows))
SGL_EXPORT(greet, (greet))
SGL_EXPORT(throw_tvm, (throw_tvm))
SGL_EXPORT(same, (same))
