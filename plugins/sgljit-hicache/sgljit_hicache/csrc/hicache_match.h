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

/// Sets the addresses and rows of a cache of any rank: the last dimensions, `element_dim` elements together, are a row;
/// the others count rows. Returns the bytes of a row.
inline std::int64_t match_cache(const char* op, Cache& cache, const host::Optional<std::int64_t>& element_dim) {
  const auto& view = *cache.view;
  cache.address = reinterpret_cast<std::uint64_t>(view.data_ptr());
  cache.layers = &cache.address;
  cache.num_rows = 1;
  const auto require = [&](bool holds, const char* rule) {
    if (!holds) refuse(kTensorMatchError, op, cache.name, " must have ", rule, ": ", view);
  };
  const auto element_bytes = static_cast<std::int64_t>(host::dtype_bytes(view.dtype()));
  require(view.ndim() >= 2, "at least two dimensions, rows and elements");
  require(view.dtype().bits * view.dtype().lanes % 8 == 0, "elements of whole bytes");

  auto i = view.ndim() - 1;
  auto elements = view.size(i);
  bool is_dense = elements <= 1 || view.stride(i) == 1;
  while (element_dim.has_value() && i > 1 && elements < *element_dim) {
    --i;
    is_dense = is_dense && (view.size(i) == 1 || view.stride(i) == elements);
    elements *= view.size(i);
  }
  require(is_dense, "rows without gaps between their elements");
  if (elements != element_dim.value_or(elements))
    refuse(
        kTensorMatchError, op, cache.name, " has rows of ", elements, " elements, but element_dim is ", *element_dim,
        ": ", view);

  // The dimensions before the row, from the last to the first, as one or as two: rows, or rows of a page and pages.
  host::RowDimension dimensions[2] = {{1, elements}, {1, 0}};
  auto* last = dimensions;
  while (--i >= 0) {
    const auto size = view.size(i);
    cache.num_rows *= size;
    if (size == 0) break;
    if (size == 1) continue;
    const bool is_next = last->count > 1 && view.stride(i) != last->count * last->stride;
    require(!is_next || last == dimensions, "its rows at one stride, or in pages at two");
    if (is_next) ++last;
    if (last->count == 1) last->stride = view.stride(i);
    last->count *= size;
  }
  const auto [rows, pages] = dimensions;
  cache.rows.row_stride = rows.stride * element_bytes;
  if (pages.count > 1) {
    host::RuntimeCheck(cache.num_rows < kNoPages, op, ": ", cache.name, " has too many rows in pages: ", view);
    cache.rows.page_stride = pages.stride * element_bytes;
    cache.rows.page_size = static_cast<std::uint32_t>(rows.count);
  }
  return elements * element_bytes;
}

[[noreturn, gnu::cold]] inline void refuse_pair(
    const char* kind, const char* op, const Cache& a, const Cache& b, const char* rule) {
  refuse(kind, op, a.name, " and ", b.name, ' ', rule, *a.view, " and ", *b.view);
}

[[noreturn, gnu::cold]] inline void refuse_overlap(const char* op, const Cache& a, const Cache& b) {
  refuse(
      "ValueError", op, a.name, " and ", b.name, " overlap: ", *a.view, " and ", *b.view,
      ". Rows with different strides must not overlap, and rows that cannot be proven disjoint count as overlapping");
}

/// Destinations may overlap only their own source, row for row. Returns whether they do. Indices are read while rows
/// are written, after they have been checked: they may not lie in a destination either.
inline bool match_overlaps(const Job& job, const host::TensorView& indices_dst, const host::TensorView& indices_src) {
  bool is_in_place = false;
  const auto refuse_indices_in = [&](const Cache& dst, const host::MemoryRows& written, const auto& indices,
                                     const char* name) {
    const host::MemoryRows read(indices.data_ptr(), indices.numel() * std::int64_t{indices.dtype().bits / 8});
    if (host::rows_meet(written, read)) [[unlikely]]
      refuse(
          "ValueError", job.op, name, " and ", dst.name, " overlap: a write of a row would change indices while they ",
          "are read: ", indices, " and ", *dst.view);
  };
  for (int c = 0; c < job.num_caches; ++c) {
    const auto& dst = job.dst[c];
    const auto written = dst.memory(job.row_bytes);
    if (host::rows_overlap(written))
      refuse("ValueError", job.op, "rows of ", dst.name, " overlap each other: ", *dst.view);
    refuse_indices_in(dst, written, indices_dst, "indices_dst");
    refuse_indices_in(dst, written, indices_src, "indices_src");
    for (int d = 0; d < job.num_caches; ++d) {
      if (d > c && host::rows_meet(written, job.dst[d].memory(job.row_bytes))) refuse_overlap(job.op, dst, job.dst[d]);
      if (!host::rows_meet(written, job.src[d].memory(job.row_bytes))) continue;
      is_in_place = c == d && dst.address == job.src[d].address && dst.rows == job.src[d].rows;
      if (!is_in_place) refuse_overlap(job.op, dst, job.src[d]);
    }
  }
  return is_in_place;
}

