#include "add_constant.cuh"

#include <sgl_kernel/tensor.h>
#include <sgl_kernel/launch.cuh>

#include <cstdint>

/// \file add_constant.cu
/// \brief The host part on CUDA: checks the tensors and launches the kernel.

namespace {

template <std::int32_t kConstant>
void add_constant(host::TensorView dst, host::TensorView src) {
  using namespace host;
  using namespace add_constant_detail;

  auto N = SymbolicSize{"num_elements"};
  auto device = SymbolicDevice{};
  TensorMatcher({N})  //
      .with_dtype<std::int32_t>()
      .with_device<kDLCUDA>(device)
      .verify(src, "src")
      .verify(dst, "dst");

  const std::int64_t length = N.unwrap();
  if (length == 0) return;
  const auto blocks = static_cast<unsigned>(div_ceil(length, kBlockSize));
  LaunchKernel(blocks, kBlockSize, device.unwrap())(
      add_constant_kernel<kConstant>, static_cast<int*>(dst.data_ptr()), static_cast<const int*>(src.data_ptr()),
      static_cast<long long>(length));
}

}  // namespace
