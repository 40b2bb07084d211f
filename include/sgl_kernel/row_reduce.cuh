#pragma once

#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/row_reduce_params.h>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

/// \file row_reduce.cuh
/// \brief The kernels of `host::RowReduce`: each row is reduced to one number, and then mapped with it. Compiles under
/// NVRTC.

namespace device {

namespace details {

/// The functor's reduction over `kThreads` lanes, a power of two: each gets the result. All lanes of the warp call.
template <typename F, uint32_t kThreads = kWarpThreads>
SGL_DEVICE float reduce_lanes(float value) {
  if constexpr (sgl::details::kIsMax<F>) return warp::reduce_max<float, kThreads>(value);
  else return warp::reduce_sum<float, kThreads>(value);
}

/// The functor's reduction over a whole block of whole warps: each thread gets the result. It synchronises once inside;
/// the caller synchronises before it uses `smem` again.
template <typename F>
SGL_DEVICE float reduce_block(float value, float* smem, uint32_t num_warps) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  value = reduce_lanes<F>(value);
  if (lane == 0) smem[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  // Every warp reduces the results of all warps by itself, which saves the second barrier of a broadcast.
  return reduce_lanes<F>(lane < num_warps ? smem[lane] : sgl::details::kIdentity<F>);
}

/// The elements of a vector as floats, by pairs: bf16 widens with one instruction each.
template <typename Packed, size_t N>
SGL_DEVICE void widen(const AlignedVector<Packed, N>& vector, size_t pair, float& low, float& high) {
  const auto wide = cast<fp32x2_t>(vector[pair]);
  low = wide.x;
  high = wide.y;
}

}  // namespace details

/// \brief Rows of a size known at compile time, held in registers: one read, one write.
///
/// Grid: a block for each `kBlock / kThreads` rows. Addresses and strides must be multiples of kElements elements of
/// their type, and kColumns of kElements. An output may be an input.
/// \tparam kElements elements of a vector, an even number.
/// \tparam kThreads threads that share a row: a power of two within a warp, else a whole block of whole warps.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <
    typename F, int kInputs, int kShared, int kOutputs, int64_t kColumns, uint32_t kElements, uint32_t kThreads,
    uint32_t kBlock, typename T, typename U>
__global__ __launch_bounds__(kBlock) void row_reduce(
    const __grid_constant__ sgl::RowReduceParams<kInputs + kShared + kOutputs> params, const __grid_constant__ F f) {
  static_assert(kColumns % kElements == 0 && kElements % 2 == 0, "row_reduce: a row must be a whole number of vectors");
  constexpr uint32_t kVectors = kColumns / kElements;
  constexpr uint32_t kHeld = (kVectors + kThreads - 1) / kThreads;
  constexpr uint32_t kPairs = kElements / 2;
  // Early, the latency of the shared rows hides behind that of the inputs, if registers are left to hold them.
  constexpr bool kSharedFirst = kHeld * (kInputs + kShared) <= 8;
  using input_t = AlignedVector<packed_t<T>, kPairs>;
  using output_t = AlignedVector<packed_t<U>, kPairs>;
  __shared__ float smem[kWarpThreads];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kBlock / kThreads) + threadIdx.x / kThreads;
  const uint32_t thread = threadIdx.x % kThreads;
  const bool has_row = kBlock == kThreads || row < params.num_rows;
  const auto has = [&](uint32_t held) {
    return has_row && (kVectors % kThreads == 0 || held * kThreads + thread < kVectors);
  };
  const auto address = [&](int operand) {
    return pointer::offset(params.operands[operand].data, row * params.operands[operand].stride);
  };
  input_t x[kHeld][kInputs];
  input_t shared[kHeld][kShared > 0 ? kShared : 1];
  const auto load_shared = [&]() {
#pragma unroll
    for (int i = 0; i < kShared; ++i) {
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k) {
        if (has(k)) shared[k][i].load(params.operands[kInputs + i].data, k * kThreads + thread);
      }
    }
  };

  PDLWaitPrimary();
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    const void* data = address(i);
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      if (has(k)) x[k][i].load(data, k * kThreads + thread);
    }
  }
  if constexpr (kSharedFirst) load_shared();
  PDLTriggerSecondary();

  float reduced = sgl::details::kIdentity<F>;
