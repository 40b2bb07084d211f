#pragma once

#include <sgl_kernel/impl/row_map_params.h>

/// \file impl/row_reduce_params.h
/// \brief The interface of `host::RowReduce` and its kernels. Read by every compiler.

namespace sgl {

/// \brief The most values that a row is reduced to, over both passes.
inline constexpr int kMostTerms = 4;

/// \brief The parameters of the kernels of a row reduction: inputs, shared rows and outputs, in this order.
template <int kOperands>
struct RowReduceParams {
  RowOperand operands[kOperands];
  long long num_rows;
  long long columns;
  bool triggers_first;  ///< see RowLayout
  SGL_FIELDS(operands, num_rows, columns, triggers_first)
};

}  // namespace sgl
