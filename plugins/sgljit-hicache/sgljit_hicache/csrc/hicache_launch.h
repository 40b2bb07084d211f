#pragma once

#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/runtime.h>
#include <sgl_kernel/variant.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hicache_job.h"

/// \file hicache_launch.h
/// \brief The choice of a kernel and of its launch. Host only, for one host part.

namespace hicache {

/// The kernel, by the place of the addresses.
template <typename Table>
inline host::Kernel<Transfer, Table> copy_rows{"hicache.cuh", "hicache::copy_rows"};

inline constexpr std::int64_t kMaxThreads = 1024;  // of a block

/// The grids of transfers between device and host that take the link's speed, by the bytes of a row. Measured on an
/// H200: bench/results/hicache.md has the cells.
///
/// Where addresses are near each other, what counts is bytes in flight, and a block of 512 threads leaves room on its
/// multiprocessor. Where rows are scattered over more memory than a multiprocessor's TLB reaches, what counts is how
/// many multiprocessors wait for translations.
struct LinkSpeed {
  std::int64_t below_bytes;
  Launch from_host;
  Launch to_host;
  Launch scattered;
};
inline constexpr LinkSpeed kLinkSpeed[] = {
    {256, {32, 512}, {16, 512}, {32, 1024}},    // a KV head of fp8
    {512, {16, 512}, {8, 512}, {32, 1024}},     // a KV head of bf16
    {1024, {4, 512}, {4, 512}, {32, 1024}},     // two or three
    {2048, {4, 512}, {4, 512}, {64, 256}},      // four to seven, and a latent row
    {4096, {4, 512}, {2, 512}, {16, 512}},      // all KV heads of a model
    {INT64_MAX, {4, 512}, {2, 512}, {8, 512}},  // more
};

/// The line for so many bytes.
inline const LinkSpeed& link_speed(std::int64_t bytes) {
  const auto* speed = kLinkSpeed;
  while (bytes >= speed->below_bytes) ++speed;
  return *speed;
}
inline constexpr std::int64_t kTlbReach = 256 << 20;       // bytes of all caches in host memory
inline constexpr std::int64_t kScatteredBelow = 16 << 10;  // bytes that are neighbours
inline constexpr std::int64_t kSortBelow = 2048;           // of these
inline constexpr std::int64_t kSortFrom = 8192;            // rows: sorted, so many share translations
inline constexpr Launch kSorted{32, 512};
inline constexpr std::int64_t kManyRows = 16384;  // of these: fewer threads of a block, which share more of them
inline constexpr Launch kManySorted{32, 256};
inline constexpr std::int64_t kFarSpan = std::int64_t{6} << 30;  // bytes of all caches in host memory
inline constexpr Launch kFarSorted{16, 512};                     // many rows in more: fewer TLBs fetch a translation
inline constexpr std::int64_t kDenseUpTo = 32 << 10;  // bytes of a cache for each row: neighbours share translations
inline constexpr std::int64_t kDenseGroup = 128;      // rows that a block takes in turn with the others, if so dense
inline constexpr std::int64_t kFewBytes = 256 << 10;  // bound by latency: a row for each worker
inline constexpr Launch kFew{32, 128};
inline constexpr std::int64_t kLineBytes = 128;
inline constexpr std::int64_t kInFlight = 192 << 10;  // bytes, of rows that are not whole lines

inline thread_local Launch g_last_launch{};

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// The widest word that divides rows, strides and `addresses`, the bitwise or of all of them.
inline std::int64_t word_of(const Job& job, std::uint64_t addresses) {
  const auto &dst = job.dst->rows, &src = job.src->rows;
  return host::widest_word(addresses, job.row_bytes, dst.row_stride, dst.page_stride, src.row_stride, src.page_stride);
}

/// How `copy_rows` shares the rows.
struct Work {
  std::int64_t run_bytes;  ///< bytes that are neighbours
  bool is_scattered;       ///< over more memory than a TLB reaches
  std::int64_t word_bytes;
  std::int64_t lanes;       ///< threads of a worker
  std::int64_t items;       ///< rows of all layers, or pieces of them
  std::int64_t num_warps;   ///< warps that have work
  std::int64_t warp_bytes;  ///< bytes that each warp has in flight

