#pragma once

#include <sgl_kernel/device.cuh>
#include <sgl_kernel/ptx.cuh>
#include <sgl_kernel/vec.cuh>

#include "hicache_params.h"

/// \file hicache.cuh
/// \brief The kernel that moves rows of caches by index. Compiles under NVRTC.
///
/// K and V of a row move together. Indices are trusted. An address may be of device memory or of pinned host memory.

namespace hicache {

template <bool kPaged, typename Index>
SGL_DEVICE int64_t row_offset(const RowStrides& rows, Index index) {
  if constexpr (!kPaged) return static_cast<int64_t>(index) * rows.row_stride;
  const auto row = static_cast<uint32_t>(index);  // the host part ensures that it fits
  return static_cast<int64_t>(row / rows.page_size) * rows.page_stride +
         static_cast<int64_t>(row % rows.page_size) * rows.row_stride;
}

/// Piece `item % kPieces` of a row of a layer; `item / kPieces` counts rows by layer or by position, depending on the
/// transfer. A position is that of a row in the indices.
struct Item {
  uint32_t position;
  uint32_t layer;
  uint32_t piece;
};
template <int kPieces, bool kIsOne>
SGL_DEVICE Item item_of(uint32_t item, const Transfer& transfer, uint32_t num_positions) {
  const uint32_t row = item / kPieces;
  const uint32_t piece = item % kPieces;
  if constexpr (kIsOne) return {row, 0, piece};
  const uint32_t num_inner = transfer.by_layer ? num_positions : transfer.num_layers;
  const uint32_t outer = row / num_inner;
  const uint32_t inner = row - outer * num_inner;
  return transfer.by_layer ? Item{inner, outer, piece} : Item{outer, inner, piece};
}

/// The rows of a block in one round, in which every block takes a chunk: groups of rows that follow each other in the
/// indices, dealt to the blocks in turn.
struct Chunk {
  uint32_t begin;  ///< of the round
  uint32_t group_rows;
  uint32_t count;

  SGL_DEVICE static Chunk of(const Transfer& transfer, uint32_t begin) {
    const uint32_t left = transfer.num_rows - begin;
    const uint32_t most = gridDim.x * transfer.chunk_rows;
    const uint32_t rows = left < most ? left : most;
    const uint32_t turn_rows = gridDim.x * transfer.group_rows;
    const uint32_t turns = rows / turn_rows;
    const uint32_t before = turns * turn_rows + blockIdx.x * transfer.group_rows;  // the group of the last turn
    const uint32_t last = rows <= before                        ? 0
                          : rows - before < transfer.group_rows ? rows - before
                                                                : transfer.group_rows;
    return {begin, transfer.group_rows, turns * transfer.group_rows + last};
  }
  SGL_DEVICE uint32_t position(uint32_t i) const {
    return begin + (i / group_rows * gridDim.x + blockIdx.x) * group_rows + i % group_rows;
  }
};

/// \brief Sorts the positions of a chunk by their key: `order` gets them in its lower halves. All threads of the block
/// call it. A bitonic sort: 4096 rows take some microseconds. Keys of which most ascend stay as they are: rows in
/// pages, or in order.
template <typename Index>
SGL_DEVICE void sort_positions(uint64_t* order, const Index* keys, const Chunk& chunk) {
  const uint32_t count = chunk.count;
  uint32_t size = 2;
  while (size < count) size *= 2;
  uint32_t descents = 0;
  __syncthreads();  // a chunk before this one may still be in use
  for (uint32_t first = 0; first < size; first += blockDim.x) {
    const uint32_t i = first + threadIdx.x;
    // Half of a larger index is no wrong order: any order moves the same rows.
    const uint32_t position = i < count ? chunk.position(i) : 0xffffffffu;
    const auto key = i < count ? static_cast<uint32_t>(keys[position]) : 0xffffffffu;
    if (i < size) order[i] = static_cast<uint64_t>(key) << 32 | position;
    descents += __syncthreads_count(i + 1 < count && static_cast<uint32_t>(keys[chunk.position(i + 1)]) < key);
  }
  if (descents * 32 <= count) return;  // as in pages of 16 rows
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const uint32_t low = 2 * i - i % distance;
        const uint64_t a = order[low];
        const uint64_t b = order[low + distance];
        if ((a > b) != ((low & run) == 0)) continue;
        order[low] = b;
        order[low + distance] = a;
      }
    }
  }
  __syncthreads();
}

/// Words of 4 bytes and more go past the caches.
template <typename Word>
SGL_DEVICE Word load(const Word* from) {
  if constexpr (sizeof(Word) >= 4) return device::ptx::load_streaming(from);
  else return *from;
}
template <typename Word>
SGL_DEVICE void store(Word* to, const Word& word) {
  if constexpr (sizeof(Word) >= 4) device::ptx::store_no_allocate(to, word);
  else *to = word;
}

