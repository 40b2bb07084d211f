#pragma once

#include <sgl_kernel/impl/row_map_params.h>

#include <cstdint>

/// \file cpu/row_job.h
/// \brief The arguments of a row operation's loop for the CPU.

namespace host::cpu {

/// \brief The most elements of a piece of a row; the next piece is asked for when one begins.
inline constexpr std::int64_t kPiece = 1 << 9;

/// \brief Rows on the CPU: inputs, shared rows and outputs, in this order.
template <int kOperands>
struct RowJob {
  sgl::RowOperand operands[kOperands];
  std::int64_t num_rows;
  std::int64_t columns;
  SGL_FIELDS(operands, num_rows, columns)
};

}  // namespace host::cpu
