#pragma once

/// \file impl/row_map_params.h
/// \brief The interface of `host::RowMap` and its kernel. Read by every compiler.

#include <sgl_kernel/signature.h>

namespace sgl {

/// \brief An operand: rows of elements without gaps. `stride` is from row to row, in bytes; 0 if all rows are one.
struct RowOperand {
  void* data;
  long long stride;
  SGL_FIELDS(data, stride)
};

/// \brief The parameters of `device::row_map`: `kOperands` inputs and outputs, in this order.
///
/// An *item* is a vector of one row. They are counted through all rows, in 32 bits.
template <int kOperands>
struct RowMapParams {
  RowOperand operands[kOperands];
  unsigned num_items;
  unsigned items_per_row;
  unsigned long long inverse;  ///< 2^64 / items_per_row, rounded up, to divide by multiplication; 0 for one item a row
  unsigned tail;               ///< elements of a row's last item; 0: it is whole
  SGL_FIELDS(operands, num_items, items_per_row, inverse, tail)
};

/// \brief Threads of a block of `device::row_map`, and the items of each: enough loads in flight to hide their latency.
inline constexpr unsigned kRowMapThreads = 128;
template <int kInputs>
inline constexpr unsigned kRowMapUnroll = kInputs == 1 ? 2 : 1;

}  // namespace sgl
