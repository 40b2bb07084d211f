#pragma once

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/runtime.h>
#include <sgl_kernel/variant.h>

#include <cstdint>

#include "hicache_job.h"

/// \file hicache_launch.h
/// \brief The choice of a kernel and of its launch; checking indices on the device. Host only, of one host part.

namespace hicache {

inline host::Variants kernels{"hicache.cuh"};
inline host::Deferred<void(const Job&, const void*, const void*, const LayerTables*)> check_on_cpu{
    "hicache_check.cpp", "check_on_cpu"};

/// \brief Check the indices on the device, and wait for its answer. If it is bad, the host looks for the position and
/// words the error.
inline void check_on_device(const Job& job) {
  namespace driver = host::driver;
  constexpr std::uint32_t kThreads = 256;
  const auto stream = host::LaunchKernel::resolve_device(job.device);
  const host::details::ContextGuard guard(job.device.device_id, host::DebugInfo{});
  int is_capturing = 0;
  driver::check(driver::api().StreamIsCapturing(stream, &is_capturing));
  host::RuntimeCheck(
      is_capturing == 0, job.op,
      ": indices cannot be checked while the stream is being captured, as the host waits for the answer: pass "
      "check_indices=False");

  const auto num_rows = job.transfer.num_rows;
  std::int64_t size = 64;
  while (size < 2 * static_cast<std::int64_t>(num_rows)) size *= 2;
  const auto scratch = host::ffi::allocate({size + 1}, {kDLInt, 64, 1}, job.device);
  auto* const table = static_cast<std::uint64_t*>(scratch.data_ptr());
  driver::check(driver::api().MemsetD32Async(table, 0, 2 * static_cast<std::size_t>(size + 1), stream));
  const Check check{
      .dst_indices = job.transfer.dst_indices,
      .src_indices = job.transfer.src_indices,
      .dst_rows = job.dst_rows,
      .src_rows = job.src_rows,
      .num_rows = num_rows,
      .mask = static_cast<std::uint32_t>(size - 1),
      .table = table,
      .is_bad = reinterpret_cast<std::uint32_t*>(table + size),
  };
  const host::LaunchKernel launch(host::div_ceil(num_rows, kThreads), kThreads, job.device);
  launch(kernels.get("hicache::check_indices", job.index_dtype), check);
  if (job.is_in_place) launch(kernels.get("hicache::check_reads", job.index_dtype), check);
  std::uint64_t is_bad = 0;
  driver::check(driver::api().MemcpyDtoHAsync(&is_bad, check.is_bad, sizeof(is_bad), stream));
  driver::check(driver::api().StreamSynchronize(stream));
  if (is_bad == 0) [[likely]]
    return;

  const auto bytes = static_cast<std::size_t>(num_rows) * job.index_dtype.bits / 8;
  const auto copies = host::ffi::allocate({static_cast<std::int64_t>(2 * bytes)}, {kDLUInt, 8, 1}, {kDLCPU, 0});
  auto* const dst = static_cast<char*>(copies.data_ptr());
  driver::check(driver::api().MemcpyDtoHAsync(dst, check.dst_indices, bytes, stream));
  driver::check(driver::api().MemcpyDtoHAsync(dst + bytes, check.src_indices, bytes, stream));
  driver::check(driver::api().StreamSynchronize(stream));
  check_on_cpu(job, dst, dst + bytes, nullptr);
}

/// \brief The kernels.
enum Method : std::int64_t { kRows = 0, kBulk = 1, kAny = 2 };

/// How a transfer is launched. A number in the table of defaults is a measured one: see bench/.
struct Launch {
  std::int64_t method;
  std::int64_t blocks;
  std::int64_t threads;
  std::int64_t stages = 0;       // of copy_bulk
  std::int64_t stage_bytes = 0;  // of copy_bulk
};

// Transfers that cross to the host. PCIe is full with some 150 KiB on their way, for which two multiprocessors suffice.
// What is small is latency, and four are done with it sooner. To the host, stores from registers queue up in front of
// PCIe and slow down whoever else uses memory; the bulk copies of a few warps do so less, but begin later, and cost
// more for each short row. A bulk block leaves room for the next transfer's, which then begins without a gap; beside a
// matrix product, which then comes in between two transfers, they get about half of the time.
inline constexpr std::int64_t kHostInFlight = 256 << 10;
inline constexpr std::int64_t kHostBlocks = 2;
inline constexpr std::int64_t kHostFewBytes = 256 << 10;
inline constexpr std::int64_t kHostFewBlocks = 4;
inline constexpr std::int64_t kHostMaxBlocks = 16;
inline constexpr std::int64_t kToHostBulkBytes = 2 << 20;
inline constexpr std::int64_t kToHostBulkRowBytes = 1024;
inline constexpr Launch kToHostBulk{kBulk, 2, 128, 3, 8192};
inline constexpr std::int64_t kMaxWarps = 32;  // of a block

inline Launch g_override{-1, 0, 0, 0, 0};  // of bench/, see override_launch; zero: as it would be
inline thread_local Launch g_last{};

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// Lanes of a worker of copy_rows: a load each for as much of a row as there is, so that a warp's loads are 128-byte
/// lines. `unroll` divides a warp, as in the seeds.
inline std::int64_t lanes_of(const Job& job) {
  if (job.unroll.has_value()) return 32 / *job.unroll;
  return job.transfer.row_bytes <= 128 ? 8 : job.transfer.row_bytes <= 256 ? 16 : 32;
}

/// What a warp of copy_rows or copy_any does in one pass.
struct Pass {
  std::int64_t num_warps;  ///< that have something to do
  std::int64_t bytes;      ///< that each has on its way
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

/// Bytes of shared memory of copy_bulk; takes stages off the launch until the device has that much.
inline std::size_t fit_smem(const Job& job, Launch& launch) {
  const auto shape = BulkShape::of(job.transfer.row_bytes, job.num_caches, launch.stage_bytes);
  const auto limit = static_cast<std::int64_t>(host::runtime::get_max_dynamic_smem(job.device.device_id));
  while (launch.stages > 2 && shape.smem_bytes(launch.threads / 32, launch.stages) > limit) --launch.stages;
  return static_cast<std::size_t>(shape.smem_bytes(launch.threads / 32, launch.stages));
}

/// \param is_any the rows, or where they lie, are no multiples of 16 bytes.
inline Launch choose_launch(const Job& job, bool is_any, bool is_hopper) {
  const auto& t = job.transfer;
  const auto method = is_any ? kAny : kRows;
  const auto pass = pass_of(job, is_any);
  const bool crosses_host = job.from_host || job.to_host;
  if (!crosses_host && !job.block_quota.has_value()) {
    const auto num_sms = host::runtime::get_sm_count(job.device.device_id);
    const auto per_sm = host::div_ceil(pass.num_warps, num_sms);
    const auto per_block = per_sm <= 8 ? per_sm : per_sm <= 16 ? kMaxWarps : kMaxWarps / 2;  // as measured
    return {method, host::div_ceil(pass.num_warps, per_block), per_block * 32};
  }
  const auto bytes = static_cast<std::int64_t>(t.num_rows) * t.num_layers * t.row_bytes * job.num_caches;
  const bool is_bulk = bytes > kToHostBulkBytes && t.row_bytes >= kToHostBulkRowBytes;
  if (job.to_host && !job.from_host && is_bulk && is_hopper && !is_any && !job.unroll.has_value()) {
    auto launch = kToHostBulk;
    launch.blocks = job.block_quota.value_or(launch.blocks);
    return launch;
  }
  const auto least = bytes > kHostFewBytes ? kHostBlocks : kHostFewBlocks;
  const auto needed = smaller(host::div_ceil(kHostInFlight, kMaxWarps * pass.bytes), kHostMaxBlocks);
  const auto quota = job.block_quota.value_or(least > needed ? least : needed);
  const auto per_block = smaller(host::div_ceil(pass.num_warps, quota), kMaxWarps);
  return {method, smaller(host::div_ceil(pass.num_warps, per_block), quota), per_block * 32};
}

/// What bench/ asked for in place of it.
inline void override_choice(Launch& launch) {
  if (g_override.method < 0 || launch.method == kAny) [[likely]]
    return;
  launch.method = g_override.method;
  if (g_override.blocks > 0) launch.blocks = g_override.blocks;
  if (g_override.threads > 0) launch.threads = g_override.threads;
  else if (launch.method == kBulk) launch.threads = kToHostBulk.threads;
  launch.stages = g_override.stages > 0 ? g_override.stages : kToHostBulk.stages;
  launch.stage_bytes = g_override.stage_bytes > 0 ? g_override.stage_bytes : kToHostBulk.stage_bytes;
}

/// `alignment` has a bit set where some address or stride has.
template <typename Table>
inline void launch_on_device(const Job& job, int layers, const Table& table, std::uint64_t alignment) {
  const auto& t = job.transfer;
  const bool is_hopper = host::runtime::has_pdl(job.device.device_id);
  const bool is_paged = t.dst.page_size != kNoPages || t.src.page_size != kNoPages;
  for (const auto& rows : {t.dst, t.src}) {
    alignment |= static_cast<std::uint64_t>(rows.row_stride);
    if (rows.page_size != kNoPages) alignment |= static_cast<std::uint64_t>(rows.page_stride);
  }
  alignment |= static_cast<std::uint64_t>(t.row_bytes);
  const bool is_any = alignment % 16 != 0;
  auto launch = choose_launch(job, is_any, is_hopper);
  override_choice(launch);
  g_last = launch;

  const bool pdl = is_hopper;
  const auto row_bytes = t.row_bytes;
  const auto caches = job.num_caches;
  const auto items = static_cast<std::int64_t>(t.num_rows) * t.num_layers;
  const auto refuse_large = [&](std::int64_t pieces) {
    host::RuntimeCheck(
        row_bytes < INT32_MAX && items * pieces < INT32_MAX, job.op, ": too many bytes for one call: ", t.num_rows,
        " rows of ", row_bytes, " bytes in ", t.num_layers, " layers");
  };
  if (launch.method == kBulk) {
    refuse_large(BulkShape::of(row_bytes, caches, launch.stage_bytes).pieces);
    const auto warps = launch.threads / 32;
    const auto smem = fit_smem(job, launch);
    host::LaunchKernel(launch.blocks, launch.threads, job.device, smem)
        .enable_pdl(pdl)(
            kernels.get(
                "hicache::copy_bulk", row_bytes, caches, warps, launch.stages, launch.stage_bytes, is_paged, pdl,
                job.index_dtype, layers),
            t, table);
  } else if (launch.method == kRows) {
    const auto lanes = lanes_of(job);
    refuse_large(RowsShape::of(row_bytes, caches, lanes).pieces);
    host::LaunchKernel(launch.blocks, launch.threads, job.device)
        .enable_pdl(pdl)(
            kernels.get("hicache::copy_rows", row_bytes, caches, lanes, is_paged, pdl, job.index_dtype, layers), t,
            table);
  } else {
    refuse_large(1);
    const auto lowest_bit = alignment & (~alignment + 1);
    const auto word_bytes = static_cast<std::int64_t>(lowest_bit);
    host::LaunchKernel(launch.blocks, launch.threads, job.device)
        .enable_pdl(pdl)(
            kernels.get("hicache::copy_any", word_bytes, caches, is_paged, pdl, job.index_dtype, layers), t, table);
  }
}

/// Finds the addresses that kernels use for memory; an error that names the cache if they cannot use it.
struct Registered {
 public:
  explicit Registered(const char* op) : m_op(op) {}

