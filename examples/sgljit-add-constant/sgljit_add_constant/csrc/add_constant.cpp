#include <sgl_kernel/tensor.h>

#include <cstdint>

/// \file add_constant.cpp
/// \brief The op for CPU tensors: the checks of the CUDA part, then a loop that the compiler vectorises.

namespace {

template <std::int32_t kConstant>
void add_constant(host::TensorView dst, host::TensorView src) {
  using namespace host;

  auto N = SymbolicSize{"num_elements"};
  TensorMatcher({N})  //
      .with_dtype<std::int32_t>()
      .with_device<kDLCPU>()
      .verify(src, "src")
      .verify(dst, "dst");

  const auto* from = static_cast<const std::uint32_t*>(src.data_ptr());  // unsigned, so that sums wrap around
  auto* to = static_cast<std::uint32_t*>(dst.data_ptr());
  for (const auto i : irange(N.unwrap())) to[i] = from[i] + static_cast<std::uint32_t>(kConstant);
}

}  // namespace