/// \throws ValueError where a kernel could not read the elements of `tensor`.
inline void require_alignment(const Job& job, const host::TensorView& tensor, const char* name) {
  const auto bytes = static_cast<std::int64_t>(host::dtype_bytes(tensor.dtype()));
  if (host::widest_word(tensor.data_ptr()) < bytes)
    refuse(
        "ValueError", job.op, name, ": its address is not a multiple of its element size, ", bytes, " bytes: ", tensor);
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
  require_alignment(job, indices_dst, "indices_dst");
  require_alignment(job, indices_src, "indices_src");
  host::RuntimeCheck(length.unwrap() < INT32_MAX, job.op, ": too many indices: ", length.unwrap());
  job.transfer.num_rows = static_cast<std::uint32_t>(length.unwrap());
  job.transfer.dst_indices = indices_dst.data_ptr();
  job.transfer.src_indices = indices_src.data_ptr();
  job.index_dtype = dtype.unwrap();
  job.device = device.unwrap();
}

inline void match_options(const Job& job) {
  const auto& [unroll, quota, page_size, check_indices] = job.options;
  if (unroll && (*unroll < 1 || *unroll > 32 || (*unroll & (*unroll - 1)) != 0))
    refuse("ValueError", job.op, "unroll must be 1, 2, 4, 8, 16 or 32, got ", *unroll);
  if (quota && (*quota < 1 || *quota > INT32_MAX))
    refuse("ValueError", job.op, "block_quota must be at least 1, got ", *quota);
  if (page_size && (*page_size < 1 || *page_size >= kNoPages))
    refuse("ValueError", job.op, "page_size must be at least 1 and less than ", kNoPages, ", got ", *page_size);
}

/// \brief Check all caches of one layer; sets the rows and the addresses of both sides.
inline void match_caches(
    Job& job, const host::TensorView& indices_dst, const host::TensorView& indices_src,
    const host::Optional<std::int64_t>& element_dim) {
  const auto& first = job.dst[0];
  auto& t = job.transfer;
  t.num_layers = 1;
  job.host_span = 0;  // so far
  job.for_each_cache([&](Cache& cache) {
    const auto& view = *cache.view;
    const auto row_bytes = match_cache(job.op, cache, element_dim);
    if (&cache == &first) job.row_bytes = row_bytes;
    if (!host::operator==(view.dtype(), first.view->dtype()))
      refuse(
          kTensorMatchError, job.op, "the dtype differs: ", first.name, " and ", cache.name, " are ", *first.view,
          " and ", view);
    if (row_bytes != job.row_bytes)
      refuse(
          kTensorMatchError, job.op, "the row size differs: ", first.name, " has rows of ", job.row_bytes, " bytes, ",
          cache.name, " of ", row_bytes, ": ", *first.view, " and ", view);
    match_device(job, view.device(), cache.name, " is on ");
    if (!is_host(view.device()) && view.device().device_type != kDLCUDA && view.device().device_type != kDLCUDAManaged)
      refuse(kTensorMatchError, job.op, cache.name, " must be on a CUDA device or the CPU: ", view);
    const auto memory = cache.memory(row_bytes);
    const auto span = memory.outer.extent() + memory.inner.extent() + memory.width;
    cache.span = span > 0 ? span : 1;
  });
  if (job.row_bytes == 0) t.num_rows = 0;  // nothing to do
  const auto match_side = [&](const Cache(&side)[2]) {
    const auto& [k, v] = side;
    // K and V must have the same layout: one offset serves both.
    if (job.num_caches == 2 && k.num_rows != v.num_rows)
      refuse_pair(kTensorMatchError, job.op, k, v, "must have the same number of rows: ");
    if (job.num_caches == 2 && k.rows != v.rows && k.num_rows > 1)
      refuse_pair(kTensorMatchError, job.op, k, v, "must have the same strides: ");
    // The kernel takes indices of 32 bits apart into page and row: on both sides, if one has pages.
    if (k.num_rows >= kNoPages && (job.dst->rows.page_size != kNoPages || job.src->rows.page_size != kNoPages))
      refuse("ValueError", job.op, k.name, " has too many rows for a transfer with pages: ", *k.view);
    if (t.num_rows > 0 && k.num_rows == 0)
      refuse("IndexError", job.op, "there are ", t.num_rows, " indices, but ", k.name, " has no rows: ", *k.view);
  };
  match_side(job.dst);
  match_side(job.src);
  job.is_in_place = match_overlaps(job, indices_dst, indices_src);
}

