#pragma once

#include <sgl_kernel/impl/row_map_params.h>

#include <cstdint>

/// \file cpu/row_job.h
/// \brief What a row operation passes to its loop for the CPU.

namespace host::cpu {

/// \brief Rows on the CPU: inputs, shared rows and outputs, in this order.
template <int kOperands>
struct RowJob {
  sgl::RowOperand operands[kOperands];
  std::int64_t num_rows;
  std::int64_t columns;
  SGL_FIELDS(operands, num_rows, columns)
};

}  // namespace host::cpu
