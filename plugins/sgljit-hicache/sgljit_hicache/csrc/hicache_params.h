#pragma once

/// \file hicache_params.h
/// \brief The interface between the host part and the kernels of hicache.cuh: parameters and shapes.
///
/// Compiled by the host compiler and by NVRTC: the includer must define the fixed-width integers.

#include <sgl_kernel/signature.h>

namespace hicache {

/// The page size of a cache without pages: one page holds every index.
inline constexpr uint32_t kNoPages = 0xffffffffu;

/// The offset of row `index` of a cache, in bytes from the cache's address:
/// `index / page_size * page_stride + index % page_size * row_stride`. Kernels without pages read only `row_stride`.
struct RowStrides {
  int64_t row_stride;
  int64_t page_stride;
  uint32_t page_size;

  bool operator==(const RowStrides&) const = default;
  SGL_FIELDS(row_stride, page_stride, page_size)
};

/// Row `dst_indices[i]` of each destination takes the bytes of row `src_indices[i]` of its source, in each layer.
struct Transfer {
  const void* dst_indices;
  const void* src_indices;
  RowStrides dst;
  RowStrides src;
  uint32_t num_rows;
  uint32_t num_layers;
  uint32_t by_layer;      ///< 1: layer by layer; 0: all layers of a row, then the next row
  uint32_t chunk_rows;    ///< a block sorts so many rows at a time, up to `kMaxChunkRows`; 0: it sorts none
  uint32_t group_rows;    ///< of a chunk, which follow each other in the indices; divides chunk_rows
  const void* sort_keys;  ///< what it sorts them by: `dst_indices` or `src_indices`
  SGL_FIELDS(dst_indices, src_indices, dst, src, num_rows, num_layers, by_layer, chunk_rows, group_rows, sort_keys)
};

/// 32 KiB of shared memory.
inline constexpr uint32_t kMaxChunkRows = 4096;

// Addresses of K and V, by which a kernel is named; a single cache is the first.
/// The addresses of one layer or several, in the parameters.
template <int kLayers>
struct Layers {
  static constexpr bool kIsOne = kLayers == 1;
  uint64_t dst[2][kLayers];
  uint64_t src[2][kLayers];
  SGL_FIELDS(dst, src)
};
inline constexpr int kMaxLayers = 96;  // 3 KiB of the 4 that every driver allows
/// The addresses of several layers, in tables in device memory.
struct LayerTables {
  static constexpr bool kIsOne = false;
  const uint64_t* dst[2];
  const uint64_t* src[2];
  SGL_FIELDS(dst, src)
};

/// A pass of `copy_rows`: a worker of `lanes` threads moves `items` pieces of rows. All loads of a pass are issued
/// before its first store: at most 32 registers of each thread, which are 8 words of 16 bytes.
struct RowsShape {
  int64_t piece_words;  ///< words of a piece of a row
  int64_t pieces;       ///< pieces of a row
  int64_t loads;        ///< loads of a thread, for a piece of one cache
  int64_t items;        ///< pieces of a pass

  static constexpr RowsShape of(int64_t row_words, int64_t caches, int64_t lanes, int64_t word_bytes) {
    const int64_t max_loads = word_bytes < 4 ? 32 : 128 / word_bytes;
    const int64_t row_loads = (row_words + lanes - 1) / lanes;
    const int64_t pieces = (row_loads * caches + max_loads - 1) / max_loads;
    const int64_t loads = (row_loads + pieces - 1) / pieces;
    const int64_t items = max_loads / (loads * caches);
    return {loads * lanes, (row_loads + loads - 1) / loads, loads, items < 2 ? items : 2};
  }
};

}  // namespace hicache