/// \brief Check the addresses of all layers; sets them and their number.
inline void match_pointers(Job& job) {
  auto num_layers = host::SymbolicSize{"number of layers"};
  auto device = host::SymbolicDevice{};
  job.for_each_cache([&](Cache& table) {
    host::TensorMatcher({num_layers})  // addresses, one for each layer
        .with_dtype<std::uint64_t, std::int64_t>()
        .with_device<kDLCUDA, kDLCPU, kDLCUDAHost>(device)
        .verify(*table.view, table.name);
    require_alignment(job, *table.view, table.name);
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

inline void match_strides(Job& job, const LayerStrides& strides) {
  const auto [src_stride, dst_stride] = strides.row;
  if (!strides.element_size.has_value() && src_stride != dst_stride)
    refuse(
        "ValueError", job.op, "element_size is needed if the strides differ: ", src_stride, " bytes at the source, ",
        dst_stride, " at the destination");
  job.row_bytes = strides.element_size.value_or(dst_stride);
  if (job.row_bytes < 1) refuse("ValueError", job.op, "element_size must be at least 1 byte, got ", job.row_bytes);
  const auto& page_size = job.options.page_size;
  const auto match_side = [&](int i, const char* side, const char* rows_name, Cache(&caches)[2]) {
    const auto stride = strides.row[i];
    const auto page_stride = strides.page[i].value_or(0);
    const auto num_rows = strides.num_rows[i].value_or(kUnknown);
    if (stride < 0 || page_stride < 0)
      refuse("ValueError", job.op, "the strides of the ", side, " must not be negative");
    if (strides.page[i].has_value() && !page_size.has_value())
      refuse("ValueError", job.op, "the page stride of the ", side, " needs a page_size");
    if (num_rows < 0) refuse("ValueError", job.op, rows_name, " must not be negative, got ", num_rows);
    const bool is_paged = strides.page[i].has_value() && page_stride != *page_size * stride;
    for (auto& cache : caches) {
      cache.rows.row_stride = stride;
      if (is_paged) cache.rows = {stride, page_stride, static_cast<std::uint32_t>(*page_size)};
      cache.num_rows = num_rows;
    }
  };
  match_side(0, "source", "num_rows_src", job.src);
  match_side(1, "destination", "num_rows_dst", job.dst);
  const auto& dst = job.dst->rows;
  const bool rows_fit = dst.row_stride >= job.row_bytes || dst.page_size == 1;
  const auto page_bytes = dst.page_size == kNoPages ? 0 : (dst.page_size - 1) * dst.row_stride + job.row_bytes;
  const bool pages_fit = dst.page_size == kNoPages || dst.page_stride >= page_bytes;
  if (!rows_fit && job.transfer.num_rows > 1)
    refuse(
        "ValueError", job.op, "rows of the destination overlap each other: rows of ", job.row_bytes, " bytes are ",
        dst.row_stride, " bytes apart");
  // Interleaved pages need not overlap, but one rule is enough here.
  if (!pages_fit && job.transfer.num_rows > 1)
    refuse(
        "ValueError", job.op, "pages of the destination overlap or interleave: a page takes ", page_bytes,
        " bytes, and pages are ", dst.page_stride, " bytes apart; for all layers at once, each page of a destination ",
        "must end before the next begins");
  // Where the rows of a layer are neighbours on both sides, the order layer by layer stays within fewer pages of
  // memory; if all layers of a row are neighbours, the order row by row does.
  const auto is_dense = [&](const RowStrides& rows) {
    return rows.page_size == kNoPages && rows.row_stride < 2 * job.row_bytes;
  };
  job.transfer.by_layer = is_dense(dst) && is_dense(job.src->rows);
}

}  // namespace hicache
