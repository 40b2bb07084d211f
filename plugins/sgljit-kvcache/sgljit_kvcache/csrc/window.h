#pragma once

#include <sgl_kernel/signature.h>

/// \file window.h
/// \brief What the host part and the kernels of `append_to_window` share. Read by every compiler.

namespace kvcache {

inline constexpr unsigned kWindowThreads = 256;  ///< of a block

/// \brief One of the two caches, which is contiguous, and the rows that are appended to it.
struct WindowSide {
  void* cache;
  const void* rows;
  long long rows_stride[3];  ///< of batch, head and row, in bytes
  long long row_bytes;
  unsigned slices;  ///< of a row, each a block's
  SGL_FIELDS(cache, rows, rows_stride, row_bytes, slices)
};

/// \brief Caches of keys and of values, and what is appended.
struct Window {
  WindowSide sides[2];
  long long batch;
  long long heads;
  long long window;    ///< rows of a head in the cache
  long long tokens;    ///< of them that are new, at most all
  unsigned lane_bits;  ///< a row has 2 ** lane_bits threads
  SGL_FIELDS(sides, batch, heads, window, tokens, lane_bits)
};

}  // namespace kvcache