  /// \param addresses the bitwise or of all.
  static Work of(const Job& job, std::uint64_t addresses) {
    Work work;
    const auto& [unroll, quota, page_size, check_indices] = job.options;
    work.run_bytes = job.row_bytes * page_size.value_or(1);
    work.is_scattered = job.host_span > kTlbReach && work.run_bytes < kScatteredBelow;
    // Where stores wait for translations, those of one line disturb other kernels less than those of four: a product of
    // matrices slows down by 0.3 to 2 % instead of 3 to 5. Where the host does not know the pools, this may be a load.
    const bool is_narrow = quota.has_value() && job.to_host && work.is_scattered && job.row_bytes >= kSortBelow;
    work.word_bytes = smaller(word_of(job, addresses), is_narrow ? 4 : 16);
    const auto row_words = job.row_bytes / work.word_bytes;
    // Eight lanes load a line: an instruction of a warp waits for the translations of four rows at once. If rows
    // are not whole lines, more lanes share fewer lines.
    const auto most = row_words <= 8 || job.row_bytes % kLineBytes == 0 ? 8 : row_words <= 16 ? 16 : 32;
    work.lanes = unroll.has_value() ? 32 / *unroll : is_narrow ? 32 : most;
    const auto shape = RowsShape::of(row_words, job.num_caches, work.lanes, work.word_bytes);
    const auto rows = static_cast<std::int64_t>(job.transfer.num_rows) * job.transfer.num_layers;
    work.items = rows * shape.pieces;
    host::RuntimeCheck(
        job.row_bytes < INT32_MAX && rows < INT32_MAX && work.items < INT32_MAX, job.op,
        ": too many bytes for one call: ", job.transfer.num_rows, " rows of ", job.row_bytes, " bytes in ",
        job.transfer.num_layers, " layers");
    const auto in_flight = shape.items * (32 / work.lanes);
    work.num_warps = host::div_ceil(work.items, in_flight);
    work.warp_bytes = in_flight * smaller(shape.piece_words, row_words) * work.word_bytes * job.num_caches;
    return work;
  }
};

/// A transfer on the device uses the whole device, in blocks of the size that measured best.
inline Launch launch_on_the_device(const Job& job, const Work& work) {
  const std::int64_t num_sms = host::runtime::get_sm_count(job.device.device_id);
  const auto per_sm = host::div_ceil(work.num_warps, num_sms);
  const bool is_half = per_sm > 8 && per_sm <= 16;  // of the warps that are resident at a time
  const auto per_block = is_half ? kMaxThreads / 32 : smaller(per_sm, work.warp_bytes < 2048 ? 4 : 2);
  return {.blocks = host::div_ceil(work.num_warps, per_block), .threads = per_block * 32, .is_early = true};
}

/// A transfer between device and host, or one with a quota.
inline Launch launch_on_the_link(const Job& job, const Work& work) {
  const auto num_rows = static_cast<std::int64_t>(job.transfer.num_rows);
  const bool is_few = num_rows * job.transfer.num_layers * job.row_bytes * job.num_caches <= kFewBytes;
  const bool is_sorted = !is_few && work.is_scattered && work.run_bytes < kSortBelow && num_rows >= kSortFrom;
  const bool is_to_host = job.to_host && !job.from_host;  // both where the host does not know
  const auto& speed = link_speed(job.row_bytes);
  auto near = is_to_host ? speed.to_host : speed.from_host;
  if (job.row_bytes % kLineBytes != 0) near.blocks = host::div_ceil(kInFlight, near.threads / 32 * work.warp_bytes);
  const auto sorted = num_rows < kManyRows ? kSorted : job.host_span > kFarSpan ? kFarSorted : kManySorted;
  auto launch = is_few ? kFew : is_sorted ? sorted : work.is_scattered ? link_speed(work.run_bytes).scattered : near;
  const auto threads = is_few || work.is_scattered ? work.items * work.lanes : work.num_warps * 32;  // that have work
  const auto& quota = job.options.block_quota;
  if (quota.has_value()) {
    // Stores that need not wait for translations queue up in front of the link, where they slow down all others.
    const bool is_queue = is_to_host && !work.is_scattered;
    launch = {smaller(*quota, host::div_ceil(threads, 32)), is_queue ? kMaxThreads / 2 : kMaxThreads};
  }
  // Blocks that are there early lie on other multiprocessors: rows that are in order then share fewer translations.
  launch.is_early = !quota.has_value() && (is_few || !work.is_scattered);
  launch.threads = smaller(launch.threads, host::div_ceil(host::div_ceil(threads, launch.blocks), 32) * 32);
  launch.blocks = smaller(launch.blocks, host::div_ceil(threads, launch.threads));
  if (!is_sorted) return launch;
  const auto chunks = host::div_ceil(num_rows, launch.blocks * kMaxChunkRows) * launch.blocks;  // equal ones
  launch.chunk_rows = host::div_ceil(num_rows, chunks);
  if (job.host_span / (num_rows * job.transfer.num_layers * job.num_caches) <= kDenseUpTo) {
    launch.group_rows = kDenseGroup;
    launch.chunk_rows = host::div_ceil(launch.chunk_rows, kDenseGroup) * kDenseGroup;
  }
  // Each block has rows. A quota of many more blocks would also be too much for the kernel, which counts the rows of
  // all chunks in 32 bits.
  const auto dealt_rows = launch.group_rows == 0 ? launch.chunk_rows : launch.group_rows;
  launch.blocks = smaller(launch.blocks, host::div_ceil(num_rows, dealt_rows));
  return launch;
}

/// \brief The kernel of a transfer. Touches no GPU.
///
/// \tparam Table the addresses: `Layers` or `LayerTables`.
template <typename Table>
host::VariantOf<Transfer, Table> choose_kernel(const Job& job, const Work& work) {
  const bool is_paged = job.dst->rows.page_size != kNoPages || job.src->rows.page_size != kNoPages;
  return copy_rows<Table>.get(
      job.row_bytes, work.word_bytes, job.num_caches, work.lanes, is_paged, job.index_dtype, host::type<Table>);
}

template <typename Table>
void launch_on_device(const Job& job, const Work& work, const Table& table) {
  const bool is_on_link = job.from_host || job.to_host || job.options.block_quota.has_value();
  const auto launch = job.launch != nullptr ? *job.launch
                      : is_on_link          ? launch_on_the_link(job, work)
                                            : launch_on_the_device(job, work);
  g_last_launch = launch;
  auto transfer = job.transfer;
  transfer.dst = job.dst->rows;
  transfer.src = job.src->rows;
  transfer.chunk_rows = static_cast<std::uint32_t>(launch.chunk_rows);
  transfer.group_rows = static_cast<std::uint32_t>(launch.group_rows == 0 ? launch.chunk_rows : launch.group_rows);
  transfer.sort_keys = job.to_host ? transfer.dst_indices : transfer.src_indices;
  // The kernel sorts two rows at least.
  const auto sorted = std::bit_ceil(static_cast<std::size_t>(launch.chunk_rows < 2 ? 2 : launch.chunk_rows));
  const auto smem = launch.chunk_rows == 0 ? 0 : 8 * sorted;
  host::LaunchKernel(launch.blocks, launch.threads, job.device, smem)
      .enable_pdl(launch.is_early && host::runtime::has_pdl(job.device.device_id))(
          choose_kernel<Table>(job, work), transfer, table);
}

}  // namespace hicache
