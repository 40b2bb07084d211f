/// \file silu_and_mul.cpp
/// \brief The host part: the function that Python calls, with the checks and the launch.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>

#include "silu_and_mul.h"

namespace {

host::Deferred<void(const swiglu::Params&, DLDataType)> silu_and_mul_on_cpu{
    "silu_and_mul_cpu.cpp", "silu_and_mul_on_cpu"};
host::Variants kernels{"silu_and_mul.cuh"};

/// out[t, i] = silu(input[t, i]) * input[t, hidden + i]; on CUDA on the current stream of its device.
void silu_and_mul(host::TensorView input, host::TensorView out) {
  using namespace host;

  auto N = SymbolicSize{"num_tokens"};
  auto D = SymbolicSize{"hidden"};
  auto D2 = SymbolicSize{"2 * hidden"};
  auto dtype = SymbolicDType{};
  auto device = SymbolicDevice{};
  TensorMatcher({N, D})  //
      .with_dtype<float, __half, __nv_bfloat16>(dtype)
      .with_device<kDLCUDA, kDLCPU>(device)
      .verify(out, "out");
  D2.set_value(2 * D.unwrap());
  TensorMatcher({N, D2})  //
      .with_dtype(dtype)
      .with_device(device)
      .verify(input, "input");

  const auto params = swiglu::Params{input.data_ptr(), out.data_ptr(), N.unwrap(), D.unwrap()};
  if (params.num_tokens == 0 || params.hidden == 0) return;
  if (device.unwrap().device_type == kDLCPU) return silu_and_mul_on_cpu(params, dtype.unwrap());
  const auto threads = params.hidden < 1024 ? div_ceil(params.hidden, 32) * 32 : 1024;
  LaunchKernel(params.num_tokens, threads, device.unwrap())(
      kernels.get("swiglu::silu_and_mul", dtype.unwrap()), params);
}

}  // namespace
