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
using hicache::CacheAddresses;
using hicache::Job;
using hicache::Launch;
using hicache::LayerStrides;
using hicache::Options;
using hicache::PointerTable;
using host::Optional;
using host::TensorView;

using Int = std::int64_t;
using MaybeInt = Optional<std::int64_t>;

host::Deferred<void(const Job&)> transfer_on_cpu{"hicache_cpu.cpp", "transfer_on_cpu"};

/// The addresses of a table's layers from `begin` on, in kernels; sets the job's direction and span. Returns the
/// bitwise or of all.
template <typename Table>
std::uint64_t resolve_layers(Job& job, Table& table, std::uint32_t begin, bool checks) {
  std::uint64_t alignment = 0;
  job.host_span = job.dst[0].view != nullptr ? 0 : hicache::kUnknownSpan;
  const auto resolve = [&](const CacheAddresses& cache, std::uint64_t* to, bool& in_host) {
    hicache::Reachable reachable(job, cache);
    for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
      to[layer] = cache.layers[begin + layer];
      // All addresses of a list are in device memory if one is: one query is enough.
      if (layer == 0 || reachable.was_host() || checks) to[layer] = reachable.resolve(to[layer]);
      alignment |= to[layer];
    }
    if (!reachable.was_host()) return;
    in_host = true;
    if (cache.view != nullptr) job.host_span += cache.span;
  };
  for (int c = 0; c < job.num_caches; ++c) {
    resolve(job.dst[c], table.dst[c], job.to_host);
    resolve(job.src[c], table.src[c], job.from_host);
  }
  return alignment;
}

/// Layers whose addresses are in host memory: they travel with the launches.
void launch_many_layers(Job& job, bool checks) {
  const auto num_layers = job.transfer.num_layers;
  constexpr auto kMost = hicache::ManyLayers::kMaxLayers;
  hicache::ManyLayers table;
  const auto for_each_launch = [&](const auto& use) {
    for (std::uint32_t begin = 0; begin < num_layers; begin += kMost) {
      job.transfer.num_layers = num_layers - begin < kMost ? num_layers - begin : kMost;
      use(resolve_layers(job, table, begin, checks));
    }
  };
  // Find errors in the layers or the kernel of the second launch before the first one.
  if (num_layers > kMost) for_each_launch([&](auto alignment) { hicache::load<hicache::ManyLayers>(job, alignment); });
  for_each_launch([&](auto alignment) { launch_on_device(job, table, alignment); });
}

/// Moves the rows of a job that has been matched.
void transfer(Job& job, bool is_all_layers, const Options& options) {
  if (job.transfer.num_rows == 0 || job.transfer.num_layers == 0) return;
  const bool on_cpu = hicache::is_host(job.device);
  const bool checks = options.checks(on_cpu);
  for (const auto* side : {job.dst, job.src}) {
    for (int c = 0; c < job.num_caches && is_all_layers && !job.has_device_table; ++c) {
      refuse_null(job, side[c]);
      if (on_cpu) hicache::refuse_device_memory(job, side[c]);  // one query for each list is enough
    }
  }
  if (on_cpu) {
    if (checks) hicache::check_on_cpu(job);
    if (checks && is_all_layers) hicache::check_layers_on_cpu(job);
    return transfer_on_cpu(job);
  }

  const host::runtime::DeviceGuard guard(job.device.device_id);
  if (checks) hicache::check_on_device(job, is_all_layers);
  if (!is_all_layers) {
    hicache::OneLayer table{};
    const auto alignment = resolve_layers(job, table, 0, checks);
    return launch_on_device(job, table, alignment);
  }
  if (!job.has_device_table) return launch_many_layers(job, checks);
  // The host does not know where the caches are, and takes the launch of a transfer from or to large pools of the host.
  job.from_host = job.to_host = true;
  job.host_span = hicache::kUnknownSpan;
  hicache::LayerTables table{};
  for (int c = 0; c < job.num_caches; ++c) {
    table.dst[c] = job.dst[c].layers;
    table.src[c] = job.src[c].layers;
  }
  launch_on_device(job, table, 0);  // aligned, as the docstrings ask
}

// ---- one layer ----

/// Arguments of every transfer of one layer.
struct OneLayerCall {
  const TensorView& indices_dst;
  const TensorView& indices_src;
  Options options;
  const Launch* launch = nullptr;
};

void transfer_one_layer(Job&& job, const Cache* dst, const Cache* src, const OneLayerCall& call) {
  match_indices(job, call.indices_dst, call.indices_src);
  match_options(job, call.options);
  match_caches(job, dst, src);
  job.launch = call.launch;
  transfer(job, false, call.options);
}

void transfer_k_and_v(
    const char* op, const TensorView& k_dst, const TensorView& v_dst, const TensorView& k_src, const TensorView& v_src,
    const MaybeInt& element_dim, const OneLayerCall& call) {
  const Cache dst[] = {
      hicache::match_cache(op, "k_cache_dst", k_dst, element_dim),
      hicache::match_cache(op, "v_cache_dst", v_dst, element_dim)};
  const Cache src[] = {
      hicache::match_cache(op, "k_cache_src", k_src, element_dim),
      hicache::match_cache(op, "v_cache_src", v_src, element_dim)};
  transfer_one_layer({.op = op, .num_caches = 2}, dst, src, call);
}

void transfer_hicache_one_layer(
    TensorView k_cache_dst, TensorView v_cache_dst, TensorView indices_dst, TensorView k_cache_src,
    TensorView v_cache_src, TensorView indices_src, MaybeInt element_dim, MaybeInt unroll, MaybeInt block_quota,
    MaybeInt page_size, Optional<bool> check_indices) {
  transfer_k_and_v(
      "transfer_hicache_one_layer", k_cache_dst, v_cache_dst, k_cache_src, v_cache_src, element_dim,
      {indices_dst, indices_src, {unroll, block_quota, page_size, check_indices}});
}

