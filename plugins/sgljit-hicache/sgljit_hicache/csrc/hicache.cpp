/// \file hicache.cpp
/// \brief The host part: the functions that Python calls, from arguments to a copy on the CPU or a launch.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/launch.h>
#include <sgl_kernel/message.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>

#include <cstdint>
#include <cstring>

#include "hicache_job.h"
#include "hicache_launch.h"
#include "hicache_match.h"
#include "hicache_memory.h"
#include "hicache_params.h"

namespace {

using hicache::Cache, hicache::Job, hicache::Options;
using host::Optional, host::TensorView;

using Int = std::int64_t;
using MaybeInt = Optional<std::int64_t>;

host::Deferred<void(const Job&)> transfer_on_cpu{"hicache_cpu.cpp", "transfer_on_cpu"};
host::Deferred<void(const Job&)> check_on_cpu{"hicache_check.cpp", "check_on_cpu"};
host::Deferred<void(const Job&)> check_layers_on_cpu{"hicache_check_layers.cpp", "check_layers_on_cpu"};

/// Checked mode: the indices and, of all layers, that none writes what another writes or reads.
void check(const Job& job) {
  check_on_cpu(job);
  if (job.dst->view == nullptr) check_layers_on_cpu(job);
}

/// Checked mode on a device: the host checks copies of what is in device memory, and waits for them.
void check_on_device(const Job& job) {
  const auto stream = host::LaunchKernel::resolve_device(job.device);
  int is_capturing = 0;
  host::driver::check(host::driver::api().StreamIsCapturing(stream, &is_capturing));
  host::RuntimeCheck(
      is_capturing == 0, job.op,
      ": indices cannot be checked while the stream is being captured, because the host waits for the answer: pass "
      "check_indices=False");

  host::Tensor copies[6];  // of the indices and the addresses
  auto* next = copies;
  const auto copy_to_host = [&](const void* from, Int bytes) {
    *next = host::ffi::allocate({bytes}, {kDLUInt, 8, 1}, {kDLCPU, 0});
    const auto& driver = host::driver::api();
    host::driver::check(driver.MemcpyDtoHAsync(next->data_ptr(), from, static_cast<std::size_t>(bytes), stream));
    host::driver::check(driver.StreamSynchronize(stream));
    return (next++)->data_ptr();
  };
  auto copy = job;
  const auto index_bytes = static_cast<Int>(job.transfer.num_rows) * job.index_dtype.bits / 8;
  copy.transfer.dst_indices = copy_to_host(job.transfer.dst_indices, index_bytes);
  copy.transfer.src_indices = copy_to_host(job.transfer.src_indices, index_bytes);
  copy.for_each_cache([&](Cache& cache) {
    if (!job.has_device_table) return;
    const auto* const table = copy_to_host(cache.layers, job.transfer.num_layers * Int{8});
    cache.layers = static_cast<const std::uint64_t*>(table);
    check_addresses(copy, cache, word_of(job, 0));
  });
  check(copy);
}

/// The addresses of a launch's layers, from `begin` on, in kernels; adds to the job's span and, bitwise, to
/// `alignment`. Returns whether they are in host memory.
bool resolve(
    Job& job, const Cache& cache, std::uint32_t begin, bool checks, std::uint64_t* to, std::uint64_t& alignment) {
  hicache::Reachable reachable{job, cache};
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    to[layer] = cache.layers[begin + layer];
    // All addresses of a list are in device memory if one is: one query is enough.
    if (layer == 0 || reachable.was_host() || checks) to[layer] = reachable.resolve(to[layer]);
    alignment |= to[layer];
  }
  if (reachable.was_host() && cache.view != nullptr) job.host_span += cache.span;
  return reachable.was_host();
}

