/// \file $op.cu
/// \brief The op on CUDA, whole: the kernel, the checks and the launch. nvcc compiles it for one dtype at a time.
///
/// docs/headers.md of sgljit has the headers; CUTLASS, CCCL and other files of this directory may be included, too.
/// A kernel of SGLang goes here as it is: docs/port.md.

#include <sgl_kernel/tensor.h>
#include <sgl_kernel/launch.cuh>
#include <sgl_kernel/type.cuh>

#include <cstdint>

namespace $namespace {
namespace {

constexpr unsigned kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) kernel(T* out, const T* x, float scale, std::int64_t length) {
  const auto i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < length) out[i] = device::cast<T>(scale * device::cast<fp32_t>(x[i]));
}

/// out[r, i] = scale * x[r, i], on the current stream.
template <typename T>
void $op(host::TensorView x, host::TensorView out, float scale) {
  using namespace host;
  auto R = SymbolicSize{"rows"};
  auto C = SymbolicSize{"columns"};
  auto device = SymbolicDevice{};
  TensorMatcher({R, C}).with_device<kDLCUDA>(device).with_dtype<T>().verify(x, "x").verify(out, "out");

  const auto length = R.unwrap() * C.unwrap();
  if (length == 0) return;
  LaunchKernel(div_ceil(length, kThreads), kThreads, device.unwrap())(
      kernel<T>, static_cast<T*>(out.data_ptr()), static_cast<const T*>(x.data_ptr()), scale, length);
}

}  // namespace
}  // namespace $namespace
