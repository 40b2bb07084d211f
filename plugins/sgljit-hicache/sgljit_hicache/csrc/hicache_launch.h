#pragma once

#include <sgl_kernel/runtime.h>
#include <sgl_kernel/variant.h>

#include <cstddef>
#include <cstdint>

#include "hicache_job.h"

/// \file hicache_launch.h
/// \brief The choice of a kernel and of its launch. Host only, for one host part.

namespace hicache {

/// The kernels, by the place of the addresses.
template <typename Table>
inline host::Kernel<Transfer, Table> copy_rows{"hicache.cuh", "hicache::copy_rows"};
template <typename Table>
inline host::Kernel<Transfer, Table> copy_bulk{"hicache.cuh", "hicache::copy_bulk"};
template <typename Table>
inline host::Kernel<Transfer, Table> copy_any{"hicache.cuh", "hicache::copy_any"};

/// \brief The kernels.
enum Method : std::int64_t { kRows = 0, kBulk = 1, kAny = 2 };

/// The launch of a transfer. The numbers in the table of defaults are measured: see bench/.
struct Launch {
  std::int64_t method;
  std::int64_t blocks;
  std::int64_t threads;
  std::int64_t stages = 0;       // copy_bulk only
  std::int64_t stage_bytes = 0;  // copy_bulk only
  std::int64_t ahead = 0;        // copy_rows only: see Transfer
};

/// \brief The properties of a device that decide; plain numbers, so that the device need not be present.
struct Gpu {
  std::int64_t num_sms;
  std::int64_t max_smem;  ///< the most dynamic shared memory of a block, in bytes
  bool is_hopper;         ///< or later: it has bulk copies and dependent launches

