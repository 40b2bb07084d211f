#pragma once

#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

#include "hicache_job.h"
#include "hicache_memory.h"

/// \file hicache_match.h
/// \brief The checks of a call: one set of rules and error texts for every device. Host only.

namespace hicache {

using host::kTensorMatchError;

/// A cache as rows: `num_rows` of `row_elements`, in pages if `rows.page_size` is not `kNoPages`.
struct Cache {
  const CacheAddresses* at;
  std::int64_t num_rows = 1;
  std::int64_t row_elements = 0;
  Rows rows = {0, 0, kNoPages};

  host::MemoryRows memory(std::int64_t row_bytes) const {
    return memory_of(rows, at->address, num_rows, row_bytes);
  }
};

/// A cache of any rank: the last dimensions, `element_dim` elements together, are a row; the others count rows.
inline Cache match_cache(const Job& job, CacheAddresses& at, const host::Optional<std::int64_t>& element_dim) {
  const auto& view = *at.view;
  at.address = reinterpret_cast<std::uint64_t>(view.data_ptr());
  at.layers = &at.address;
  Cache cache{&at};
  const auto require = [&](bool holds, const char* rule) {
    if (!holds) refuse(kTensorMatchError, job.op, at.name, " must have ", rule, ": ", view);
  };
  const auto bits = static_cast<std::int64_t>(view.dtype().bits) * view.dtype().lanes;
  require(view.ndim() >= 2, "at least two dimensions, rows and elements");
  require(bits % 8 == 0, "elements of whole bytes");

  auto i = view.ndim() - 1;
  cache.row_elements = view.size(i);
  bool is_dense = cache.row_elements <= 1 || view.stride(i) == 1;
  while (element_dim.has_value() && i > 1 && cache.row_elements < *element_dim) {
    --i;
    is_dense = is_dense && (view.size(i) == 1 || view.stride(i) == cache.row_elements);
    cache.row_elements *= view.size(i);
  }
  require(is_dense, "rows without gaps between their elements");
  if (cache.row_elements != element_dim.value_or(cache.row_elements))
    refuse(
        kTensorMatchError, job.op, at.name, " has rows of ", cache.row_elements, " elements, but element_dim is ",
        *element_dim, ": ", view);

  // The dimensions before the row, from the last to the first: one stride for all of them, or two.
  std::int64_t stride = cache.row_elements;
  std::int64_t page_size = 0;
  std::int64_t page_stride = 0;
  while (--i >= 0) {
    const auto size = view.size(i);
    if (size != 1 && size != 0 && cache.num_rows > 1) {
      if (page_size == 0 && view.stride(i) != cache.num_rows * stride) {
        page_size = cache.num_rows;
        page_stride = view.stride(i);
      }
      const bool fits = page_size == 0 || view.stride(i) == cache.num_rows / page_size * page_stride;
      require(fits, "its rows at one stride, or in pages at two");
    } else if (size > 1) {
      stride = view.stride(i);
    }
    cache.num_rows *= size;
    if (size == 0) return cache;
  }
  cache.rows.row_stride = stride * bits / 8;
  if (page_size == 0) return cache;
  host::RuntimeCheck(cache.num_rows < kNoPages, job.op, ": ", at.name, " has too many rows in pages: ", view);
  cache.rows = {cache.rows.row_stride, page_stride * bits / 8, static_cast<std::uint32_t>(page_size)};
  return cache;
}

[[noreturn, gnu::cold]] inline void refuse_pair(
    const char* kind, const char* op, const Cache& a, const Cache& b, const char* rule) {
  refuse(kind, op, a.at->name, " and ", b.at->name, ' ', rule, *a.at->view, " and ", *b.at->view);
}

/// K and V of one side must have the same layout: one offset serves both.
inline void match_pair(const char* op, const Cache& k, const Cache& v) {
  if (k.num_rows != v.num_rows) refuse_pair(kTensorMatchError, op, k, v, "must have the same number of rows: ");
  if (k.rows != v.rows && k.num_rows > 1) refuse_pair(kTensorMatchError, op, k, v, "must have the same strides: ");
}

/// Destinations may overlap only their own source, row for row. Returns whether they do.
inline bool match_overlaps(const Job& job, const Cache* dst, const Cache* src) {
  bool is_in_place = false;
  for (int c = 0; c < job.num_caches; ++c) {
    const auto written = dst[c].memory(job.row_bytes);
    if (host::rows_overlap(written))
      refuse("ValueError", job.op, "rows of ", dst[c].at->name, " overlap each other: ", *dst[c].at->view);
    for (int d = 0; d < job.num_caches; ++d) {
      if (d > c && host::rows_meet(written, dst[d].memory(job.row_bytes)))
        refuse_pair("ValueError", job.op, dst[c], dst[d], "overlap: ");
      if (!host::rows_meet(written, src[d].memory(job.row_bytes))) continue;
      is_in_place = c == d && dst[c].at->address == src[d].at->address && dst[c].rows == src[d].rows;
      if (!is_in_place) refuse_pair("ValueError", job.op, dst[c], src[d], "overlap: ");
    }
  }
  return is_in_place;
}

/// Both lists of indices; sets the transfer's indices and length, and the job's device.
inline void match_indices(Job& job, const host::TensorView& indices_dst, const host::TensorView& indices_src) {
  auto length = host::SymbolicSize{"number of indices"};
  auto dtype = host::SymbolicDType{};
  auto device = host::SymbolicDevice{};
  host::TensorMatcher({length})
      .with_dtype<std::int32_t, std::int64_t>(dtype)
      .with_device<kDLCUDA, kDLCPU, kDLCUDAHost>(device)
      .verify(indices_dst, "indices_dst")
      .verify(indices_src, "indices_src");
  host::RuntimeCheck(length.unwrap() < INT32_MAX, job.op, ": too many indices: ", length.unwrap());
  job.transfer.num_rows = static_cast<std::uint32_t>(length.unwrap());
  job.transfer.dst_indices = indices_dst.data_ptr();
  job.transfer.src_indices = indices_src.data_ptr();
  job.index_dtype = dtype.unwrap();
  job.device = device.unwrap();
}

inline void match_options(Job& job, const Options& options) {
  const auto unroll = options.unroll.value_or(1);
  if (unroll < 1 || unroll > 32 || (unroll & (unroll - 1)) != 0)
    refuse("ValueError", job.op, "unroll must be 1, 2, 4, 8, 16 or 32, got ", unroll);
  const auto quota = options.block_quota.value_or(1);
  if (quota < 1 || quota > INT32_MAX) refuse("ValueError", job.op, "block_quota must be at least 1, got ", quota);
  const auto page_size = options.page_size.value_or(1);
  if (page_size < 1 || page_size >= kNoPages)
    refuse("ValueError", job.op, "page_size must be at least 1 and less than ", kNoPages, ", got ", page_size);
  job.unroll = options.unroll;
  job.block_quota = options.block_quota;
  job.run_rows = page_size;
}

/// \brief Check all caches of one layer; sets the rows and the addresses of both sides.
inline void match_caches(Job& job, const host::Optional<std::int64_t>& element_dim) {
  Cache caches[4];
  auto* matched = caches;
  job.for_each_cache([&](CacheAddresses& at) { *matched++ = match_cache(job, at, element_dim); });
  const auto* const dst = caches;
  const auto* const src = caches + job.num_caches;
  const auto& first = *dst->at->view;
  const auto element_bytes = static_cast<std::int64_t>(first.dtype().bits) * first.dtype().lanes / 8;
  auto& t = job.transfer;
  t.num_layers = 1;
  job.row_bytes = dst->row_elements * element_bytes;
  for (const auto* cache = caches; cache != matched; ++cache) {
    const auto* name = cache->at->name;
    const auto& view = *cache->at->view;
    if (!host::operator==(view.dtype(), first.dtype()))
      refuse(
          kTensorMatchError, job.op, "the dtype differs: ", dst->at->name, " and ", name, " are ", first, " and ",
          view);
    if (cache->row_elements != dst->row_elements)
      refuse(
          kTensorMatchError, job.op, "the row size differs: ", dst->at->name, " has rows of ", job.row_bytes,
          " bytes, ", name, " of ", cache->row_elements * element_bytes, ": ", first, " and ", view);
    match_device(job, view.device(), name, " is on ");
    if (!is_host(view.device()) && view.device().device_type != kDLCUDA && view.device().device_type != kDLCUDAManaged)
      refuse(kTensorMatchError, job.op, name, " must be on a CUDA device or the CPU: ", view);
  }
  if (job.row_bytes == 0) t.num_rows = 0;  // nothing to do
  for (const auto* side : {dst, src}) {
    if (job.num_caches == 2) match_pair(job.op, side[0], side[1]);
    if (t.num_rows > 0 && side->num_rows == 0)
      refuse(
          "IndexError", job.op, "there are ", t.num_rows, " indices, but ", side->at->name,
          " has no rows: ", *side->at->view);
  }
  job.dst_rows = dst->num_rows;
  job.src_rows = src->num_rows;
  t.dst = dst->rows;
  t.src = src->rows;
  matched = caches;
  job.for_each_cache([&](CacheAddresses& at) {
    const auto memory = (matched++)->memory(job.row_bytes);
    const auto span = memory.outer.extent() + memory.inner.extent() + memory.width;
    at.span = span > 0 ? span : 1;
  });
  job.is_in_place = match_overlaps(job, dst, src);
}

/// Refuse null addresses: on the CPU one would end the process, on a device the context.
inline void refuse_null(const Job& job, const CacheAddresses& cache) {
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    if (cache.layers[layer] == 0)
      refuse("ValueError", job.op, cache.name, "[", layer, "] is a null address: layer ", layer, " has no cache there");
  }
}

