#pragma once

#include <sgl_kernel/device.cuh>
#include <sgl_kernel/ptx.cuh>

#include "hicache_params.h"

/// \file hicache.cuh
/// \brief Kernels that move rows of caches by index, and that check indices. Compiles under NVRTC.
///
/// | kernel      | rows                                   | uses                                                |
/// |-------------|----------------------------------------|-----------------------------------------------------|
/// | `copy_rows` | multiples of 16 bytes, 16-byte aligned | registers: whole multiprocessors, the least latency |
/// | `copy_bulk` | the same                               | shared memory and a few warps; Hopper and later     |
/// | `copy_any`  | all                                    |                                                     |
///
/// K and V of a row move together. Indices are trusted. An address may be of device memory or of pinned host memory.

namespace hicache {

namespace details {

template <int kLayers>
struct TableOf {
  using type = OneLayer;
};
template <>
struct TableOf<kManyLayers> {
  using type = ManyLayers;
};
template <>
struct TableOf<kLayerTables> {
  using type = LayerTables;
};

SGL_DEVICE char* destination(const OneLayer& table, int cache, uint32_t) {
  return reinterpret_cast<char*>(table.dst[cache]);
}
SGL_DEVICE const char* source(const OneLayer& table, int cache, uint32_t) {
  return reinterpret_cast<const char*>(table.src[cache]);
}
template <typename Table>
SGL_DEVICE char* destination(const Table& table, int cache, uint32_t layer) {
  return reinterpret_cast<char*>(table.dst[cache][layer]);
}
template <typename Table>
SGL_DEVICE const char* source(const Table& table, int cache, uint32_t layer) {
  return reinterpret_cast<const char*>(table.src[cache][layer]);
}

template <bool kPaged, typename Index>
SGL_DEVICE int64_t row_offset(const Rows& rows, Index index) {
  if constexpr (!kPaged) return static_cast<int64_t>(index) * rows.row_stride;
  const auto row = static_cast<uint32_t>(index);  // the host part ensures that it fits
  return static_cast<int64_t>(row / rows.page_size) * rows.page_stride +
         static_cast<int64_t>(row % rows.page_size) * rows.row_stride;
}

/// Piece `item % kPieces` of a row of a layer; `item / kPieces` counts rows by layer or by position, depending on the
/// transfer. A position is that of a row in the indices, or of a group of rows.
struct Item {
  uint32_t position;
  uint32_t layer;
  uint32_t piece;
};
template <int kPieces, int kLayers>
SGL_DEVICE Item item_of(uint32_t item, const Transfer& transfer, uint32_t num_positions) {
  const uint32_t row = item / kPieces;
  const uint32_t piece = item % kPieces;
  if constexpr (kLayers == kOneLayer) return {row, 0, piece};
  const uint32_t num_inner = transfer.by_layer ? num_positions : transfer.num_layers;
  const uint32_t outer = row / num_inner;
  const uint32_t inner = row - outer * num_inner;
  return transfer.by_layer ? Item{inner, outer, piece} : Item{outer, inner, piece};
}

}  // namespace details

template <int kLayers>
using Table = typename details::TableOf<kLayers>::type;

/// \brief Rows through registers: `kLanes` threads, a power of two up to 32, move a row or a piece of one.
///
/// Any grid of blocks with a multiple of 32 threads, up to 1024. A pass issues all its loads, then fetches the next
/// pass's indices while these are in flight, then stores. After another kernel the first `ahead` workers prefetch their
/// rows into L2 before it has ended; not rows in host memory, whose changes L2 may miss.
template <int kRowBytes, int kCaches, int kLanes, bool kPaged, bool kUsePDL, typename Index, int kLayers>
__global__ void __launch_bounds__(1024, 1)
    copy_rows(const __grid_constant__ Transfer transfer, const __grid_constant__ Table<kLayers> table) {
  using device::ptx::load_streaming, device::ptx::store_no_allocate;
  constexpr auto kShape = RowsShape::of(kRowBytes, kCaches, kLanes);
  constexpr auto kPieces = static_cast<int>(kShape.pieces);
  constexpr auto kItems = static_cast<int>(kShape.items);
  constexpr auto kLoads = static_cast<int>(kShape.loads);
  constexpr auto kPieceWords = static_cast<uint32_t>(kShape.piece_bytes / sizeof(uint4));
  constexpr auto kRowWords = static_cast<uint32_t>(kRowBytes / sizeof(uint4));
  constexpr int64_t kLineBytes = 128;

  const auto dst_indices = static_cast<const Index*>(transfer.dst_indices);
  const auto src_indices = static_cast<const Index*>(transfer.src_indices);
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t worker = blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  const uint32_t num_workers = gridDim.x * (blockDim.x / kLanes);
  const uint32_t num_items = transfer.num_rows * transfer.num_layers * kPieces;

  details::Item items[kItems];
  Index from[kItems];
  Index to[kItems];
  const auto fetch = [&](uint32_t first) {
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
      const uint32_t item = first + r * num_workers;
      if (item >= num_items) continue;
      items[r] = details::item_of<kPieces, kLayers>(item, transfer, transfer.num_rows);
      from[r] = src_indices[items[r].position];
      to[r] = dst_indices[items[r].position];
    }
  };