  static Gpu of(int device_id) {
    return {
        host::runtime::get_sm_count(device_id),
        static_cast<std::int64_t>(host::runtime::get_max_dynamic_smem(device_id)), host::runtime::has_pdl(device_id)};
  }
};

// Transfers between device and host. About 130 KiB in flight fill PCIe: two blocks of 16 warps. Small transfers are
// bound by latency, and finish sooner with four blocks. A block of 32 warps fills a multiprocessor, so that the next
// transfer must wait for another one; a block of 16 leaves room for it, and slows down a concurrent matrix product
// less. For very long transfers from the host, three whole multiprocessors slow the product down least. To the host,
// stores from registers queue up in front of PCIe and slow down all other users of memory; the bulk copies of a few
// warps do so half as much, but begin later, and cost more for each short row. Alone, a bulk block with 64 KiB in
// flight reaches 23 to 34 GB/s, depending on the placement of a process's memory: two blocks fill PCIe in some
// processes, four in all. For transfers that are not long two are enough, and slow down a concurrent product less.
//
// This holds as long as a multiprocessor finds the addresses of host memory in its TLB. Rows at random places of more
// than about 256 MiB miss it, more often in larger pools, and one multiprocessor has few misses in flight: in pools of
// 4 GiB bulk copies by four blocks drop to 15 GB/s, while four blocks of 16 warps keep 48.
inline constexpr std::int64_t kMaxWarps = 32;  // of a block
inline constexpr std::int64_t kHostInFlight = 128 << 10;
inline constexpr std::int64_t kHostWarps = 16;
inline constexpr std::int64_t kHostBlocks = 2;
inline constexpr std::int64_t kHostFewBytes = 256 << 10;
inline constexpr std::int64_t kHostFewBlocks = 4;
inline constexpr std::int64_t kHostMaxBlocks = 16;
inline constexpr std::uint64_t kHostSmallPool = 256 << 20;
inline constexpr std::int64_t kHostLargePoolBlocks = 4;
inline constexpr std::int64_t kFromHostLongBytes = 32 << 20;
inline constexpr std::int64_t kFromHostLongBlocks = 3;
inline constexpr std::int64_t kToHostLongBytes = 4 << 20;
inline constexpr std::int64_t kToHostBulkRowBytes = 1024;
inline constexpr Launch kToHostBulk{kBulk, 2, 128, 4, 4096};
inline constexpr Launch kToHostLongBulk{kBulk, 4, 64, 4, 8192};

inline Launch g_override{-1, 0, 0, 0, 0};  // for bench/, see override_launch; zeros keep the defaults
inline thread_local Launch g_last{};

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// Lanes of a worker of copy_rows: one load per lane covers the row if possible, so that a warp's loads are 128-byte
/// lines. `unroll` divides a warp, as in the original kernels.
inline std::int64_t lanes_of(const Job& job) {
  if (job.unroll.has_value()) return 32 / *job.unroll;
  return job.transfer.row_bytes <= 128 ? 8 : job.transfer.row_bytes <= 256 ? 16 : 32;
}

/// The work of copy_rows or copy_any in one pass.
struct Pass {
  std::int64_t num_warps;  ///< warps that have work
  std::int64_t bytes;      ///< bytes that each warp has in flight
};

inline Pass pass_of(const Job& job, bool is_any) {
  const auto& t = job.transfer;
  const auto items = static_cast<std::int64_t>(t.num_rows) * t.num_layers;
  if (is_any) return {items, smaller(t.row_bytes, 1024)};
  const auto lanes = lanes_of(job);
  const auto shape = RowsShape::of(t.row_bytes, job.num_caches, lanes);
  const auto pieces = shape.items * (32 / lanes);
  return {host::div_ceil(items * shape.pieces, pieces), pieces * shape.piece_bytes * job.num_caches};
}

// A transfer on the device uses the whole device, in blocks of the size that measured best. Early requests for rows by
// the first four warps of each multiprocessor hide the latency of memory; more requests evict each other from L2.
inline constexpr std::int64_t kAheadWarps = 4;

inline Launch launch_on_the_device(const Job& job, bool is_any, const Pass& pass, const Gpu& gpu) {
  const auto per_sm = host::div_ceil(pass.num_warps, gpu.num_sms);
  const bool is_half = per_sm > 8 && per_sm <= 16;  // of the warps that are resident at a time
  const auto most = is_any ? kMaxWarps / 2 : pass.bytes < 2048 ? 4 : 2;
  const auto per_block = is_half ? kMaxWarps : smaller(per_sm, most);
  Launch launch{is_any ? kAny : kRows, host::div_ceil(pass.num_warps, per_block), per_block * 32};
  if (!is_any && !is_half) launch.ahead = kAheadWarps * gpu.num_sms * (32 / lanes_of(job));
  return launch;
}

/// \param is_any the rows or their addresses are not multiples of 16 bytes.
inline Launch launch_by_direction(const Job& job, bool is_any, const Gpu& gpu) {
  const auto& t = job.transfer;
  const auto method = is_any ? kAny : kRows;
  const auto pass = pass_of(job, is_any);
  const bool crosses_host = job.from_host || job.to_host;
  if (!crosses_host && !job.block_quota.has_value()) return launch_on_the_device(job, is_any, pass, gpu);
  const auto bytes = static_cast<std::int64_t>(t.num_rows) * t.num_layers * t.row_bytes * job.num_caches;
  const bool is_few = bytes <= kHostFewBytes;
  const bool is_large = job.host_pool > kHostSmallPool;
  const bool is_bulk = !is_few && !is_large && t.row_bytes >= kToHostBulkRowBytes;
  if (job.to_host && !job.from_host && is_bulk && gpu.is_hopper && !is_any && !job.unroll.has_value()) {
    auto launch = bytes > kToHostLongBytes ? kToHostLongBulk : kToHostBulk;
    launch.blocks = job.block_quota.value_or(launch.blocks);
    return launch;
  }
  const bool is_long = !job.to_host && !is_large && bytes > kFromHostLongBytes;
  const auto least = is_few     ? kHostFewBlocks
                     : is_large ? kHostLargePoolBlocks
                     : is_long  ? kFromHostLongBlocks
                                : kHostBlocks;
  const auto needed = smaller(host::div_ceil(kHostInFlight, kHostWarps * pass.bytes), kHostMaxBlocks);
  const auto quota = job.block_quota.value_or(least > needed ? least : needed);
  const bool is_whole = is_few || is_long || is_any || job.block_quota.has_value();
  const auto per_block = smaller(host::div_ceil(pass.num_warps, quota), is_whole ? kMaxWarps : kHostWarps);
  return {method, smaller(host::div_ceil(pass.num_warps, per_block), quota), per_block * 32};
}

/// The launch that bench/ set instead.
inline void override_choice(Launch& launch) {
  if (g_override.method < 0 || launch.method == kAny) [[likely]]
    return;
  launch.method = g_override.method;
  if (g_override.blocks > 0) launch.blocks = g_override.blocks;
  if (g_override.threads > 0) launch.threads = g_override.threads;
  else if (launch.method == kBulk) launch.threads = kToHostLongBulk.threads;
  launch.stages = g_override.stages > 0 ? g_override.stages : kToHostLongBulk.stages;
  launch.stage_bytes = g_override.stage_bytes > 0 ? g_override.stage_bytes : kToHostLongBulk.stage_bytes;
}

/// The largest word of up to 16 bytes that divides `alignment`, the bitwise or of addresses and strides.
inline std::int64_t word_of(std::uint64_t alignment) {
  alignment |= 16;
  return static_cast<std::int64_t>(alignment & (~alignment + 1));
}

/// The bitwise or of the row size and of the strides.
inline std::uint64_t alignment_of(const Transfer& t) {
  auto alignment = static_cast<std::uint64_t>(t.row_bytes);
  for (const auto& rows : {t.dst, t.src}) {
    alignment |= static_cast<std::uint64_t>(rows.row_stride);
    if (rows.page_size != kNoPages) alignment |= static_cast<std::uint64_t>(rows.page_stride);
  }
  return alignment;
}

/// A kernel and its launch.
template <typename Table>
struct Choice {
  Launch launch;
  host::VariantOf<Transfer, Table> kernel;
  std::size_t smem = 0;  ///< shared memory of a block, in bytes
};

/// \brief The kernel and launch of a transfer. Touches no GPU; `variants()` of ops.py lists the results for usual rows.
///
/// \tparam Table the addresses: `OneLayer`, ...
/// \param alignment the bitwise or of all addresses.
template <typename Table>
Choice<Table> choose(const Job& job, std::uint64_t alignment, const Gpu& gpu) {
  const auto& t = job.transfer;
  const auto word_bytes = word_of(alignment | alignment_of(t));
  auto launch = launch_by_direction(job, word_bytes < 16, gpu);
  override_choice(launch);

  const bool is_paged = t.dst.page_size != kNoPages || t.src.page_size != kNoPages;
  const bool pdl = gpu.is_hopper;
  const auto caches = job.num_caches;
  const auto refuse_large = [&](std::int64_t pieces) {
    const auto items = static_cast<std::int64_t>(t.num_rows) * t.num_layers;
    host::RuntimeCheck(
        t.row_bytes < INT32_MAX && items * pieces < INT32_MAX, job.op, ": too many bytes for one call: ", t.num_rows,
        " rows of ", t.row_bytes, " bytes in ", t.num_layers, " layers");
  };
  if (launch.method == kBulk) {
    const auto warps = launch.threads / 32;
    const auto shape = BulkShape::of(t.row_bytes, caches, launch.stage_bytes);
    refuse_large(shape.pieces);
    while (launch.stages > 2 && shape.smem_bytes(warps, launch.stages) > gpu.max_smem) --launch.stages;
    return {
        launch,
        copy_bulk<Table>.get(
            t.row_bytes, caches, warps, launch.stages, launch.stage_bytes, is_paged, pdl, job.index_dtype,
            Table::kLayers),
        static_cast<std::size_t>(shape.smem_bytes(warps, launch.stages))};
  }
  if (launch.method == kRows) {
    const auto lanes = lanes_of(job);
    refuse_large(RowsShape::of(t.row_bytes, caches, lanes).pieces);
    return {launch, copy_rows<Table>.get(t.row_bytes, caches, lanes, is_paged, pdl, job.index_dtype, Table::kLayers)};
  }
  refuse_large(1);
  return {launch, copy_any<Table>.get(word_bytes, caches, is_paged, pdl, job.index_dtype, Table::kLayers)};
}

/// \brief Make the kernel of a later `launch_on_device`, if it does not exist yet.
template <typename Table>
void load(const Job& job, std::uint64_t alignment) {
  static_cast<void>(choose<Table>(job, alignment, Gpu::of(job.device.device_id)).kernel.on(job.device.device_id));
}

template <typename Table>
void launch_on_device(const Job& job, const Table& table, std::uint64_t alignment) {
  const auto gpu = Gpu::of(job.device.device_id);
  const auto choice = choose<Table>(job, alignment, gpu);
  g_last = choice.launch;
  auto transfer = job.transfer;
  transfer.ahead = static_cast<std::uint32_t>(choice.launch.ahead);
  host::LaunchKernel(choice.launch.blocks, choice.launch.threads, job.device, choice.smem)
      .enable_pdl(gpu.is_hopper)(choice.kernel, transfer, table);
}

}  // namespace hicache
