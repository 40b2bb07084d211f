#pragma once

#include "norm.h"
#include "qknorm_params.h"

/// \file qknorm.cuh
/// \brief The kernels of RMSNorm over q and k in place, in one launch: over each head, or over all heads together.
///
/// Compiles under NVRTC.

namespace norms {

/// \brief Each head of q and of k is a row; all have kHeadDim elements, held in registers.
///
/// Grid: a block for each `kBlock / kThreads` heads, at most 2^31 and at least two a token. Addresses and strides must
/// be multiples of kElements elements.
template <bool kPlusOne, int64_t kHeadDim, uint32_t kElements, uint32_t kThreads, uint32_t kBlock, typename T>
__global__ __launch_bounds__(kBlock) void qknorm(
    const __grid_constant__ QKNormParams params, const __grid_constant__ RMSNorm<kPlusOne> f) {
  using row_t = device::ResidentRow<RMSNorm<kPlusOne>, 1, 1, 1, kHeadDim, kElements, kThreads, T, T>;
  const auto& [q, k, num_tokens, inverse_heads, triggers_first] = params;
  const uint32_t row = blockIdx.x * (kBlock / kThreads) + threadIdx.x / kThreads;
  const auto q_heads = static_cast<uint32_t>(q.num_heads);
  const auto heads = q_heads + static_cast<uint32_t>(k.num_heads);
  const auto token = static_cast<uint32_t>(__umul64hi(row, inverse_heads));  // row / heads
  const uint32_t head = row - token * heads;
  const bool is_q = head < q_heads;
  void* data = is_q ? device::pointer::offset(q.data, token * q.token_stride, head * q.head_stride)
                    : device::pointer::offset(k.data, token * k.token_stride, (head - q_heads) * k.head_stride);
  void* weight = is_q ? q.weight : k.weight;
  device::run_row(row_t(f, threadIdx.x % kThreads, token < num_tokens), row, triggers_first, [&](int operand) {
    return operand == 1 ? weight : data;
  });
}

/// \brief All heads of q together are a row of kQSize elements, all heads of k one of kKSize, held in registers.
///
/// Grid: two blocks of kThreads for each token. Addresses and strides must be multiples of kElements elements.
template <int64_t kQSize, int64_t kKSize, uint32_t kElements, uint32_t kThreads, typename T>
__global__ __launch_bounds__(kThreads) void qknorm_across_heads(
    const __grid_constant__ QKNormParams params, const __grid_constant__ RMSNorm<false> f) {
  const int64_t token = blockIdx.x / 2;
  const auto run = [&]<int64_t kSize>(const Heads& of) {
    using row_t = device::ResidentRow<RMSNorm<false>, 1, 1, 1, kSize, kElements, kThreads, T, T>;
    device::run_row(row_t(f, threadIdx.x, true), token, params.triggers_first, [&](int operand) {
      return operand == 1 ? of.weight : device::pointer::offset(of.data, token * of.token_stride);
    });
  };
  if (blockIdx.x % 2 == 0) run.template operator()<kQSize>(params.q);
  else run.template operator()<kKSize>(params.k);
}

/// \brief Heads of any size, which may differ between q and k.
///
/// The blocks of any grid, of whole warps, share the heads. Addresses and strides must be multiples of kElements
/// elements, and both head_dim of kElements.
template <bool kPlusOne, uint32_t kElements, typename T>
__global__ __launch_bounds__(1024) void qknorm_generic(
    const __grid_constant__ QKNormParams params, const __grid_constant__ RMSNorm<kPlusOne> f) {
  __shared__ float smem[2][device::kRowSmem];  // by turns, so that no barrier is between two rows
  uint32_t turn = 0;
  device::PDLWaitPrimary();
  const int64_t heads = params.q.num_heads + params.k.num_heads;
  for (int64_t row = blockIdx.x; row < params.num_tokens * heads; row += gridDim.x, turn ^= 1) {
    const int64_t token = row / heads;
    const int64_t head = row % heads;
    const bool is_q = head < params.q.num_heads;
    const Heads& of = is_q ? params.q : params.k;
    const int64_t own_head = is_q ? head : head - params.q.num_heads;
    void* data = device::pointer::offset(of.data, token * of.token_stride, own_head * of.head_stride);
    device::reduce_row_generic<RMSNorm<kPlusOne>, 1, 1, 1, kElements, T, T>(
        f, of.head_dim, row, smem[turn], [&](int operand) { return operand == 1 ? of.weight : data; });
  }
}

}  // namespace norms