/// \brief Check the addresses of all layers; sets them and their number.
inline void match_pointers(Job& job) {
  auto num_layers = host::SymbolicSize{"number of layers"};
  auto device = host::SymbolicDevice{};
  job.for_each_cache([&](CacheAddresses& table) {
    host::TensorMatcher({num_layers})  // addresses, one for each layer
        .with_dtype<std::uint64_t, std::int64_t>()
        .with_device<kDLCUDA, kDLCPU, kDLCUDAHost>(device)
        .verify(*table.view, table.name);
    table = {table.name, nullptr, static_cast<const std::uint64_t*>(table.view->data_ptr())};
  });
  host::RuntimeCheck(num_layers.unwrap() < INT32_MAX, job.op, ": too many layers: ", num_layers.unwrap());
  job.transfer.num_layers = static_cast<std::uint32_t>(num_layers.unwrap());
  job.has_device_table = !is_host(device.unwrap());
  match_device(job, device.unwrap(), "the addresses", " on ");
}

/// \brief The layout of all layers, as Python passes it; each array has that of the source first.
struct LayerStrides {
  std::int64_t row[2];
  host::Optional<std::int64_t> element_size;
  host::Optional<std::int64_t> page[2];
  host::Optional<std::int64_t> num_rows[2];
  SGL_FIELDS(row, element_size, page, num_rows)
};

