/// \file beside.cpp
/// \brief A launch with the arguments of `kernels/beside.py`, from C++.

#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>

#include "beside.h"

namespace {

host::Kernel<beside::Params> kernel{"beside.cuh", "beside::beside"};

void launch_beside(
    std::int64_t x, std::int64_t y, std::int64_t z, host::TensorView rows, host::TensorView output,
    host::Optional<host::TensorView> weights, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d,
    std::int64_t e, std::int64_t variant, double scale) {
  const beside::Params params = {
      rows.data_ptr(),
      output.data_ptr(),
      weights ? weights->data_ptr() : nullptr,
      {a, b, c, d, e, variant},
      static_cast<float>(scale)};
  host::LaunchKernel({x, y, z}, 128, rows.device())(kernel.get(static_cast<int>(variant), rows.dtype()), params);
}

}  // namespace

#include <sgl_kernel/export.h>
SGL_EXPORT(launch_beside, (launch_beside))