  /// The address of the `size` bytes from `begin`. The driver is not asked again about a neighbour in the same
  /// allocation.
  std::uint64_t resolve(const char* name, std::uint64_t begin, std::int64_t size, const host::TensorView* view) {
    const auto end = begin + static_cast<std::uint64_t>(size > 0 ? size : 1);
    if (begin < m_memory.begin || begin >= m_memory.begin + m_memory.size) {
      m_memory = m_find(begin, name, view);
      m_shift = reinterpret_cast<std::uintptr_t>(m_memory.device_address) - begin;
    }
    // A buffer may be registered in part, or in parts: ask about its other end, too.
    if (end > m_memory.begin + m_memory.size) static_cast<void>(m_find(end - 1, name, view));
    return begin + m_shift;
  }
  /// Whether what was resolved last is in host memory.
  bool was_host() const {
    return m_memory.type == host::driver::kMemoryTypeHost;
  }

 private:
  host::driver::Memory m_find(std::uintptr_t address, const char* name, const host::TensorView* view) const {
    const auto memory = host::driver::memory_at(reinterpret_cast<const void*>(address));
    if (memory.type == 0 || memory.device_address == nullptr) [[unlikely]]
      m_refuse(name, view);
    return memory;
  }
  [[noreturn, gnu::cold, gnu::noinline]] void m_refuse(const char* name, const host::TensorView* view) const {
    host::Message text;
    text
        << m_op << ": " << name
        << " is in pageable host memory, which a kernel cannot reach: allocate it with pin_memory=True, or register it "
           "with CUDA";
    if (view != nullptr) text << ": " << *view;
    throw host::Error("ValueError", text.c_str());
  }

  const char* m_op;
  host::driver::Memory m_memory;
  std::uintptr_t m_shift = 0;
};

}  // namespace hicache