  if (kUsePDL && worker < num_items) {  // the previous kernel, which may write them, still runs
    const auto item = details::item_of<kPieces, kLayers>(worker, transfer, transfer.num_rows);
    device::ptx::prefetch(&src_indices[item.position]);
    device::ptx::prefetch(&dst_indices[item.position]);
    if (worker < transfer.ahead) {
      // Rows, too. An index that is not final names a wrong row, which costs a read. Volatile: it is read again below.
      const Index index = *static_cast<const volatile Index*>(&src_indices[item.position]);
      const auto begin = details::row_offset<kPaged>(transfer.src, index) + item.piece * kShape.piece_bytes;
#pragma unroll
      for (int c = 0; c < kCaches; ++c) {
        for (int64_t at = lane * kLineBytes; at < kShape.piece_bytes; at += kLanes * kLineBytes)
          device::ptx::prefetch(details::source(table, c, item.layer) + begin + at);
      }
    }
  }
  device::PDLWaitPrimary();
  fetch(worker);
  for (uint32_t first = worker; first < num_items;) {
    uint4 data[kItems][kCaches][kLoads];
    uint4* dst[kItems][kCaches];
    bool is_there[kItems][kLoads];
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
      const uint32_t begin = items[r].piece * kPieceWords + lane;
      const bool is_item = first + r * num_workers < num_items;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const uint32_t word = i * kLanes + lane;
        is_there[r][i] = is_item && (kPieceWords % kLanes == 0 || word < kPieceWords) &&
                         (kRowWords % kPieceWords == 0 || begin + i * kLanes < kRowWords);
      }
      if (!is_item) continue;
      const auto src_offset = details::row_offset<kPaged>(transfer.src, from[r]);
      const auto dst_offset = details::row_offset<kPaged>(transfer.dst, to[r]);
#pragma unroll
      for (int c = 0; c < kCaches; ++c) {
        const auto src = reinterpret_cast<const uint4*>(details::source(table, c, items[r].layer) + src_offset) + begin;
        dst[r][c] = reinterpret_cast<uint4*>(details::destination(table, c, items[r].layer) + dst_offset) + begin;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          if (is_there[r][i]) data[r][c][i] = load_streaming(src + i * kLanes);
        }
      }
    }
    first += num_workers * kItems;
    if (first < num_items) {
      fetch(first);
    } else {
      device::PDLTriggerSecondary();
    }
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
#pragma unroll
      for (int c = 0; c < kCaches; ++c) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          if (is_there[r][i]) store_no_allocate(dst[r][c] + i * kLanes, data[r][c][i]);
        }
      }
    }
  }
}