inline void match_strides(Job& job, const LayerStrides& strides, const host::Optional<std::int64_t>& page_size) {
  const auto [src_stride, dst_stride] = strides.row;
  auto& t = job.transfer;
  if (!strides.element_size.has_value() && src_stride != dst_stride)
    refuse(
        "ValueError", job.op, "element_size is needed if the strides differ: ", src_stride, " bytes at the source, ",
        dst_stride, " at the destination");
  job.row_bytes = strides.element_size.value_or(dst_stride);
  if (job.row_bytes < 1) refuse("ValueError", job.op, "element_size must be at least 1 byte, got ", job.row_bytes);
  const auto match_side = [&](int i, const char* side, const char* rows_name, Rows& rows, std::int64_t& num_rows) {
    const auto stride = strides.row[i];
    const auto page_stride = strides.page[i].value_or(0);
    if (stride < 0 || page_stride < 0)
      refuse("ValueError", job.op, "the strides of the ", side, " must not be negative");
    if (strides.page[i].has_value() && !page_size.has_value())
      refuse("ValueError", job.op, "the page stride of the ", side, " needs a page_size");
    const bool is_paged = strides.page[i].has_value() && page_stride != *page_size * stride;
    rows = is_paged ? Rows{stride, page_stride, static_cast<std::uint32_t>(*page_size)} : Rows{stride, 0, kNoPages};
    num_rows = strides.num_rows[i].value_or(kUnknownRows);
    if (num_rows < 0) refuse("ValueError", job.op, rows_name, " must not be negative, got ", num_rows);
  };
  match_side(0, "source", "num_rows_src", t.src, job.src_rows);
  match_side(1, "destination", "num_rows_dst", t.dst, job.dst_rows);
  const bool rows_fit = t.dst.row_stride >= job.row_bytes || t.dst.page_size == 1;
  const bool pages_fit =
      t.dst.page_size == kNoPages || t.dst.page_stride >= (t.dst.page_size - 1) * t.dst.row_stride + job.row_bytes;
  if ((!rows_fit || !pages_fit) && t.num_rows > 1)
    refuse(
        "ValueError", job.op, "rows of the destination overlap each other: rows of ", job.row_bytes, " bytes are ",
        t.dst.row_stride, " bytes apart", t.dst.page_size == kNoPages ? "" : ", or their pages overlap");
  // Where the rows of a layer are neighbours on both sides, the order layer by layer stays within fewer pages of
  // memory; if all layers of a row are neighbours, the order row by row does.
  const auto is_dense = [&](const Rows& rows) {
    return rows.page_size == kNoPages && rows.row_stride < 2 * job.row_bytes;
  };
  t.by_layer = is_dense(t.dst) && is_dense(t.src);
}

}  // namespace hicache
