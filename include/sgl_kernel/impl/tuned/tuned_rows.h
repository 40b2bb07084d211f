#pragma once

/// \file impl/tuned/tuned_rows.h
/// \brief A line of a chip's table of layouts. Host only.

namespace sgl {

/// \brief A chip's fastest layouts of rows of up to so many vectors, by `row_column`.
struct TunedRows {
  unsigned vectors;
  unsigned short threads_per_row[8];  ///< 32: a warp, or a part of one
  bool triggers_first[8];
};

}  // namespace sgl
