#pragma once

/// \file hip/hip_fp16.h
/// \brief As much of HIP's fp16 as the device headers use, on a CPU.

#include <hip/hip_runtime.h>

struct alignas(2) __half {
  _Float16 value;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half x) {
  return static_cast<float>(x.value);
}
inline __half __float2half_rn(float x) {
  return {static_cast<_Float16>(x)};
}
inline float2 __half22float2(__half2 x) {
  return {__half2float(x.x), __half2float(x.y)};
}
inline __half2 __float22half2_rn(float2 x) {
  return {__float2half_rn(x.x), __float2half_rn(x.y)};
}
inline __half operator+(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