/// \brief Rows through registers: `kLanes` threads, a power of two up to 32, move a row or a piece of one, in words of
/// `kWordBytes`: 1, 2, 4, 8 or 16, which must divide every address and stride.
///
/// Any grid of blocks with a multiple of 32 threads, up to 1024. A pass issues all its loads, then fetches the next
/// pass's indices while these are in flight, then stores. Rows that are not sorted are dealt to the workers of all
/// blocks in turn. Sorted rows are dealt to the blocks in chunks, with dynamic shared memory of 8 bytes for each row of
/// a chunk, rounded up to a power of two. All blocks then go through the memory from its beginning to its end at about
/// one pace, so that translations of addresses are near each other as if all rows were sorted. Rows that come in order
/// do so if a chunk has several groups; with one, each block has a part of the memory to itself.
template <int kRowBytes, int kWordBytes, int kCaches, int kLanes, bool kPaged, typename Index, typename Table>
__global__ void __launch_bounds__(1024, 1)
    copy_rows(const __grid_constant__ Transfer transfer, const __grid_constant__ Table table) {
  using Word = device::Word<kWordBytes>;
  constexpr auto kRowWords = static_cast<uint32_t>(kRowBytes / kWordBytes);
  constexpr auto kShape = RowsShape::of(kRowWords, kCaches, kLanes, kWordBytes);
  constexpr auto kPieces = static_cast<int>(kShape.pieces);
  constexpr auto kPieceWords = static_cast<uint32_t>(kShape.piece_words);

  extern __shared__ uint64_t order[];
  const bool is_sorted = transfer.chunk_rows > 0;
  const auto dst_indices = static_cast<const Index*>(transfer.dst_indices);
  const auto src_indices = static_cast<const Index*>(transfer.src_indices);
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t block_workers = blockDim.x / kLanes;
  const uint32_t worker = threadIdx.x / kLanes + (is_sorted ? 0 : blockIdx.x * block_workers);
  const uint32_t num_workers = is_sorted ? block_workers : gridDim.x * block_workers;

  if (!is_sorted) {  // the previous kernel, which may write the indices, still runs
    const auto item = item_of<kPieces, Table::kIsOne>(worker, transfer, transfer.num_rows);
    if (item.position < transfer.num_rows) {
      device::ptx::prefetch(&src_indices[item.position]);
      device::ptx::prefetch(&dst_indices[item.position]);
    }
  }
  device::PDLWaitPrimary();

  for (uint32_t begin = 0; begin < transfer.num_rows; begin += gridDim.x * transfer.chunk_rows) {
    uint32_t count = transfer.num_rows;
    if (is_sorted) {
      const auto chunk = Chunk::of(transfer, begin);
      sort_positions(order, static_cast<const Index*>(transfer.sort_keys), chunk);
      count = chunk.count;
    }
    const uint32_t num_items = count * transfer.num_layers * kPieces;

    Item items[kShape.items];
    Index from[kShape.items];
    Index to[kShape.items];
    const auto fetch = [&](uint32_t first) {
#pragma unroll
      for (int r = 0; r < kShape.items; ++r) {
        const uint32_t item = first + r * num_workers;
        if (item >= num_items) continue;
        items[r] = item_of<kPieces, Table::kIsOne>(item, transfer, count);
        if (is_sorted) items[r].position = static_cast<uint32_t>(order[items[r].position]);
        from[r] = src_indices[items[r].position];
        to[r] = dst_indices[items[r].position];
      }
    };
    fetch(worker);
    for (uint32_t first = worker; first < num_items;) {
      Word data[kShape.items][kCaches][kShape.loads];
      Word* dst[kShape.items][kCaches];
      bool in_bounds[kShape.items][kShape.loads];
#pragma unroll
      for (int r = 0; r < kShape.items; ++r) {
        const uint32_t piece_begin = items[r].piece * kPieceWords + lane;
        const bool is_item = first + r * num_workers < num_items;
#pragma unroll
        for (int i = 0; i < kShape.loads; ++i) {
          in_bounds[r][i] = is_item && (kRowWords % kPieceWords == 0 || piece_begin + i * kLanes < kRowWords);
        }
        if (!is_item) continue;
        const auto src_offset = row_offset<kPaged>(transfer.src, from[r]);
        const auto dst_offset = row_offset<kPaged>(transfer.dst, to[r]);
#pragma unroll
        for (int c = 0; c < kCaches; ++c) {
          const auto src = reinterpret_cast<const Word*>(table.src[c][items[r].layer] + src_offset) + piece_begin;
          dst[r][c] = reinterpret_cast<Word*>(table.dst[c][items[r].layer] + dst_offset) + piece_begin;
#pragma unroll
          for (int i = 0; i < kShape.loads; ++i) {
            if (in_bounds[r][i]) data[r][c][i] = load(src + i * kLanes);
          }
        }
      }
      first += num_workers * kShape.items;
      if (first < num_items) {
        fetch(first);
      } else {
        device::PDLTriggerSecondary();
      }
#pragma unroll
      for (int r = 0; r < kShape.items; ++r) {
#pragma unroll
        for (int c = 0; c < kCaches; ++c) {
#pragma unroll
          for (int i = 0; i < kShape.loads; ++i) {
            if (in_bounds[r][i]) store(dst[r][c] + i * kLanes, data[r][c][i]);
          }
        }
      }
    }
    if (!is_sorted) break;
  }
}

}  // namespace hicache
