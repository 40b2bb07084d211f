#pragma once

#include "row.cuh"

/// \file qknorm.cuh
/// \brief The device code of RMSNorm over q and k in place, in one launch: over each head, or over all heads together.
///
/// Compiles under NVRTC.

namespace norm_kernels {

/// \brief Each head of q and of k is a row; all have kHeadDim elements, held in registers.
///
/// Grid: ceil(num_tokens * heads / rows_per_block()) blocks of block_threads, from the head's `layout_of`, for at most
/// 2^31 rows and at least two heads. Addresses and strides must be multiples of kLoadBytes.
template <int64_t kHeadDim, uint32_t kLoadBytes, bool kPlusOne, typename T>
__global__ __launch_bounds__(
    layout_of(kHeadDim * sizeof(T), kLoadBytes).block_threads,
    layout_of(kHeadDim * sizeof(T), kLoadBytes).blocks_per_sm)  //
    void qknorm(const __grid_constant__ QKNormParams params) {
  static_assert(kHeadDim * sizeof(T) % kLoadBytes == 0, "qknorm: a head must be a whole number of loads");
  static_assert(kHeadDim * sizeof(T) <= kMaxRowBytes, "qknorm: a head must fit into the registers of a block");
  constexpr Layout kRows = layout_of(kHeadDim * sizeof(T), kLoadBytes);
  const auto& [q, k, num_tokens, inverse_heads, eps] = params;
  const uint32_t row = blockIdx.x * kRows.rows_per_block() + threadIdx.x / kRows.row_threads;
  const auto q_heads = static_cast<uint32_t>(q.num_heads);
  const auto heads = q_heads + static_cast<uint32_t>(k.num_heads);
  const auto token = static_cast<uint32_t>(__umul64hi(row, inverse_heads));  // row / heads
  const uint32_t head = row - token * heads;
  const bool is_q = head < q_heads;
  void* data = is_q ? device::pointer::offset(q.data, token * q.token_stride, head * q.head_stride)
                    : device::pointer::offset(k.data, token * k.token_stride, (head - q_heads) * k.head_stride);
  rmsnorm_row<kRows, kPlusOne, T>(
      data, is_q ? q.weight : k.weight, data, threadIdx.x % kRows.row_threads, token < num_tokens, eps);
}

/// \brief All heads of q together are a row of kQSize elements, all heads of k one of kKSize, held in registers.
///
/// Grid: a block for each token, from `layout_of_both`. Addresses and strides must be multiples of
/// kLoadBytes.
template <int64_t kQSize, int64_t kKSize, uint32_t kLoadBytes, typename T>
__global__ __launch_bounds__(
    layout_of_both(kQSize * sizeof(T), kKSize * sizeof(T), kLoadBytes).block_threads,
    layout_of_both(kQSize * sizeof(T), kKSize * sizeof(T), kLoadBytes).blocks_per_sm)  //
    void qknorm_across_heads(const __grid_constant__ QKNormParams params) {
  using namespace device;
  constexpr Layout kBoth = layout_of_both(kQSize * sizeof(T), kKSize * sizeof(T), kLoadBytes);
  __shared__ float smem[2][norm::kSmemBufferSize];  // one for each reduction, so that no barrier is between them
  const auto& [q, k, num_tokens, inverse_heads, eps] = params;
  RMSNormRow<layout_of_one(kBoth, kQSize * sizeof(T)), false, T> q_row(q.weight, threadIdx.x, true);
  RMSNormRow<layout_of_one(kBoth, kKSize * sizeof(T)), false, T> k_row(k.weight, threadIdx.x, true);
  void* q_data = pointer::offset(q.data, blockIdx.x * q.token_stride);
  void* k_data = pointer::offset(k.data, blockIdx.x * k.token_stride);
  PDLWaitPrimary();
  q_row.load(q_data);
  k_row.load(k_data);
  PDLTriggerSecondary();
  const float q_factor = q_row.factor(eps, smem[0]);
  const float k_factor = k_row.factor(eps, smem[1]);
  q_row.store(q_data, q_factor);
  k_row.store(k_data, k_factor);
}

/// \brief Heads of any size, which may differ between q and k, read twice, `kElements` at a time.
///
/// The blocks of any grid, with any number of threads, share the heads. Addresses and strides must be multiples of
/// kElements * sizeof(T) bytes, and both head_dim of kElements.
template <uint32_t kElements, bool kPlusOne, typename T>
__global__ void qknorm_any_size(const __grid_constant__ QKNormParams params) {
  device::PDLWaitPrimary();
  const int64_t heads = params.q.num_heads + params.k.num_heads;
  for (int64_t row = blockIdx.x; row < params.num_tokens * heads; row += gridDim.x) {
    const int64_t token = row / heads;
    const int64_t head = row % heads;
    const bool is_q = head < params.q.num_heads;
    const Heads& of = is_q ? params.q : params.k;
    const int64_t own_head = is_q ? head : head - params.q.num_heads;
    void* data = device::pointer::offset(of.data, token * of.token_stride, own_head * of.head_stride);
    rmsnorm_any_row<kElements, kPlusOne, T>(data, of.weight, data, of.head_dim, params.eps);
  }
}

}  // namespace norm_kernels
