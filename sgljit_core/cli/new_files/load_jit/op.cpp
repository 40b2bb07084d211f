/// \file $op.cpp
/// \brief The op on the CPU: the checks of the CUDA part, then a loop that the compiler vectorises.

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

namespace $namespace {
namespace {

/// out[r, i] = scale * x[r, i]
template <typename T>
void $op(host::TensorView x, host::TensorView out, float scale) {
  using namespace host;
  auto R = SymbolicSize{"rows"};
  auto C = SymbolicSize{"columns"};
  TensorMatcher({R, C}).with_device<kDLCPU>().with_dtype<T>().verify(x, "x").verify(out, "out");

  const auto* from = static_cast<const T*>(x.data_ptr());
  auto* to = static_cast<T*>(out.data_ptr());
  for (const auto i : irange(R.unwrap() * C.unwrap())) to[i] = cpu::from_float<T>(scale * cpu::to_float(from[i]));
}

}  // namespace
}  // namespace $namespace
