/// \file parts.cu
/// \brief Launches the kernels of parts.cuh; test_device_parts.py knows the results.

#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.cuh>

#include "parts.cuh"

namespace {

template <typename T>
T* pointer(host::TensorView x) {
  return static_cast<T*>(x.data_ptr());
}

template <uint32_t kColumns, uint32_t kThreads>
void softmax(host::TensorView out, host::TensorView in) {
  host::RuntimeCheck(in.size(1) == kColumns, "expected rows of ", kColumns, " elements, got ", in.size(1));
  host::LaunchKernel(in.size(0), kThreads, in.device())(
      parts::softmax<kColumns, kThreads>, pointer<bf16_t>(out), pointer<const bf16_t>(in));
}

template <uint32_t kColumns, uint32_t kElements, uint32_t kThreads>
void unit_heads(host::TensorView out, host::TensorView totals, host::TensorView in) {
  host::RuntimeCheck(in.size(1) == kColumns, "expected rows of ", kColumns, " elements, got ", in.size(1));
  host::LaunchKernel(host::div_ceil(in.size(0), 128 / kThreads), 128, in.device())(
      parts::unit_heads<kColumns, kElements, kThreads>, pointer<float>(out), pointer<float>(totals),
      pointer<const bf16_t>(in), in.size(0));
}

template <uint32_t kColumns, uint32_t kThreads, uint32_t kBlocks>
void first_largest(host::TensorView out, host::TensorView copy, host::TensorView in) {
  host::RuntimeCheck(in.size(1) == kColumns, "expected rows of ", kColumns, " elements, got ", in.size(1));
  host::LaunchKernel(in.size(0) * kBlocks, kThreads, in.device())
      .enable_cluster(kBlocks)(
          parts::first_largest<kColumns, kThreads, kBlocks>, pointer<int>(out), pointer<bf16_t>(copy),
          pointer<const bf16_t>(in));
}

void exchange(host::TensorView out, uint32_t distance) {
  host::LaunchKernel(1, 32, out.device())(parts::exchange, pointer<float>(out), distance);
}

}  // namespace

#include <sgl_kernel/export.h>

SGL_EXPORT(softmax_4096_256, (softmax<4096, 256>))
SGL_EXPORT(softmax_1024_32, (softmax<1024, 32>))
SGL_EXPORT(softmax_8184_512, (softmax<8184, 512>))
SGL_EXPORT(softmax_8192_1024, (softmax<8192, 1024>))
SGL_EXPORT(unit_heads_64_8_8, (unit_heads<64, 8, 8>))
SGL_EXPORT(unit_heads_96_4_32, (unit_heads<96, 4, 32>))
SGL_EXPORT(unit_heads_128_1_16, (unit_heads<128, 1, 16>))
SGL_EXPORT(unit_heads_8_8_1, (unit_heads<8, 8, 1>))
SGL_EXPORT(first_largest_8192_64_2, (first_largest<8192, 64, 2>))
SGL_EXPORT(first_largest_16376_128_8, (first_largest<16376, 128, 8>))
SGL_EXPORT(exchange, (exchange))
