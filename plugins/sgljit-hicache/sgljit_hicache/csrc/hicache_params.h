#pragma once

/// \file hicache_params.h
/// \brief The interface between the host part and the kernels of hicache.cuh: parameters and shapes.
///
/// Compiled by the host compiler and by NVRTC: the includer must define the fixed-width integers.

#include <sgl_kernel/signature.h>

namespace hicache {

/// The place of the caches' addresses for a kernel; numbers, so that Python can name a variant, too.
inline constexpr int kOneLayer = 0;     ///< one layer: `OneLayer`
inline constexpr int kManyLayers = 1;   ///< several, in the parameters: `ManyLayers`
inline constexpr int kLayerTables = 2;  ///< several, in tables in device memory: `LayerTables`

/// The page size of a cache without pages: one page holds every index.
inline constexpr uint32_t kNoPages = 0xffffffffu;

/// The offset of row `index` of a cache, in bytes from the cache's address:
/// `index / page_size * page_stride + index % page_size * row_stride`. Kernels without pages read only `row_stride`.
struct Rows {
  int64_t row_stride;
  int64_t page_stride;
  uint32_t page_size;
  SGL_FIELDS(row_stride, page_stride, page_size)
};

/// Row `dst_indices[i]` of each destination takes the bytes of row `src_indices[i]` of its source, in each layer.
struct Transfer {
  const void* dst_indices;
  const void* src_indices;
  Rows dst;
  Rows src;
  uint32_t num_rows;
  uint32_t num_layers;
  int64_t row_bytes;
  uint32_t by_layer;  ///< 1: layer by layer; 0: all layers of a row, then the next row
  uint32_t ahead;     ///< `copy_rows`: the first `ahead` workers request rows before the previous kernel has ended
  SGL_FIELDS(dst_indices, src_indices, dst, src, num_rows, num_layers, row_bytes, by_layer, ahead)
};

// K and V; a single cache is the first.
struct OneLayer {
  static constexpr int kLayers = kOneLayer;
  uint64_t dst[2];
  uint64_t src[2];
  SGL_FIELDS(dst, src)
};
struct ManyLayers {
  static constexpr int kLayers = kManyLayers;
  static constexpr uint32_t kMaxLayers = 96;  // 3 KiB of the 4 that every driver allows
  uint64_t dst[2][kMaxLayers];
  uint64_t src[2][kMaxLayers];
  SGL_FIELDS(dst, src)
};
struct LayerTables {
  static constexpr int kLayers = kLayerTables;
  const uint64_t* dst[2];
  const uint64_t* src[2];
  SGL_FIELDS(dst, src)
};

/// A pass of `copy_rows`: a worker of `lanes` threads moves `items` pieces of rows. All loads of a pass are issued
/// before its first store: at most 8 of 16 bytes per thread, as many as its registers hold.
struct RowsShape {
  int64_t piece_bytes;  ///< bytes of a piece of a row
  int64_t pieces;       ///< pieces of a row
  int64_t loads;        ///< loads of a thread, for a piece of one cache
  int64_t items;        ///< pieces of a pass

  static constexpr RowsShape of(int64_t row_bytes, int64_t caches, int64_t lanes) {
    constexpr int64_t kWordBytes = 16;
    constexpr int64_t kMaxLoads = 8;
    const int64_t fit = lanes * kWordBytes * kMaxLoads / caches;
    const int64_t piece = row_bytes < fit ? row_bytes : fit;
    const int64_t loads = (piece / kWordBytes + lanes - 1) / lanes;
    const int64_t items = kMaxLoads / (loads * caches);
    return {piece, (row_bytes + piece - 1) / piece, loads, items < 2 ? items : 2};
  }
};

/// A step of `copy_bulk`: a warp fills a slot of shared memory with up to 32 rows, or a piece of one.
struct BulkShape {
  int64_t piece_bytes;  ///< bytes of a piece of a row
  int64_t pieces;       ///< pieces of a row
  int64_t rows;         ///< rows of a slot
  int64_t slot_bytes;

  static constexpr BulkShape of(int64_t row_bytes, int64_t caches, int64_t stage_bytes) {
    const int64_t fit = stage_bytes / caches;
    const int64_t piece = row_bytes <= fit ? row_bytes : fit / 128 * 128;
    const int64_t pieces = (row_bytes + piece - 1) / piece;
    const int64_t rows = pieces > 1 ? 1 : fit / row_bytes < 32 ? fit / row_bytes : 32;
    return {piece, pieces, rows, (rows * caches * piece + 127) / 128 * 128};
  }
  /// Shared memory of a block: the slots, and for each a barrier and, for each row, two addresses and a length.
  constexpr int64_t smem_bytes(int64_t warps, int64_t stages) const {
    return warps * stages * (slot_bytes + 8 + 32 * (2 * 8 + 4));
  }
};

/// The parameters of the kernels that check indices. Indices at or above `*_rows` are out of range.
struct Check {
  const void* dst_indices;
  const void* src_indices;
  int64_t dst_rows;
  int64_t src_rows;
  uint32_t num_rows;
  uint32_t mask;    ///< the mask of `table`, whose size is a power of two
  uint64_t* table;  ///< indices of the destination, plus one; zero for an empty entry
  uint32_t* is_bad;
  SGL_FIELDS(dst_indices, src_indices, dst_rows, src_rows, num_rows, mask, table, is_bad)
};

}  // namespace hicache