#pragma unroll
  for (uint32_t k = 0; k < kHeld; ++k) {
    if (!has(k)) continue;
#pragma unroll
    for (uint32_t j = 0; j < kPairs; ++j) {
      float low[kInputs], high[kInputs];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) details::widen(x[k][i], j, low[i], high[i]);
      reduced = sgl::details::combine<F>(reduced, sgl::details::term(f, low));
      reduced = sgl::details::combine<F>(reduced, sgl::details::term(f, high));
    }
  }
  if constexpr (kThreads <= kWarpThreads) reduced = details::reduce_lanes<F, kThreads>(reduced);
  else reduced = details::reduce_block<F>(reduced, smem, kThreads / kWarpThreads);
  const float statistic = f.finish(reduced, static_cast<float>(kColumns));
  // All loads come before the first store, which the compiler must take for one to their memory.
  if constexpr (!kSharedFirst) load_shared();

#pragma unroll
  for (uint32_t k = 0; k < kHeld; ++k) {
    if (!has(k)) continue;
    output_t y[kOutputs];
#pragma unroll
    for (uint32_t j = 0; j < kPairs; ++j) {
      float low[kInputs + kShared], high[kInputs + kShared];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) details::widen(x[k][i], j, low[i], high[i]);
#pragma unroll
      for (int i = 0; i < kShared; ++i) details::widen(shared[k][i], j, low[kInputs + i], high[kInputs + i]);
      const auto first = sgl::details::call<kOutputs>(f, low, statistic);
      const auto second = sgl::details::call<kOutputs>(f, high, statistic);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) y[i][j] = cast<packed_t<U>>(fp32x2_t{first.values[i], second.values[i]});
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) y[i].store(address(kInputs + kShared + i), k * kThreads + thread);
  }
}

/// \brief Rows of any size, read twice, `kElements` elements at a time.
///
/// The blocks of any grid, of whole warps, share the rows. Addresses and strides must be multiples of kElements
/// elements of their type, and the columns of kElements. An output may be an input.
template <typename F, int kInputs, int kShared, int kOutputs, uint32_t kElements, typename T, typename U>
__global__ __launch_bounds__(1024) void row_reduce_generic(
    const __grid_constant__ sgl::RowReduceParams<kInputs + kShared + kOutputs> params, const __grid_constant__ F f) {
  __shared__ float smem[2][kWarpThreads];  // in turns, so that one barrier a row is enough
  const int64_t vectors = params.columns / kElements;
  uint32_t turn = 0;
  PDLWaitPrimary();
  for (int64_t row = blockIdx.x; row < params.num_rows; row += gridDim.x, turn ^= 1) {
    const auto address = [&](int operand) {
      return pointer::offset(params.operands[operand].data, row * params.operands[operand].stride);
    };
    float reduced = sgl::details::kIdentity<F>;
    for (int64_t k = threadIdx.x; k < vectors; k += blockDim.x) {
      AlignedVector<T, kElements> x[kInputs];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) x[i].load(address(i), k);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        float values[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) values[i] = cast<fp32_t>(x[i][j]);
        reduced = sgl::details::combine<F>(reduced, sgl::details::term(f, values));
      }
    }
    reduced = details::reduce_block<F>(reduced, smem[turn], blockDim.x / kWarpThreads);
    const float statistic = f.finish(reduced, static_cast<float>(params.columns));
    for (int64_t k = threadIdx.x; k < vectors; k += blockDim.x) {
      AlignedVector<T, kElements> x[kInputs + kShared];
#pragma unroll
      for (int i = 0; i < kInputs + kShared; ++i) x[i].load(address(i), k);
      AlignedVector<U, kElements> y[kOutputs];
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        float values[kInputs + kShared];
#pragma unroll
        for (int i = 0; i < kInputs + kShared; ++i) values[i] = cast<fp32_t>(x[i][j]);
        const auto results = sgl::details::call<kOutputs>(f, values, statistic);
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) y[i][j] = cast<U>(results.values[i]);
      }
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) y[i].store(address(kInputs + kShared + i), k);
    }
  }
}

}  // namespace device
