#pragma once

/// \file add_constant.cuh
/// \brief The kernel. Device code without includes, so that any CUDA compiler accepts it.

namespace add_constant_detail {

/// \brief Threads of a block.
inline constexpr unsigned kBlockSize = 256;

/// \brief `dst[i] = src[i] + kConstant`, one element per thread. Unsigned, so that sums wrap around.
template <int kConstant>
__global__ void __launch_bounds__(kBlockSize) add_constant_kernel(int* dst, const int* src, long long length) {
  const long long i = static_cast<long long>(blockIdx.x) * kBlockSize + threadIdx.x;
  if (i < length) dst[i] = static_cast<int>(static_cast<unsigned>(src[i]) + static_cast<unsigned>(kConstant));
}

}  // namespace add_constant_detail
