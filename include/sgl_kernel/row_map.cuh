#pragma once

#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/row_map_params.h>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>

/// \file row_map.cuh
/// \brief The kernel of `host::RowMap`: a functor applied to every element of rows. Compiles under NVRTC.

namespace device {

namespace details {

/// Reads `count` elements of a vector, or all of them if `count` is 0.
template <typename T, size_t N>
SGL_DEVICE void load_some(AlignedVector<T, N>& vector, const void* row, uint32_t index, uint32_t count) {
  if (count == 0) return vector.load(row, index);
#pragma unroll
  for (uint32_t j = 0; j < N; ++j) {
    if (j < count) vector[j] = load_as<T>(row, static_cast<int64_t>(index) * N + j);
  }
}

/// Writes `count` elements of a vector, or all of them if `count` is 0.
template <typename T, size_t N>
SGL_DEVICE void store_some(const AlignedVector<T, N>& vector, void* row, uint32_t index, uint32_t count) {
  if (count == 0) return vector.store(row, index);
#pragma unroll
  for (uint32_t j = 0; j < N; ++j) {
    if (j < count) store_as(row, vector[j], static_cast<int64_t>(index) * N + j);
  }
}

}  // namespace details

/// \brief Output i, element by element: result i of `f` for the inputs' elements, in float, rounded once.
///
/// Grid: one dimension, `kRowMapThreads * kRowMapUnroll<kInputs>` items a block. Addresses and strides must be
/// multiples of kElements elements of their type. An output may be an input: every element is written by the thread
/// that read it, later.
/// \tparam kElements elements of an item, a power of two.
/// \tparam kTail whether the last item of a row has fewer elements.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kOutputs, uint32_t kElements, bool kTail, typename T, typename U>
__global__ __launch_bounds__(sgl::kRowMapThreads) void row_map(
    const __grid_constant__ sgl::RowMapParams<kInputs + kOutputs> params, const __grid_constant__ F f) {
  constexpr uint32_t kUnroll = sgl::kRowMapUnroll<kInputs>;
  AlignedVector<T, kElements> x[kUnroll][kInputs];
  const uint32_t first = blockIdx.x * (sgl::kRowMapThreads * kUnroll) + threadIdx.x;
  const auto row_of = [&](uint32_t item) {
    return params.inverse == 0 ? item : static_cast<uint32_t>(__umul64hi(item, params.inverse));
  };
  const auto count_of = [&](uint32_t index) { return kTail && index == params.items_per_row - 1 ? params.tail : 0; };

  PDLWaitPrimary();
#pragma unroll
  for (uint32_t u = 0; u < kUnroll; ++u) {
    const uint32_t item = first + u * sgl::kRowMapThreads;
    if (item >= params.num_items) break;
    const uint32_t row = row_of(item);
    const uint32_t index = item - row * params.items_per_row;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const auto& input = params.operands[i];
      details::load_some(x[u][i], pointer::offset(input.data, row * input.stride), index, count_of(index));
    }
  }
  PDLTriggerSecondary();
#pragma unroll
  for (uint32_t u = 0; u < kUnroll; ++u) {
    const uint32_t item = first + u * sgl::kRowMapThreads;
    if (item >= params.num_items) break;
    const uint32_t row = row_of(item);
    const uint32_t index = item - row * params.items_per_row;
    AlignedVector<U, kElements> y[kOutputs];
#pragma unroll
    for (uint32_t j = 0; j < kElements; ++j) {
      float values[kInputs];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) values[i] = cast<fp32_t>(x[u][i][j]);
      const auto results = sgl::details::call<kOutputs>(f, values);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) y[i][j] = cast<U>(results.values[i]);
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const auto& output = params.operands[kInputs + i];
      details::store_some(y[i], pointer::offset(output.data, row * output.stride), index, count_of(index));
    }
  }
}

}  // namespace device
