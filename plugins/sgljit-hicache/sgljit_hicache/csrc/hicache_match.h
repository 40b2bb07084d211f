#pragma once

#include <sgl_kernel/tensor.h>

#include <cstdint>

#include "hicache_job.h"
#include "hicache_rows.h"

/// \file hicache_match.h
/// \brief The checks of a call: one set of rules and error texts for every device. Host only.

namespace hicache {

/// A cache as rows: `num_rows` of `row_elements`, in pages if `rows.page_size` is not `kNoPages`.
struct Cache {
  const char* name;
  const host::TensorView* view;
  char* data;
  std::int64_t num_rows;
  std::int64_t row_elements;
  Rows rows;

  std::int64_t num_pages() const {
    return rows.page_size == kNoPages ? 1 : num_rows / rows.page_size;
  }
  std::int64_t page_rows() const {
    return rows.page_size == kNoPages ? num_rows : rows.page_size;
  }
  /// From the first byte of a page to its end.
  std::int64_t page_span(std::int64_t row_bytes) const {
    return (page_rows() - 1) * rows.row_stride + row_bytes;
  }
  std::int64_t span(std::int64_t row_bytes) const {
    return num_rows == 0 ? 0 : (num_pages() - 1) * rows.page_stride + page_span(row_bytes);
  }
};

[[noreturn, gnu::cold, gnu::noinline]] inline void refuse_cache(const char* op, const Cache& cache, const char* why) {
  throw host::Error(host::kTensorMatchError, op, ": ", cache.name, " ", why, ": ", *cache.view);
}

/// A cache of any rank: the last dimensions, `element_dim` elements together, are a row; the others count rows.
inline Cache match_cache(
    const char* op, const char* name, const host::TensorView& view, const host::Optional<std::int64_t>& element_dim) {
  Cache cache{name, &view, static_cast<char*>(view.data_ptr()), 1, 0, {0, 0, kNoPages}};
  const auto bits = static_cast<std::int64_t>(view.dtype().bits) * view.dtype().lanes;
  if (view.ndim() < 2) [[unlikely]]
    refuse_cache(op, cache, "must have at least two dimensions, rows and elements");
  if (bits % 8 != 0) [[unlikely]]
    refuse_cache(op, cache, "must have elements of whole bytes");
  const auto bytes = bits / 8;

  auto i = view.ndim() - 1;
  cache.row_elements = view.size(i);
  bool is_dense = cache.row_elements <= 1 || view.stride(i) == 1;
  while (element_dim.has_value() && i > 1 && cache.row_elements < *element_dim) {
    --i;
    is_dense = is_dense && (view.size(i) == 1 || view.stride(i) == cache.row_elements);
    cache.row_elements *= view.size(i);
  }
  if (!is_dense) [[unlikely]]
    refuse_cache(op, cache, "must have rows without gaps between their elements");
  if (element_dim.has_value() && cache.row_elements != *element_dim) [[unlikely]]
    throw host::Error(
        host::kTensorMatchError, op, ": ", name, " has rows of ", cache.row_elements, " elements, but element_dim is ",
        *element_dim, ": ", view);

  // The dimensions before the row, from the last to the first: one stride for all of them, or two.
  std::int64_t stride = cache.row_elements;
  std::int64_t page_size = 0;
  std::int64_t page_stride = 0;
  while (--i >= 0) {
    const auto size = view.size(i);
    if (size == 0) {
      cache.num_rows = 0;
      break;
    }
    if (size == 1) continue;
    if (cache.num_rows == 1) {
      stride = view.stride(i);
    } else if (page_size == 0 && view.stride(i) != cache.num_rows * stride) {
      page_size = cache.num_rows;
      page_stride = view.stride(i);
    } else if (page_size != 0 && view.stride(i) != cache.num_rows / page_size * page_stride) [[unlikely]] {
      refuse_cache(op, cache, "must have its rows at one stride, or in pages at two");
    }
    cache.num_rows *= size;
  }
  cache.rows.row_stride = stride * bytes;
  if (page_size != 0 && cache.num_rows != 0) {
    host::RuntimeCheck(cache.num_rows < kNoPages, op, ": ", name, " has too many rows in pages: ", view);
    cache.rows.page_size = static_cast<std::uint32_t>(page_size);
    cache.rows.page_stride = page_stride * bytes;
  }
  return cache;
}

/// K and V of one side must have the same layout: one offset serves both.
inline void match_pair(const char* op, const Cache& k, const Cache& v) {
  if (k.num_rows != v.num_rows) [[unlikely]]
    throw host::Error(
        host::kTensorMatchError, op, ": ", k.name, " and ", v.name, " must have the same number of rows: ", *k.view,
        " and ", *v.view);
  if (is_same(k.rows, v.rows) || k.num_rows <= 1 || v.num_rows <= 1) [[likely]]
    return;
  throw host::Error(
      host::kTensorMatchError, op, ": ", k.name, " and ", v.name, " must have the same strides: ", *k.view, " and ",
      *v.view);
}

/// Refuse a destination whose rows overlap: they would be written twice, in any order.
inline void refuse_overlapping_rows(const char* op, const Cache& cache, std::int64_t row_bytes) {
  const auto& rows = cache.rows;
  const bool rows_fit = cache.page_rows() <= 1 || rows.row_stride >= row_bytes;
  const auto pages = cache.num_pages();
  const bool pages_fit = pages <= 1 || rows.page_stride >= cache.page_span(row_bytes) ||
                         (rows.page_stride >= row_bytes &&
                          rows.row_stride >= (pages - 1) * rows.page_stride + row_bytes);  // pages interleave
  if (rows_fit && pages_fit) [[likely]]
    return;
  throw host::Error("ValueError", op, ": rows of ", cache.name, " overlap each other: ", *cache.view);
}

/// Whether any row of `a` shares memory with any row of `b`.
inline bool share_memory(const Cache& a, const Cache& b, std::int64_t row_bytes) {
  const auto begin_a = reinterpret_cast<std::intptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::intptr_t>(b.data);
  if (begin_a + a.span(row_bytes) <= begin_b || begin_b + b.span(row_bytes) <= begin_a) [[likely]]
    return false;
  return !is_same(a.rows, b.rows) || !are_interleaved(a.rows, begin_b - begin_a, row_bytes);
}

/// Destinations may overlap only their own source, row for row. Returns whether they do.
inline bool match_overlaps(const char* op, const Cache* dst, const Cache* src, int num_caches, std::int64_t row_bytes) {
  bool is_in_place = false;
  const auto refuse = [&](const Cache& a, const Cache& b) {
    throw host::Error("ValueError", op, ": ", a.name, " and ", b.name, " overlap: ", *a.view, " and ", *b.view);
  };
  for (int c = 0; c < num_caches; ++c) {
    refuse_overlapping_rows(op, dst[c], row_bytes);
    for (int d = 0; d < num_caches; ++d) {
      if (d > c && share_memory(dst[c], dst[d], row_bytes)) refuse(dst[c], dst[d]);
      if (!share_memory(dst[c], src[d], row_bytes)) continue;
      if (c != d || dst[c].data != src[d].data || !is_same(dst[c].rows, src[d].rows)) refuse(dst[c], src[d]);
      is_in_place = true;
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

/// The processor of the indices must be able to work on the cache.
inline void match_device(const Job& job, const Cache& cache) {
  const auto device = cache.view->device();
  if (is_host(device)) return;  // the check for pinned memory comes last
  if (is_host(job.device)) [[unlikely]]
    throw host::Error(
        host::kTensorMatchError, job.op, ": the indices are on ", job.device, " and ", cache.name, " is on ", device,
        ": a transfer from or to a CUDA device needs its indices on that device");
  if (device.device_type != kDLCUDA && device.device_type != kDLCUDAManaged) [[unlikely]]
    throw host::Error(
        host::kTensorMatchError, job.op, ": ", cache.name, " must be on a CUDA device or the CPU: ", *cache.view);
  if (device.device_id != job.device.device_id) [[unlikely]]
    throw host::Error(
        host::kTensorMatchError, job.op, ": two devices are mixed: the indices are on ", job.device, " and ",
        cache.name, " is on ", device);
}

inline void match_page_size(const Job& job, const host::Optional<std::int64_t>& page_size) {
  if (page_size.has_value() && (*page_size < 1 || *page_size >= kNoPages)) [[unlikely]]
    throw host::Error(
        "ValueError", job.op, ": page_size must be at least 1 and less than ", kNoPages, ", got ", *page_size);
}

inline void match_options(Job& job, const Options& options) {
  if (options.unroll.has_value()) {
    const auto unroll = *options.unroll;
    if (unroll < 1 || unroll > 32 || (unroll & (unroll - 1)) != 0) [[unlikely]]
      throw host::Error("ValueError", job.op, ": unroll must be 1, 2, 4, 8, 16 or 32, got ", unroll);
  }
  if (options.block_quota.has_value() && (*options.block_quota < 1 || *options.block_quota > INT32_MAX)) [[unlikely]]
    throw host::Error("ValueError", job.op, ": block_quota must be at least 1, got ", *options.block_quota);
  match_page_size(job, options.page_size);
  job.unroll = options.unroll;
  job.block_quota = options.block_quota;
}

/// \brief Check all caches of one layer; sets the rows of both sides.
inline void match_caches(Job& job, const Cache* dst, const Cache* src) {
  const auto& first = dst[0];
  const auto dtype = first.view->dtype();
  const auto element_bytes = static_cast<std::int64_t>(dtype.bits) * dtype.lanes / 8;
  const auto num_caches = job.num_caches;
  for (const auto* side : {dst, src}) {
    for (int c = 0; c < num_caches; ++c) {
      const auto& cache = side[c];
      if (!host::operator==(cache.view->dtype(), dtype)) [[unlikely]]
        throw host::Error(
            host::kTensorMatchError, job.op, ": the dtype differs: ", first.name, " and ", cache.name, " are ",
            *first.view, " and ", *cache.view);
      if (cache.row_elements != first.row_elements) [[unlikely]]
        throw host::Error(
            host::kTensorMatchError, job.op, ": the row size differs: ", first.name, " has rows of ",
            first.row_elements * element_bytes, " bytes, ", cache.name, " of ", cache.row_elements * element_bytes,
            ": ", *first.view, " and ", *cache.view);
      match_device(job, cache);
    }
    if (num_caches == 2) match_pair(job.op, side[0], side[1]);
  }
  auto& t = job.transfer;
  t.num_layers = 1;
  t.row_bytes = first.row_elements * element_bytes;
  if (t.row_bytes == 0) t.num_rows = 0;  // nothing to do
  const auto rows_of = [&](const Cache* side, std::int64_t& num_rows) {
    const auto& k = side[0];
    const auto& v = side[num_caches - 1];
    num_rows = k.num_rows < v.num_rows ? k.num_rows : v.num_rows;
    return k.num_rows > 1 ? k.rows : v.rows;  // the stride of a single row has no meaning
  };
  t.dst = rows_of(dst, job.dst_rows);
  t.src = rows_of(src, job.src_rows);
  for (const auto* side : {dst, src}) {
    if (t.num_rows > 0 && side->num_rows == 0) [[unlikely]]
      throw host::Error(
          "IndexError", job.op, ": there are ", t.num_rows, " indices, but ", side->name,
          " has no rows: ", *side->view);
  }
  job.is_in_place = match_overlaps(job.op, dst, src, num_caches, t.row_bytes);
}

/// \brief A tensor with the address of a cache for each layer.
struct PointerTable {
  const char* name;
  const host::TensorView* view;
};

/// Refuse null addresses: on the CPU one would end the process, on a device the context.
inline void refuse_null(const Job& job, const PointerTable& pointers, const std::uint64_t* addresses) {
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    if (addresses[layer] == 0) [[unlikely]]
      throw host::Error(
          "ValueError", job.op, ": ", pointers.name, "[", layer, "] is a null address: layer ", layer,
          " has no cache there");
  }
}

/// \brief Check the addresses of all layers; sets their number. Returns whether the host can read them.
inline bool match_pointers(Job& job, const PointerTable* dst, const PointerTable* src) {
  auto num_layers = host::SymbolicSize{"number of layers"};
  auto device = host::SymbolicDevice{};
  for (const auto* side : {dst, src}) {
    for (int c = 0; c < job.num_caches; ++c) {
      host::TensorMatcher({num_layers})  // addresses, one for each layer
          .with_dtype<std::uint64_t, std::int64_t>()
          .with_device<kDLCUDA, kDLCPU, kDLCUDAHost>(device)
          .verify(*side[c].view, side[c].name);
    }
  }
  host::RuntimeCheck(num_layers.unwrap() < INT32_MAX, job.op, ": too many layers: ", num_layers.unwrap());
  job.transfer.num_layers = static_cast<std::uint32_t>(num_layers.unwrap());
  const auto where = device.unwrap();
  if (is_host(where)) return true;
  if (is_host(job.device)) [[unlikely]]
    throw host::Error(
        host::kTensorMatchError, job.op, ": the indices are on ", job.device, " and the addresses on ", where,
        ": a transfer from or to a CUDA device needs its indices on that device");
  if (where.device_id != job.device.device_id) [[unlikely]]
    throw host::Error(
        host::kTensorMatchError, job.op, ": two devices are mixed: the indices are on ", job.device,
        " and the addresses on ", where);
  return false;
}

/// \brief Strides and pages of all layers, as Python passes them.
struct LayerStrides {
  std::int64_t src;
  std::int64_t dst;
  host::Optional<std::int64_t> element_size;
  host::Optional<std::int64_t> page_size;
  host::Optional<std::int64_t> src_page;
  host::Optional<std::int64_t> dst_page;
  host::Optional<std::int64_t> src_rows;
  host::Optional<std::int64_t> dst_rows;
};

inline Rows match_side(
    const Job& job, const char* name, std::int64_t stride, const host::Optional<std::int64_t>& page_stride,
    const host::Optional<std::int64_t>& page_size) {
  if (stride < 0 || (page_stride.has_value() && *page_stride < 0)) [[unlikely]]
    throw host::Error("ValueError", job.op, ": the strides of the ", name, " must not be negative");
  match_page_size(job, page_size);
  if (!page_stride.has_value()) return {stride, 0, kNoPages};
  if (!page_size.has_value()) [[unlikely]]
    throw host::Error("ValueError", job.op, ": the page stride of the ", name, " needs a page_size");
  if (*page_stride == *page_size * stride) return {stride, 0, kNoPages};
  return {stride, *page_stride, static_cast<std::uint32_t>(*page_size)};
}

inline void match_strides(Job& job, const LayerStrides& strides) {
  auto& t = job.transfer;
  if (!strides.element_size.has_value() && strides.src != strides.dst) [[unlikely]]
    throw host::Error(
        "ValueError", job.op, ": element_size is needed if the strides differ: ", strides.src, " bytes at the source, ",
        strides.dst, " at the destination");
  t.row_bytes = strides.element_size.value_or(strides.dst);
  if (t.row_bytes < 1) [[unlikely]]
    throw host::Error("ValueError", job.op, ": element_size must be at least 1 byte, got ", t.row_bytes);
  t.src = match_side(job, "source", strides.src, strides.src_page, strides.page_size);
  t.dst = match_side(job, "destination", strides.dst, strides.dst_page, strides.page_size);
  const bool rows_fit = t.dst.row_stride >= t.row_bytes || t.dst.page_size == 1;
  const bool pages_fit =
      t.dst.page_size == kNoPages || t.dst.page_stride >= (t.dst.page_size - 1) * t.dst.row_stride + t.row_bytes;
  if ((!rows_fit || !pages_fit) && t.num_rows > 1) [[unlikely]]
    throw host::Error(
        "ValueError", job.op, ": rows of the destination overlap each other: rows of ", t.row_bytes, " bytes are ",
        t.dst.row_stride, " bytes apart", t.dst.page_size == kNoPages ? "" : ", or their pages overlap");
  const auto rows_of = [&](const char* name, const host::Optional<std::int64_t>& rows) {
    if (rows.has_value() && *rows < 0) [[unlikely]]
      throw host::Error("ValueError", job.op, ": ", name, " must not be negative, got ", *rows);
    return rows.value_or(kUnknownRows);
  };
  job.src_rows = rows_of("num_rows_src", strides.src_rows);
  job.dst_rows = rows_of("num_rows_dst", strides.dst_rows);
}

/// Whether the rows of a layer are neighbours on both sides. Then the order layer by layer stays within fewer pages of
/// memory; if all layers of a row are neighbours, the order row by row does.
inline bool is_layer_first(const Transfer& t) {
  const auto is_dense = [&](const Rows& rows) {
    return rows.page_size == kNoPages && rows.row_stride < 2 * t.row_bytes;
  };
  return is_dense(t.dst) && is_dense(t.src);
}

}  // namespace hicache
