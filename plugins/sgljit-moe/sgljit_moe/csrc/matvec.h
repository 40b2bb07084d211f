#pragma once

/// \file matvec.h
/// \brief What the host part and the kernels of `expert_matvec` share. Read by every compiler.

#include <sgl_kernel/row_program.h>

namespace moe {

/// \brief Matrices whose rows have their elements side by side: each row gives one element of the product.
struct Matvec {
  SGL_OPERANDS(x, weight, output)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(output = row.sum([](float v, float w) { return v * w; }, row[x], row[weight]));
  }
};

/// \brief The same, and a number for each element.
struct BiasedMatvec {
  SGL_OPERANDS(x, weight, bias, output)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const float more = row.value(bias);
    return sgl::store(output = row.sum([](float v, float w) { return v * w; }, row[x], row[weight]) + more);
  }
};

/// \brief The kernel of matrices whose columns have their elements side by side. Strides are in bytes.
struct Columns {
  const void* x;
  long long x_stride;
  const void* weight;
  long long expert_stride;
  long long column_stride;
  const void* ids;
  void* output;
  long long output_stride;
  long long num_columns;   ///< of a matrix, the elements of a row of x
  long long num_elements;  ///< of a column
  long long vectors;       ///< of a column
  unsigned tiles;          ///< blocks that share a product
  unsigned repeats;        ///< neighbouring products of a row of x
  const void* bias;        ///< a row for each expert, or null
  long long bias_stride;
  SGL_FIELDS(
      x, x_stride, weight, expert_stride, column_stride, ids, output, output_stride, num_columns, num_elements, vectors,
      tiles, repeats, bias, bias_stride)
};

inline constexpr unsigned kColumnsThreads = 512;
inline constexpr unsigned kTile = 8;  ///< vectors of a column, for a block

}  // namespace moe
