#pragma once

#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/row_map_params.h>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/vec.cuh>

/// \file row_map.cuh
/// \brief The kernel of `host::RowMap`: a functor applied to every element of rows. Compiles under NVRTC.

namespace device {

/// \brief An item of rows: vector number `index` of a row.
struct RowItem {
  uint32_t row;
  uint32_t index;
  uint32_t count;  ///< its elements; 0: all

  /// \brief Item number `item` of all rows.
  /// \tparam kTail whether the last item of a row has fewer elements.
  template <bool kTail, int kOperands>
  SGL_DEVICE static RowItem of(const sgl::RowMapParams<kOperands>& params, uint32_t item) {
    const uint32_t row = params.inverse == 0 ? item : static_cast<uint32_t>(__umul64hi(item, params.inverse));
    const uint32_t index = item - row * params.items_per_row;
    return {row, index, kTail && index == params.items_per_row - 1 ? params.tail : 0};
  }
  template <typename T, size_t N>
  SGL_DEVICE void load(AlignedVector<T, N>& vector, const sgl::RowOperand& operand) const {
    const void* begin = pointer::offset(operand.data, row * operand.stride);
    if (count == 0) return vector.load(begin, index);
#pragma unroll
    for (uint32_t j = 0; j < N; ++j) {
      if (j < count) vector[j] = load_as<T>(begin, static_cast<int64_t>(index) * N + j);
    }
  }
  template <typename T, size_t N>
  SGL_DEVICE void store(const AlignedVector<T, N>& vector, const sgl::RowOperand& operand) const {
    void* begin = pointer::offset(operand.data, row * operand.stride);
    if (count == 0) return vector.store(begin, index);
#pragma unroll
    for (uint32_t j = 0; j < N; ++j) {
      if (j < count) store_as(begin, vector[j], static_cast<int64_t>(index) * N + j);
    }
  }
};

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
  if (first >= params.num_items) return;
  RowItem places[kUnroll];  // their divisions run while the previous kernel ends
#pragma unroll
  for (uint32_t u = 0; u < kUnroll; ++u) places[u] = RowItem::of<kTail>(params, first + u * sgl::kRowMapThreads);

  PDLWaitPrimary();
#pragma unroll
  for (uint32_t u = 0; u < kUnroll; ++u) {
    if (first + u * sgl::kRowMapThreads >= params.num_items) break;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) places[u].load(x[u][i], params.operands[i]);
  }
#pragma unroll
  for (uint32_t u = 0; u < kUnroll; ++u) {
    if (first + u * sgl::kRowMapThreads >= params.num_items) break;
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
    for (int i = 0; i < kOutputs; ++i) places[u].store(y[i], params.operands[kInputs + i]);
  }
  PDLTriggerSecondary();  // not before: the next kernel's blocks would take issue slots from the functor
}

}  // namespace device
