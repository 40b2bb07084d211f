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

using hicache::Job, hicache::Options;
using host::Optional, host::TensorView;

using Int = std::int64_t;
using MaybeInt = Optional<std::int64_t>;

host::Deferred<void(const Job&)> transfer_on_cpu{"hicache_cpu.cpp", "transfer_on_cpu"};

/// The addresses of a table's layers from `begin` on, in kernels; sets the job's direction and span. Returns the
/// bitwise or of all.
template <typename Table>
std::uint64_t resolve_layers(Job& job, Table& table, std::uint32_t begin, bool checks) {
  std::uint64_t alignment = 0;
  job.host_span = job.dst[0].view != nullptr ? 0 : hicache::kUnknownSpan;
  const auto resolve = [&](const hicache::CacheAddresses& cache, std::uint64_t* to, bool& in_host) {
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
void transfer(Job& job, const Options& options) {
  if (job.transfer.num_rows == 0 || job.transfer.num_layers == 0) return;
  const bool is_one_layer = job.dst[0].view != nullptr;
  const bool on_cpu = hicache::is_host(job.device);
  const bool checks = options.checks(on_cpu);
  if (!is_one_layer && !job.has_device_table) {
    job.for_each_cache([&](const hicache::CacheAddresses& cache) {
      refuse_null(job, cache);
      if (on_cpu) hicache::refuse_device_memory(job, cache);  // one query for each list is enough
    });
  }
  if (on_cpu) {
    if (checks) hicache::check_on_cpu(job);
    if (checks && !is_one_layer) hicache::check_layers_on_cpu(job);
    return transfer_on_cpu(job);
  }

  const host::runtime::DeviceGuard guard(job.device.device_id);
  if (checks) hicache::check_on_device(job, !is_one_layer);
  if (is_one_layer) {
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

// ---- what Python calls: a struct takes an argument for each of its fields ----

/// One side of a transfer: its caches, or for all layers the tables of their addresses, and its indices.
template <int kCaches>
struct Side {
  TensorView caches[kCaches];
  TensorView indices;
  SGL_FIELDS(caches, indices)
};

/// An op and its arguments, by their names in Python.
struct Names {
  const char* op;
  const char* dst[2];
  const char* src[2];
};
// A line for K and V, and one for a single cache.
template <int kCaches>
constexpr Names kOneLayer{"transfer_hicache_one_layer", {"k_cache_dst", "v_cache_dst"}, {"k_cache_src", "v_cache_src"}};
template <>
constexpr Names kOneLayer<1>{"transfer_hicache_one_layer_mla", {"cache_dst"}, {"cache_src"}};
template <int kCaches>
constexpr Names kAllLayers{"transfer_hicache_all_layer", {"k_ptr_dst", "v_ptr_dst"}, {"k_ptr_src", "v_ptr_src"}};
template <>
constexpr Names kAllLayers<1>{"transfer_hicache_all_layer_mla", {"ptr_dst"}, {"ptr_src"}};

template <int kCaches>
Job job_of(const Names& names, const Side<kCaches>& dst, const Side<kCaches>& src, const Options& options) {
  Job job{.op = names.op, .num_caches = kCaches};
  for (int c = 0; c < kCaches; ++c) {
    job.dst[c] = {names.dst[c], &dst.caches[c]};
    job.src[c] = {names.src[c], &src.caches[c]};
  }
  match_indices(job, dst.indices, src.indices);
  match_options(job, options);
  return job;
}

template <int kCaches>
void transfer_one_layer(
    const Side<kCaches>& dst, const Side<kCaches>& src, MaybeInt element_dim, const Options& options) {
  auto job = job_of(kOneLayer<kCaches>, dst, src, options);
  match_caches(job, element_dim);
  transfer(job, options);
}

template <int kCaches>
void transfer_all_layers(
    const Side<kCaches>& dst, const Side<kCaches>& src, const hicache::LayerStrides& strides, const Options& options) {
  auto job = job_of(kAllLayers<kCaches>, dst, src, options);
  match_pointers(job);
  match_strides(job, strides, options.page_size);
  transfer(job, options);
}

/// For bench/ and tests. K and V of one layer, with this launch in place of the choice.
void launch_one_layer(
    const Side<2>& dst, const Side<2>& src, MaybeInt element_dim, MaybeInt unroll, Int blocks, Int threads,
    Int chunk_rows) {
  const Options options{.unroll = unroll};
  const hicache::Launch launch{blocks, threads, chunk_rows};
  auto job =
      job_of({"launch_one_layer", {"k_cache_dst", "v_cache_dst"}, {"k_cache_src", "v_cache_src"}}, dst, src, options);
  match_caches(job, element_dim);
  job.launch = &launch;
  transfer(job, options);
}

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
