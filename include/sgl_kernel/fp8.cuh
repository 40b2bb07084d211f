#pragma once

#include <sgl_kernel/type.cuh>

#if !defined(USE_ROCM)
#include <cuda_fp8.h>
#endif

/// \file fp8.cuh
/// \brief The types of fp8 and their conversions, for device code that names one of them.
///
/// It is a file of its own because CUDA's takes a tenth of a kernel's compile time. Variants with a type of fp8 among
/// their template arguments, and row programs with an operand of fp8, need no include. Compiles under NVRTC.

#if SGL_HAS_FP8

namespace device::details {

SGL_DEVICE float to_fp32(fp8_e4m3_t x) {
  return static_cast<float>(x);
}
SGL_DEVICE float to_fp32(fp8_e5m2_t x) {
  return static_cast<float>(x);
}
SGL_DEVICE float2 to_fp32x2(fp8x2_e4m3_t x) {
  return static_cast<float2>(x);
}
SGL_DEVICE float2 to_fp32x2(fp8x2_e5m2_t x) {
  return static_cast<float2>(x);
}
SGL_DEVICE float4 to_fp32x4(fp8x4_e4m3_t x) {
  return static_cast<float4>(x);
}
SGL_DEVICE float4 to_fp32x4(fp8x4_e5m2_t x) {
  return static_cast<float4>(x);
}

}  // namespace device::details

SGL_DEFINE_SCALAR(fp8_e4m3_t, fp8x2_e4m3_t, fp8_e4m3_t(wide));
SGL_DEFINE_SCALAR(fp8_e5m2_t, fp8x2_e5m2_t, fp8_e5m2_t(wide));
SGL_DEFINE_PAIR(fp8x2_e4m3_t, fp8_e4m3_t, fp8x4_e4m3_t, fp8x2_e4m3_t(wide));
SGL_DEFINE_PAIR(fp8x2_e5m2_t, fp8_e5m2_t, fp8x4_e5m2_t, fp8x2_e5m2_t(wide));
SGL_DEFINE_FOUR(fp8x4_e4m3_t, fp8_e4m3_t);
SGL_DEFINE_FOUR(fp8x4_e5m2_t, fp8_e5m2_t);

#endif