namespace details {

template <int kBytes>
struct Word {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<1> {
  using type = unsigned char;
};

}  // namespace details

/// \brief Rows of any size, in words of `kWordBytes`: 1, 2, 4, 8 or 16, which must divide every address and stride and
/// the row's size. A warp moves a row. Any grid of blocks with a multiple of 32 threads.
template <int kWordBytes, int kCaches, bool kPaged, bool kUsePDL, typename Index, int kLayers>
__global__ void __launch_bounds__(1024, 1)
    copy_any(const __grid_constant__ Transfer transfer, const __grid_constant__ Table<kLayers> table) {
  using Word = typename details::Word<kWordBytes>::type;
  constexpr int kLoads = 8;

  const auto dst_indices = static_cast<const Index*>(transfer.dst_indices);
  const auto src_indices = static_cast<const Index*>(transfer.src_indices);
  const uint32_t lane = threadIdx.x % device::kWarpThreads;
  const uint32_t warp = blockIdx.x * (blockDim.x / device::kWarpThreads) + threadIdx.x / device::kWarpThreads;
  const uint32_t num_warps = gridDim.x * (blockDim.x / device::kWarpThreads);
  const uint32_t num_items = transfer.num_rows * transfer.num_layers;
  const int64_t num_words = transfer.row_bytes / kWordBytes;

  device::PDLWaitPrimary();
  for (uint32_t i = warp; i < num_items; i += num_warps) {
    const auto item = details::item_of<1, kLayers>(i, transfer, transfer.num_rows);
    const auto src_offset = details::row_offset<kPaged>(transfer.src, src_indices[item.position]);
    const auto dst_offset = details::row_offset<kPaged>(transfer.dst, dst_indices[item.position]);
#pragma unroll
    for (int c = 0; c < kCaches; ++c) {
      const auto src = reinterpret_cast<const Word*>(details::source(table, c, item.layer) + src_offset);
      const auto dst = reinterpret_cast<Word*>(details::destination(table, c, item.layer) + dst_offset);
      for (int64_t first = lane; first < num_words; first += kLoads * device::kWarpThreads) {
        Word data[kLoads];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const auto word = first + j * device::kWarpThreads;
          if (word < num_words) data[j] = src[word];
        }
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const auto word = first + j * device::kWarpThreads;
          if (word < num_words) dst[word] = data[j];
        }
      }
    }
  }
  device::PDLTriggerSecondary();
}

#if SGL_ARCH_HOPPER_OR_GREATER

/// \brief Rows through shared memory, moved by the copy engine: a warp only issues copies, so a few warps keep more
/// bytes in flight than the registers of a multiprocessor hold.
///
/// Blocks of `kWarps` warps, any grid, `BulkShape::smem_bytes` of dynamic shared memory. Each warp has a ring of
/// `kStages` slots. A slot holds the same positions of K and of V, a lane for each. One copy moves rows that are
/// neighbours in memory, and so in the slot: neighbours are found for loads and for stores separately.
template <
    int kRowBytes, int kCaches, int kWarps, int kStages, int kStageBytes, bool kPaged, bool kUsePDL, typename Index,
    int kLayers>
