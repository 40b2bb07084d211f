#pragma once

#include <sgl_kernel/dtype.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/tensor_view.h>

#include <cstdint>

/// \file test_utils.h
/// \brief Checks for tests of kernels.

namespace host {

/// \brief Throw a `TensorMatchError` unless two tensors have one shape, dtype and device. Strides do not count.
inline void assert_same_shape(const TensorView& a, const TensorView& b) {
  bool same =
      a.ndim() == b.ndim() && ::host::operator==(a.dtype(), b.dtype()) && ::host::operator==(a.device(), b.device());
  for (std::int32_t i = 0; same && i < a.ndim(); ++i) same = a.size(i) == b.size(i);
  if (!same) [[unlikely]]
    details::raise(kTensorMatchError, {"expected tensors of one shape, dtype and device, got ", a, " and ", b});
}

}  // namespace host