void transfer_hicache_one_layer_mla(
    TensorView cache_dst, TensorView indices_dst, TensorView cache_src, TensorView indices_src, MaybeInt element_dim,
    MaybeInt unroll, MaybeInt block_quota, MaybeInt page_size, Optional<bool> check_indices) {
  constexpr const char* kOp = "transfer_hicache_one_layer_mla";
  const auto dst = hicache::match_cache(kOp, "cache_dst", cache_dst, element_dim);
  const auto src = hicache::match_cache(kOp, "cache_src", cache_src, element_dim);
  transfer_one_layer(
      {.op = kOp, .num_caches = 1}, &dst, &src,
      {indices_dst, indices_src, {unroll, block_quota, page_size, check_indices}});
}

/// For bench/ and tests. K and V of one layer, with this launch in place of the choice.
void launch_one_layer(
    TensorView k_cache_dst, TensorView v_cache_dst, TensorView indices_dst, TensorView k_cache_src,
    TensorView v_cache_src, TensorView indices_src, MaybeInt element_dim, MaybeInt unroll, Int blocks, Int threads,
    Int chunk_rows) {
  const Launch launch{blocks, threads, chunk_rows};
  transfer_k_and_v(
      "launch_one_layer", k_cache_dst, v_cache_dst, k_cache_src, v_cache_src, element_dim,
      {indices_dst, indices_src, {.unroll = unroll}, &launch});
}

// ---- all layers ----

void transfer_all_layers(
    Job&& job, const PointerTable* dst, const PointerTable* src, const TensorView& indices_dst,
    const TensorView& indices_src, const LayerStrides& strides, const Options& options) {
  match_indices(job, indices_dst, indices_src);
  match_options(job, options);
  match_pointers(job, dst, src);
  match_strides(job, strides);
  transfer(job, true, options);
}

void transfer_hicache_all_layer(
    TensorView k_ptr_dst, TensorView v_ptr_dst, TensorView indices_dst, TensorView k_ptr_src, TensorView v_ptr_src,
    TensorView indices_src, Int src_stride, Int dst_stride, MaybeInt element_size, MaybeInt unroll,
    MaybeInt block_quota, MaybeInt page_size, MaybeInt src_page_stride, MaybeInt dst_page_stride, MaybeInt num_rows_src,
    MaybeInt num_rows_dst, Optional<bool> check_indices) {
  const PointerTable dst[] = {{"k_ptr_dst", &k_ptr_dst}, {"v_ptr_dst", &v_ptr_dst}};
  const PointerTable src[] = {{"k_ptr_src", &k_ptr_src}, {"v_ptr_src", &v_ptr_src}};
  transfer_all_layers(
      {.op = "transfer_hicache_all_layer", .num_caches = 2}, dst, src, indices_dst, indices_src,
      {element_size,
       page_size,
       {src_stride, src_page_stride, num_rows_src},
       {dst_stride, dst_page_stride, num_rows_dst}},
      {unroll, block_quota, page_size, check_indices});
}

void transfer_hicache_all_layer_mla(
    TensorView ptr_dst, TensorView indices_dst, TensorView ptr_src, TensorView indices_src, Int src_stride,
    Int dst_stride, MaybeInt element_size, MaybeInt unroll, MaybeInt block_quota, MaybeInt page_size,
    MaybeInt src_page_stride, MaybeInt dst_page_stride, MaybeInt num_rows_src, MaybeInt num_rows_dst,
    Optional<bool> check_indices) {
  const PointerTable dst{"ptr_dst", &ptr_dst};
  const PointerTable src{"ptr_src", &ptr_src};
  transfer_all_layers(
      {.op = "transfer_hicache_all_layer_mla", .num_caches = 1}, &dst, &src, indices_dst, indices_src,
      {element_size,
       page_size,
       {src_stride, src_page_stride, num_rows_src},
       {dst_stride, dst_page_stride, num_rows_dst}},
      {unroll, block_quota, page_size, check_indices});
}

// ---- the rest ----

/// Whether rows of this size take the fast kernel.
bool can_use_hicache_jit_kernel(Int element_size, MaybeInt unroll, MaybeInt block_quota, MaybeInt page_size) {
  Job job{.op = "can_use_hicache_jit_kernel", .num_caches = 1};
  match_options(job, {unroll, block_quota, page_size, {}});
  return element_size > 0 && element_size % 16 == 0;
}

/// For tests. Write the expression of the kernel that moves rows of one layer into `text`. The GPU need not be present.
void chosen_kernel(TensorView text, Int row_bytes, int num_caches, std::uint8_t index_bits) {
  Job job{.op = "chosen_kernel", .num_caches = num_caches};
  const hicache::Rows dense{row_bytes, 0, hicache::kNoPages};
  job.transfer = {.dst = dense, .src = dense, .num_rows = 1, .num_layers = 1};
  job.row_bytes = row_bytes;
  job.index_dtype = {kDLInt, index_bits, 1};
  host::Message expression;
  expression << hicache::choose_kernel<hicache::OneLayer>(job, hicache::Work::of(job, 0));
  host::RuntimeCheck(
      static_cast<std::size_t>(text.numel()) > expression.size(), "the expression does not fit into the text");
  std::memcpy(text.data_ptr(), expression.c_str(), expression.size() + 1);
}

/// For bench/ and tests. This thread's last launch: blocks, rows of a chunk and threads, in 32, 13 and 11 bits.
Int last_launch() {
  return hicache::g_last_launch;
}

}  // namespace