__global__ void __launch_bounds__(kWarps * 32, 1)
    copy_bulk(const __grid_constant__ Transfer transfer, const __grid_constant__ Table<kLayers> table) {
  namespace ptx = device::ptx;
  constexpr auto kShape = BulkShape::of(kRowBytes, kCaches, kStageBytes);
  constexpr auto kRows = static_cast<uint32_t>(kShape.rows);
  constexpr auto kPieces = static_cast<int>(kShape.pieces);
  constexpr auto kPieceBytes = static_cast<uint32_t>(kShape.piece_bytes);
  constexpr auto kLastBytes = static_cast<uint32_t>(kRowBytes - (kPieces - 1) * kPieceBytes);

  // The stores of each lane of each slot, once its row has arrived. A lane reads only its own entries.
  struct Stores {
    uint64_t address[2][device::kWarpThreads];
    uint32_t bytes[device::kWarpThreads];  // of the run that begins here; 0 inside a run
  };
  extern __shared__ __align__(128) unsigned char smem[];
  const uint32_t lane = threadIdx.x % device::kWarpThreads;
  const uint32_t warp = threadIdx.x / device::kWarpThreads;
  unsigned char* const slots = smem + warp * kStages * kShape.slot_bytes;
  unsigned char* const after_slots = smem + kWarps * kStages * kShape.slot_bytes;
  Stores* const stores = reinterpret_cast<Stores*>(after_slots) + warp * kStages;
  uint64_t* const is_full =
      reinterpret_cast<uint64_t*>(after_slots + kWarps * kStages * sizeof(Stores)) + warp * kStages;

  const auto dst_indices = static_cast<const Index*>(transfer.dst_indices);
  const auto src_indices = static_cast<const Index*>(transfer.src_indices);
  const uint32_t num_groups = device::div_ceil(transfer.num_rows, kRows);
  const uint32_t num_chunks = num_groups * transfer.num_layers * kPieces;
  const uint32_t stride = gridDim.x * kWarps;
  const uint32_t first_chunk = warp * gridDim.x + blockIdx.x;  // neighbours go to different multiprocessors
  const uint32_t num_mine = first_chunk < num_chunks ? (num_chunks - first_chunk - 1) / stride + 1 : 0;

  // Chunks are taken in order. The indices of a batch of chunks are fetched at once, a lane for each row, while the
  // previous batch is in flight: a chunk is too short to wait for its own indices.
  struct Batch {
    Index from;
    Index to;
    details::Item item;
  };
  constexpr uint32_t kBatchChunks = device::kWarpThreads / kRows;
  const auto position_of = [&](const details::Item& item) { return item.position * kRows + lane % kRows; };
  const auto item_of_lane = [&](uint32_t first) {  // after the last one if the lane has no work
    const uint32_t k = first + lane / kRows;
    if (k >= num_mine || lane >= kBatchChunks * kRows) return details::Item{num_groups, 0, 0};
    return details::item_of<kPieces, kLayers>(first_chunk + k * stride, transfer, num_groups);
  };
  const auto fetch = [&](uint32_t first) {
    Batch batch = {0, 0, item_of_lane(first)};
    const uint32_t position = position_of(batch.item);
    if (position >= transfer.num_rows) return batch;
    batch.from = src_indices[position];
    batch.to = dst_indices[position];
    return batch;
  };
  Batch batch;
  Batch next_batch;
  // Start the loads of chunk k, into a slot that is no longer read.
  const auto issue = [&](uint32_t k) {
    const uint32_t chunk = k % kBatchChunks;
    if (chunk == 0) {
      batch = next_batch;
      next_batch = fetch(k + kBatchChunks);
    }
    const auto of_lane = [&](auto value, uint32_t i) { return __shfl_sync(device::kFullMask, value, i); };
    const Index from = of_lane(batch.from, chunk * kRows + lane);
    const Index to = of_lane(batch.to, chunk * kRows + lane);
    details::Item item = {of_lane(batch.item.position, chunk * kRows), 0, 0};
    if constexpr (kLayers != kOneLayer) item.layer = of_lane(batch.item.layer, chunk * kRows);
    if constexpr (kPieces > 1) item.piece = of_lane(batch.item.piece, chunk * kRows);
    const uint32_t slot = k % kStages;
    const uint32_t left = transfer.num_rows - item.position * kRows;
    const uint32_t count = left < kRows ? left : kRows;
    const uint32_t bytes = kPieces > 1 && item.piece == kPieces - 1 ? kLastBytes : kPieceBytes;
    const bool is_row = lane < count;
    int64_t src = 0;
    int64_t dst = 0;
    if (is_row) {
      src = details::row_offset<kPaged>(transfer.src, from) + static_cast<int64_t>(item.piece) * kPieceBytes;
      dst = details::row_offset<kPaged>(transfer.dst, to) + static_cast<int64_t>(item.piece) * kPieceBytes;
    }
    // A run begins at every row that does not directly follow the previous one; it ends where the next run begins.
    uint32_t load_bytes = bytes;
    uint32_t store_bytes = bytes;
    if constexpr (kRows > 1) {
      const auto before_src = __shfl_up_sync(device::kFullMask, src, 1);
      const auto before_dst = __shfl_up_sync(device::kFullMask, dst, 1);
      const bool loads = lane == 0 || lane >= count || src != before_src + kRowBytes;
      const bool begins = lane == 0 || lane >= count || dst != before_dst + kRowBytes;
      const uint32_t later = lane == 31 ? 0 : device::kFullMask << (lane + 1);
      const uint32_t next_load = __ffs(__ballot_sync(device::kFullMask, loads) & later);
      const uint32_t next_store = __ffs(__ballot_sync(device::kFullMask, begins) & later);
      load_bytes = loads ? ((next_load == 0 ? 32 : next_load - 1) - lane) * kRowBytes : 0;
      store_bytes = begins ? ((next_store == 0 ? 32 : next_store - 1) - lane) * kRowBytes : 0;
    }
    if (lane == 0) ptx::mbarrier_arrive_expect(&is_full[slot], count * kCaches * bytes);
    __syncwarp();
    stores[slot].bytes[lane] = is_row ? store_bytes : 0;
    if (!is_row) return;
    unsigned char* const mine = slots + slot * kShape.slot_bytes + lane * kPieceBytes;
#pragma unroll
    for (int c = 0; c < kCaches; ++c) {
      stores[slot].address[c][lane] = reinterpret_cast<uint64_t>(details::destination(table, c, item.layer) + dst);
      if (load_bytes > 0) {
        ptx::bulk_load(
            mine + c * kRows * kPieceBytes, details::source(table, c, item.layer) + src, load_bytes, &is_full[slot]);
      }
    }
  };

  if (lane == 0) {
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(&is_full[i], 1);
    ptx::fence_barrier_init();
  }
  __syncwarp();

  if (const uint32_t position = position_of(item_of_lane(0)); kUsePDL && position < transfer.num_rows) {
    ptx::prefetch(&src_indices[position]);
    ptx::prefetch(&dst_indices[position]);
  }
  device::PDLWaitPrimary();
  next_batch = fetch(0);
#pragma unroll 1
  for (uint32_t k = 0; k < kStages && k < num_mine; ++k) issue(k);
  if (num_mine <= kStages) device::PDLTriggerSecondary();
#pragma unroll 1
  for (uint32_t k = 0; k < num_mine; ++k) {
    const uint32_t slot = k % kStages;
    ptx::mbarrier_wait(&is_full[slot], k / kStages % 2);
    const uint32_t bytes = stores[slot].bytes[lane];
    if (bytes > 0) {
      const unsigned char* const mine = slots + slot * kShape.slot_bytes + lane * kPieceBytes;
#pragma unroll
      for (int c = 0; c < kCaches; ++c) {
        ptx::bulk_store(reinterpret_cast<void*>(stores[slot].address[c][lane]), mine + c * kRows * kPieceBytes, bytes);
      }
    }
    ptx::bulk_commit();
    // Refill the previous slot as soon as its stores have read it; the stores of this slot may still run.
    const uint32_t next = k + kStages - 1;
    if (k > 0 && next < num_mine) {
      ptx::bulk_wait_read<1>();
      __syncwarp();
      issue(next);
      if (next + 1 == num_mine) device::PDLTriggerSecondary();
    }
  }
  ptx::bulk_wait<0>();
}