/// Layers whose addresses the host knows: they travel with the launches, up to `kMost` with each.
template <std::uint32_t kMost>
void launch_layers(Job& job, bool checks) {
  const auto num_layers = job.transfer.num_layers;
  hicache::Layers<kMost> table;
  const auto run = [&](bool launches) {
    for (std::uint32_t begin = 0; begin < num_layers; begin += kMost) {
      job.transfer.num_layers = num_layers - begin < kMost ? num_layers - begin : kMost;
      std::uint64_t alignment = 0;
      for (int c = 0; c < job.num_caches; ++c) {
        if (resolve(job, job.dst[c], begin, checks, table.dst[c], alignment)) job.to_host = true;
        if (resolve(job, job.src[c], begin, checks, table.src[c], alignment)) job.from_host = true;
      }
      const auto work = hicache::Work::of(job, alignment);
      if (launches) launch_on_device(job, work, table);
      else static_cast<void>(hicache::choose_kernel<decltype(table)>(job, work).on(job.device.device_id));
    }
  };
  // Find errors in the layers or the kernel of the second launch before the first one.
  if (num_layers > kMost) run(false);
  run(true);
}

/// Moves the rows of a job that has been matched.
void transfer(Job& job) {
  if (job.transfer.num_rows == 0 || job.transfer.num_layers == 0) return;
  const bool is_one_layer = job.dst->view != nullptr;
  const bool on_cpu = hicache::is_host(job.device);
  const bool checks = job.options.checks(on_cpu);
  if (!is_one_layer && !job.has_device_table) {
    job.for_each_cache([&](const Cache& cache) {
      refuse_null(job, cache);
      if (on_cpu) hicache::refuse_device_memory(job, cache);  // one query for each list is enough
    });
  }
  if (on_cpu) {
    if (checks) check(job);
    return transfer_on_cpu(job);
  }

  const host::runtime::DeviceGuard guard(job.device.device_id);
  if (checks) check_on_device(job);
  if (is_one_layer) return launch_layers<1>(job, checks);
  if (!job.has_device_table) return launch_layers<hicache::kMaxLayers>(job, checks);
  // The host does not know where the caches are, and takes the launch of a transfer from or to large pools of the host.
  job.from_host = job.to_host = true;
  hicache::LayerTables table{};
  for (int c = 0; c < job.num_caches; ++c) {
    table.dst[c] = job.dst[c].layers;
    table.src[c] = job.src[c].layers;
  }
  launch_on_device(job, hicache::Work::of(job, 0), table);  // aligned, as the docstrings ask
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
// By the number of caches, less one.
constexpr Names kOneLayer[] = {
    {"transfer_hicache_one_layer_mla", {"cache_dst"}, {"cache_src"}},
    {"transfer_hicache_one_layer", {"k_cache_dst", "v_cache_dst"}, {"k_cache_src", "v_cache_src"}}};
constexpr Names kAllLayers[] = {
    {"transfer_hicache_all_layer_mla", {"ptr_dst"}, {"ptr_src"}},
    {"transfer_hicache_all_layer", {"k_ptr_dst", "v_ptr_dst"}, {"k_ptr_src", "v_ptr_src"}}};

template <int kCaches>
Job job_of(const Names (&names_of)[2], const Side<kCaches>& dst, const Side<kCaches>& src, const Options& options) {
  const auto& names = names_of[kCaches - 1];
  Job job{.op = names.op, .num_caches = kCaches, .options = options};
  for (int c = 0; c < kCaches; ++c) {
    job.dst[c] = {names.dst[c], &dst.caches[c]};
    job.src[c] = {names.src[c], &src.caches[c]};
  }
  match_indices(job, dst.indices, src.indices);
  match_options(job);
  return job;
}

template <int kCaches>
void transfer_one_layer(
    const Side<kCaches>& dst, const Side<kCaches>& src, MaybeInt element_dim, const Options& options) {
  auto job = job_of(kOneLayer, dst, src, options);
  match_caches(job, dst.indices, src.indices, element_dim);
  transfer(job);
}

template <int kCaches>
void transfer_all_layers(
    const Side<kCaches>& dst, const Side<kCaches>& src, const hicache::LayerStrides& strides, const Options& options) {
  auto job = job_of(kAllLayers, dst, src, options);
  match_pointers(job);
  match_strides(job, strides);
  transfer(job);
}

/// For bench/ and tests. K and V of one layer, with this launch in place of the choice.
void launch_one_layer(
    const Side<2>& dst, const Side<2>& src, MaybeInt element_dim, MaybeInt unroll, const hicache::Launch& launch) {
  const auto group_rows = launch.group_rows == 0 ? 1 : launch.group_rows;
  host::RuntimeCheck(
      launch.chunk_rows >= 0 && launch.chunk_rows <= hicache::kMaxChunkRows && group_rows > 0 &&
          launch.chunk_rows % group_rows == 0,
      "launch_one_layer: a chunk must be whole groups: expected 0 to ", hicache::kMaxChunkRows,
      " rows in multiples of ", group_rows, ", got ", launch.chunk_rows);
  auto job = job_of(kOneLayer, dst, src, {.unroll = unroll});
  match_caches(job, dst.indices, src.indices, element_dim);
  job.launch = &launch;
  transfer(job);
}

/// Whether rows of this size take the fast kernel.
bool can_use_hicache_jit_kernel(Int element_size, MaybeInt unroll, MaybeInt block_quota, MaybeInt page_size) {
  hicache::match_options(
      {.op = "can_use_hicache_jit_kernel", .num_caches = 1, .options = {unroll, block_quota, page_size, {}}});
  return element_size > 0 && element_size % 16 == 0;
}

/// For tests. A transfer of scattered rows of one layer to the host, of which nothing is there.
Job scattered_rows(Int row_bytes, int num_caches, Int num_rows, MaybeInt block_quota) {
  Job job{.op = "scattered_rows", .num_caches = num_caches, .options = {.block_quota = block_quota}, .to_host = true};
  job.dst->rows.row_stride = job.src->rows.row_stride = job.row_bytes = row_bytes;
  job.transfer.num_rows = static_cast<std::uint32_t>(num_rows);
  job.transfer.num_layers = 1;
  return job;
}

/// For tests. Write the expression of the kernel that moves scattered rows to the host into `text`. The GPU need not be
/// present.
void chosen_kernel(TensorView text, Int row_bytes, int num_caches, std::uint8_t index_bits, MaybeInt block_quota) {
  auto job = scattered_rows(row_bytes, num_caches, 1, block_quota);
  job.index_dtype = {kDLInt, index_bits, 1};
  host::Message expression;
  expression << hicache::choose_kernel<hicache::Layers<1>>(job, hicache::Work::of(job, 0));
  host::RuntimeCheck(
      static_cast<std::size_t>(text.numel()) > expression.size(), "the expression does not fit into the text");
  std::memcpy(text.data_ptr(), expression.c_str(), expression.size() + 1);
}

void write_launch(TensorView to, const hicache::Launch& launch) {
  const Int fields[] = {launch.blocks, launch.threads, launch.chunk_rows, launch.group_rows};
  const auto dtype = to.dtype();
  const bool is_int64 = dtype.code == kDLInt && dtype.bits == 64 && dtype.lanes == 1;
  host::RuntimeCheck(
      is_int64 && to.numel() == 4 && to.device().device_type == kDLCPU, "a launch is four int64 on the CPU");
  std::memcpy(to.data_ptr(), fields, sizeof(fields));
}

/// For tests. Write the launch of scattered rows to caches in host memory, of `host_span` bytes in all, into `launch`:
/// blocks, threads, rows of a chunk and of a group. The GPU need not be present.
void chosen_launch(
    TensorView launch, Int row_bytes, int num_caches, Int num_rows, Int host_span, MaybeInt block_quota) {
  auto job = scattered_rows(row_bytes, num_caches, num_rows, block_quota);
  job.host_span = host_span;
  write_launch(launch, launch_on_the_link(job, hicache::Work::of(job, 0)));
}

/// For bench/ and tests. Write this thread's last launch into `launch`, as `chosen_launch` does.
void last_launch(TensorView launch) {
  write_launch(launch, hicache::g_last_launch);
}

}  // namespace

SGL_EXPORT(transfer_hicache_one_layer, (transfer_one_layer<2>))
SGL_EXPORT(transfer_hicache_one_layer_mla, (transfer_one_layer<1>))
SGL_EXPORT(transfer_hicache_all_layer, (transfer_all_layers<2>))
SGL_EXPORT(transfer_hicache_all_layer_mla, (transfer_all_layers<1>))
SGL_EXPORT(can_use_hicache_jit_kernel, (can_use_hicache_jit_kernel))
SGL_EXPORT(launch_one_layer, (launch_one_layer))
SGL_EXPORT(last_launch, (last_launch))
SGL_EXPORT(chosen_kernel, (chosen_kernel))
SGL_EXPORT(chosen_launch, (chosen_launch))
