#pragma once

/// \file compat/tvm_ffi.h
/// \brief `tvm::ffi::TensorView` and its kind, from tvm-ffi's own headers only if the build includes some of them
/// anyway.
///
/// They take 4 s to compile. Without them the names are those of our own classes. The core defines `SGL_TVM_FFI_CPP` if
/// its scan found that a file of the build includes such a header.

#if defined(SGL_TVM_FFI_CPP)

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/optional.h>

/// The handle `REF`, never null, of a tvm-ffi object.
#define SGLANG_REGISTER_FFI_REFERENCE_CLASS(REF, OBJECT)                               \
  struct REF : ::tvm::ffi::ObjectRef {                                                 \
    TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(REF, ::tvm::ffi::ObjectRef, OBJECT); \
  }

#else

#include <sgl_kernel/dtype.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor_view.h>

namespace tvm::ffi {

using Tensor = ::host::Tensor;
using TensorView = ::host::TensorView;
using ShapeView = ::host::ShapeView;
template <typename T>
using Optional = ::host::Optional<T>;

}  // namespace tvm::ffi

[[nodiscard]] constexpr bool operator==(const DLDataType& a, const DLDataType& b) noexcept {
  return ::host::operator==(a, b);
}

#endif