#endif  // Hopper

// ---- checking indices ----

/// \brief Finds indices out of range, and repeated ones of the destination. A thread for each position.
template <typename Index>
__global__ void check_indices(const __grid_constant__ Check check) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= check.num_rows) return;
  const int64_t to = static_cast<const Index*>(check.dst_indices)[i];
  const int64_t from = static_cast<const Index*>(check.src_indices)[i];
  bool is_bad = to < 0 || to >= check.dst_rows || from < 0 || from >= check.src_rows;
  const auto key = static_cast<unsigned long long>(to) + 1;
  for (uint64_t at = key * 0x9e3779b97f4a7c15u >> 32; !is_bad; ++at) {
    const auto old = atomicCAS(reinterpret_cast<unsigned long long*>(&check.table[at & check.mask]), 0ull, key);
    if (old == 0) break;
    is_bad = old == key;
  }
  if (is_bad) *check.is_bad = 1;
}

/// \brief Finds rows that one position reads and another one writes, for source and destination in one cache. Runs
/// after `check_indices` has filled the table. A thread for each position.
template <typename Index>
__global__ void check_reads(const __grid_constant__ Check check) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= check.num_rows) return;
  const int64_t to = static_cast<const Index*>(check.dst_indices)[i];
  const int64_t from = static_cast<const Index*>(check.src_indices)[i];
  if (from == to) return;
  const auto key = static_cast<uint64_t>(from) + 1;
  for (uint64_t at = key * 0x9e3779b97f4a7c15u >> 32; check.table[at & check.mask] != 0; ++at) {
    if (check.table[at & check.mask] == key) {
      *check.is_bad = 1;
      return;
    }
  }
}

}  // namespace hicache
