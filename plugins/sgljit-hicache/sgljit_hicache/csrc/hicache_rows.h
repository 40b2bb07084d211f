#pragma once

#include <cstdint>

#include "hicache_params.h"

/// \file hicache_rows.h
/// \brief The offsets of the rows of a cache, and whether the rows of two caches can overlap. Host only.

namespace hicache {

inline bool is_same(const Rows& a, const Rows& b) {
  return a.row_stride == b.row_stride && a.page_size == b.page_size &&
         (a.page_size == kNoPages || a.page_stride == b.page_stride);
}

/// The offset of row `index`, in bytes from the cache's address.
inline std::int64_t offset_of(const Rows& rows, std::int64_t index) {
  if (rows.page_size == kNoPages) return index * rows.row_stride;
  return index / rows.page_size * rows.page_stride + index % rows.page_size * rows.row_stride;
}

/// Whether rows with the same layout at two addresses, `distance` bytes apart, cannot overlap for any indices: two
/// layers of a pool in which the layers of a token, or of a page, are neighbours.
inline bool are_interleaved(const Rows& rows, std::int64_t distance, std::int64_t row_bytes) {
  const auto are_apart = [&](std::int64_t stride, std::int64_t span) {
    const auto shift = (distance % stride + stride) % stride;
    return shift >= span && stride - shift >= span;
  };
  const bool is_paged = rows.page_size != kNoPages;
  if (is_paged && rows.page_stride > 0 &&
      are_apart(rows.page_stride, (rows.page_size - 1) * rows.row_stride + row_bytes))
    return true;
  const bool one_lattice = !is_paged || (rows.row_stride > 0 && rows.page_stride % rows.row_stride == 0);
  return one_lattice && rows.row_stride > 0 && are_apart(rows.row_stride, row_bytes);
}

}  // namespace hicache
