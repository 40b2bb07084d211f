/// \file hicache.cpp
/// \brief The host part: the functions that Python calls, from arguments to a copy on the CPU or a launch.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/message.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>

#include <cstdint>
#include <cstring>

#include "hicache_device_check.h"
#include "hicache_job.h"
#include "hicache_launch.h"
#include "hicache_match.h"
#include "hicache_memory.h"
#include "hicache_params.h"

namespace {

using hicache::Cache;
using hicache::Job;
using hicache::LayerStrides;
using hicache::LayerTables;
using hicache::Options;
using hicache::PointerTable;
using host::Optional;
using host::TensorView;

host::Deferred<void(const Job&, const LayerTables&)> transfer_on_cpu{"hicache_cpu.cpp", "transfer_on_cpu"};

// ---- one layer ----

void run_on_cpu(const Job& job, const Cache* dst, const Cache* src) {
  std::uint64_t addresses[2][2];
  LayerTables table{};
  for (int c = 0; c < job.num_caches; ++c) {
    table.dst[c] = &(addresses[0][c] = reinterpret_cast<std::uint64_t>(dst[c].data));
    table.src[c] = &(addresses[1][c] = reinterpret_cast<std::uint64_t>(src[c].data));
  }
  transfer_on_cpu(job, table);
}

void run_on_device(Job& job, const Cache* dst, const Cache* src, bool checks) {
  const host::details::ContextGuard guard(job.device.device_id, host::DebugInfo{});
  hicache::OneLayer table{};
  hicache::Reachable reachable(job);
  std::uint64_t alignment = 0;
  const auto resolve = [&](const Cache& cache, bool& in_host) {
    auto address = reinterpret_cast<std::uint64_t>(cache.data);
    if (hicache::is_host(cache.view->device())) {
      address = reachable.resolve(cache.name, address, cache.span(job.transfer.row_bytes), cache.view);
      in_host = true;
    }
    alignment |= address;
    return address;
  };
  for (int c = 0; c < job.num_caches; ++c) {
    table.dst[c] = resolve(dst[c], job.to_host);
    table.src[c] = resolve(src[c], job.from_host);
  }
  job.host_pool = reachable.host_bytes();
  if (checks) check_on_device(job);
  launch_on_device(job, table, alignment);
}

void transfer_one_layer(
    Job&& job, const Cache* dst, const Cache* src, const TensorView& indices_dst, const TensorView& indices_src,
    const Options& options) {
  match_indices(job, indices_dst, indices_src);
  match_options(job, options);
  match_caches(job, dst, src);
  if (job.transfer.num_rows == 0) return;
  const bool checks = options.checks(hicache::is_host(job.device));
  if (!hicache::is_host(job.device)) return run_on_device(job, dst, src, checks);
  if (checks) hicache::check_on_cpu(job, job.transfer.dst_indices, job.transfer.src_indices);
  run_on_cpu(job, dst, src);
}

void transfer_hicache_one_layer(
    TensorView k_cache_dst, TensorView v_cache_dst, TensorView indices_dst, TensorView k_cache_src,
    TensorView v_cache_src, TensorView indices_src, Optional<std::int64_t> element_dim, Optional<std::int64_t> unroll,
    Optional<std::int64_t> block_quota, Optional<std::int64_t> page_size, Optional<bool> check_indices) {
  constexpr const char* kOp = "transfer_hicache_one_layer";
  const Cache dst[] = {
      hicache::match_cache(kOp, "k_cache_dst", k_cache_dst, element_dim),
      hicache::match_cache(kOp, "v_cache_dst", v_cache_dst, element_dim)};
  const Cache src[] = {
      hicache::match_cache(kOp, "k_cache_src", k_cache_src, element_dim),
      hicache::match_cache(kOp, "v_cache_src", v_cache_src, element_dim)};
  transfer_one_layer({kOp, 2}, dst, src, indices_dst, indices_src, {unroll, block_quota, check_indices, page_size});
}

void transfer_hicache_one_layer_mla(
    TensorView cache_dst, TensorView indices_dst, TensorView cache_src, TensorView indices_src,
    Optional<std::int64_t> element_dim, Optional<std::int64_t> unroll, Optional<std::int64_t> block_quota,
    Optional<std::int64_t> page_size, Optional<bool> check_indices) {
  constexpr const char* kOp = "transfer_hicache_one_layer_mla";
  const auto dst = hicache::match_cache(kOp, "cache_dst", cache_dst, element_dim);
  const auto src = hicache::match_cache(kOp, "cache_src", cache_src, element_dim);
  transfer_one_layer({kOp, 1}, &dst, &src, indices_dst, indices_src, {unroll, block_quota, check_indices, page_size});
}

// ---- all layers ----

/// The addresses of some layers in kernels.
struct SomeLayers {
  hicache::ManyLayers table = {};
  std::uint64_t alignment = 0;  ///< the bitwise or of all addresses
};

/// As many layers from `begin` on as fit into a launch; sets the job's direction from the memory they point to.
SomeLayers resolve_layers(
    Job& job, const PointerTable* dst, const PointerTable* src, const LayerTables& all, std::uint32_t begin,
    std::uint32_t count, bool checks) {
  SomeLayers found;
  job.host_pool = 0;
  const auto resolve = [&](const PointerTable& pointers, const std::uint64_t* from, std::uint64_t* to, bool& in_host) {
    hicache::Reachable reachable(job);
    for (std::uint32_t layer = 0; layer < count; ++layer) {
      to[layer] = from[begin + layer];
      // All addresses of a list are in device memory if one is: one query is enough.
      if (layer == 0 || reachable.was_host() || checks)
        to[layer] = reachable.resolve(pointers.name, to[layer], 1, nullptr);
      found.alignment |= to[layer];
    }
    if (reachable.was_host()) in_host = true;
    job.host_pool += reachable.host_bytes();
  };
  for (int c = 0; c < job.num_caches; ++c) {
    resolve(dst[c], all.dst[c], found.table.dst[c], job.to_host);
    resolve(src[c], all.src[c], found.table.src[c], job.from_host);
  }
  return found;
}

/// The addresses are in host memory: they go into the kernel's parameters, and their memory is known.
void run_on_device_by_value(
    Job& job, const PointerTable* dst, const PointerTable* src, const LayerTables& all, bool checks) {
  const auto num_layers = job.transfer.num_layers;
  constexpr auto kMost = hicache::ManyLayers::kMaxLayers;
  const auto count_from = [&](std::uint32_t begin) { return num_layers - begin < kMost ? num_layers - begin : kMost; };
  if (num_layers > kMost) {  // find errors in the layers or the kernel of the second launch before the first one
    for (std::uint32_t begin = 0; begin < num_layers; begin += kMost) {
      job.transfer.num_layers = count_from(begin);
      const auto layers = resolve_layers(job, dst, src, all, begin, job.transfer.num_layers, checks);
      hicache::load<hicache::ManyLayers>(job, layers.alignment);
    }
  }
  for (std::uint32_t begin = 0; begin < num_layers; begin += kMost) {
    job.transfer.num_layers = count_from(begin);
    const auto layers = resolve_layers(job, dst, src, all, begin, job.transfer.num_layers, checks);
    launch_on_device(job, layers.table, layers.alignment);
  }
}

void transfer_all_layers(
    Job&& job, const PointerTable* dst, const PointerTable* src, const TensorView& indices_dst,
    const TensorView& indices_src, const LayerStrides& strides, const Options& options) {
  match_indices(job, indices_dst, indices_src);
  match_options(job, options);
  const bool is_by_value = match_pointers(job, dst, src);
  match_strides(job, strides);
  job.transfer.by_layer = hicache::is_layer_first(job.transfer);
  if (job.transfer.num_rows == 0 || job.transfer.num_layers == 0) return;

  LayerTables table{};
  for (int c = 0; c < job.num_caches; ++c) {
    table.dst[c] = static_cast<const std::uint64_t*>(dst[c].view->data_ptr());
    table.src[c] = static_cast<const std::uint64_t*>(src[c].view->data_ptr());
    if (!is_by_value) continue;
    refuse_null(job, dst[c], table.dst[c]);
    refuse_null(job, src[c], table.src[c]);
  }
  const bool checks = options.checks(hicache::is_host(job.device));
  if (hicache::is_host(job.device)) {
    for (int c = 0; c < job.num_caches; ++c) {  // one query for each list is enough
      hicache::refuse_device_memory(job, dst[c].name, *table.dst[c]);
      hicache::refuse_device_memory(job, src[c].name, *table.src[c]);
    }
    if (checks) {
      hicache::check_on_cpu(job, job.transfer.dst_indices, job.transfer.src_indices);
      hicache::check_layers_on_cpu(job, job.transfer.dst_indices, job.transfer.src_indices, table);
    }
    return transfer_on_cpu(job, table);
  }
  const host::details::ContextGuard guard(job.device.device_id, host::DebugInfo{});
  if (checks) check_layers_on_device(job, dst, src, is_by_value ? &table : nullptr);
  if (is_by_value) return run_on_device_by_value(job, dst, src, table, checks);
  // The host does not know where the caches are, so it takes the launch that disturbs other work least.
  job.from_host = job.to_host = true;
  job.host_pool = hicache::kUnknownPool;
  launch_on_device(job, table, 0);
}

void transfer_hicache_all_layer(
    TensorView k_ptr_dst, TensorView v_ptr_dst, TensorView indices_dst, TensorView k_ptr_src, TensorView v_ptr_src,
    TensorView indices_src, std::int64_t src_stride, std::int64_t dst_stride, Optional<std::int64_t> element_size,
    Optional<std::int64_t> unroll, Optional<std::int64_t> block_quota, Optional<std::int64_t> page_size,
    Optional<std::int64_t> src_page_stride, Optional<std::int64_t> dst_page_stride, Optional<std::int64_t> num_rows_src,
    Optional<std::int64_t> num_rows_dst, Optional<bool> check_indices) {
  const PointerTable dst[] = {{"k_ptr_dst", &k_ptr_dst}, {"v_ptr_dst", &v_ptr_dst}};
  const PointerTable src[] = {{"k_ptr_src", &k_ptr_src}, {"v_ptr_src", &v_ptr_src}};
  transfer_all_layers(
      {"transfer_hicache_all_layer", 2}, dst, src, indices_dst, indices_src,
      {src_stride, dst_stride, element_size, page_size, src_page_stride, dst_page_stride, num_rows_src, num_rows_dst},
      {unroll, block_quota, check_indices});
}

void transfer_hicache_all_layer_mla(
    TensorView ptr_dst, TensorView indices_dst, TensorView ptr_src, TensorView indices_src, std::int64_t src_stride,
    std::int64_t dst_stride, Optional<std::int64_t> element_size, Optional<std::int64_t> unroll,
    Optional<std::int64_t> block_quota, Optional<std::int64_t> page_size, Optional<std::int64_t> src_page_stride,
    Optional<std::int64_t> dst_page_stride, Optional<std::int64_t> num_rows_src, Optional<std::int64_t> num_rows_dst,
    Optional<bool> check_indices) {
  const PointerTable dst{"ptr_dst", &ptr_dst};
  const PointerTable src{"ptr_src", &ptr_src};
  transfer_all_layers(
      {"transfer_hicache_all_layer_mla", 1}, &dst, &src, indices_dst, indices_src,
      {src_stride, dst_stride, element_size, page_size, src_page_stride, dst_page_stride, num_rows_src, num_rows_dst},
      {unroll, block_quota, check_indices});
}

// ---- the rest ----

/// Whether rows of this size take the fast kernels.
bool can_use_hicache_jit_kernel(
    std::int64_t element_size, Optional<std::int64_t> unroll, Optional<std::int64_t> block_quota,
    Optional<std::int64_t> page_size) {
  Job job{"can_use_hicache_jit_kernel", 1};
  match_options(job, {unroll, block_quota, {}, page_size});
  return element_size > 0 && element_size % 16 == 0;
}

/// For bench/. Launch every transfer this way from now on: zeros keep their defaults; method -1 ends it.
void override_launch(
    std::int64_t method, std::int64_t blocks, std::int64_t threads, std::int64_t stages, std::int64_t stage_bytes) {
  hicache::g_override = {method, blocks, threads, stages, stage_bytes};
}

/// For tests. Write the expression of the kernel that moves rows of one layer into `text`. The GPU need not be
/// present.
void chosen_kernel(
    TensorView text, std::int64_t row_bytes, int num_caches, std::uint32_t num_rows, bool to_host, bool from_host,
    std::uint8_t index_bits, Optional<std::int64_t> block_quota, std::uint64_t host_pool, std::int64_t num_sms,
    std::int64_t max_smem, bool is_hopper) {
  Job job{"chosen_kernel", num_caches};
  const hicache::Rows dense{row_bytes, 0, hicache::kNoPages};
  job.transfer = {.dst = dense, .src = dense, .num_rows = num_rows, .num_layers = 1, .row_bytes = row_bytes};
  job.index_dtype = {kDLInt, index_bits, 1};
  job.to_host = to_host;
  job.from_host = from_host;
  job.block_quota = block_quota;
  job.host_pool = host_pool;
  host::Message expression;
  expression << hicache::choose<hicache::OneLayer>(job, 0, {num_sms, max_smem, is_hopper}).kernel;
  host::RuntimeCheck(
      static_cast<std::size_t>(text.numel()) > expression.size(), "the expression does not fit into the text");
  std::memcpy(text.data_ptr(), expression.c_str(), expression.size() + 1);
}

/// For bench/ and tests. The last launch's method (0 rows, 1 bulk, 2 any), blocks and threads, in 8, 28 and 28 bits.
std::int64_t last_launch() {
  const auto& last = hicache::g_last;
  return last.method << 56 | last.blocks << 28 | last.threads;
}

}  // namespace
