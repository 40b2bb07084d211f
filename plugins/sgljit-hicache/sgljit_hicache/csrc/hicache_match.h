#pragma once

#include <sgl_kernel/memory_rows.h>
#include <sgl_kernel/tensor.h>

#include <cstdint>

#include "hicache_job.h"

/// \file hicache_match.h
/// \brief The checks of a call: one set of rules and error texts for every device. Host only.

namespace hicache {

using host::kTensorMatchError;

/// A cache as rows: `num_rows` of `row_elements`, in pages if `rows.page_size` is not `kNoPages`.
struct Cache {
  const char* name;
  const host::TensorView* view;
  std::uint64_t address;
  std::int64_t num_rows;
  std::int64_t row_elements;
  Rows rows;

  host::MemoryRows memory(std::int64_t row_bytes) const {
    return memory_of(rows, address, num_rows, row_bytes);
  }
};

/// A cache of any rank: the last dimensions, `element_dim` elements together, are a row; the others count rows.
inline Cache match_cache(
    const char* op, const char* name, const host::TensorView& view, const host::Optional<std::int64_t>& element_dim) {
  Cache cache{name, &view, reinterpret_cast<std::uint64_t>(view.data_ptr()), 1, 0, {0, 0, kNoPages}};
  const auto require = [&](bool holds, const char* rule) {
    if (!holds) refuse(kTensorMatchError, op, name, " must have ", rule, ": ", view);
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
        kTensorMatchError, op, name, " has rows of ", cache.row_elements, " elements, but element_dim is ",
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
  host::RuntimeCheck(cache.num_rows < kNoPages, op, ": ", name, " has too many rows in pages: ", view);
  cache.rows = {cache.rows.row_stride, page_stride * bits / 8, static_cast<std::uint32_t>(page_size)};
  return cache;
}

/// K and V of one side must have the same layout: one offset serves both.
inline void match_pair(const char* op, const Cache& k, const Cache& v) {
  const bool is_same = k.rows == v.rows || k.num_rows <= 1;
  if (k.num_rows == v.num_rows && is_same) return;
  const char* what = k.num_rows != v.num_rows ? "number of rows: " : "strides: ";
  refuse(kTensorMatchError, op, k.name, " and ", v.name, " must have the same ", what, *k.view, " and ", *v.view);
}

/// Destinations may overlap only their own source, row for row. Returns whether they do.
inline bool match_overlaps(const Job& job, const Cache* dst, const Cache* src) {
  bool is_in_place = false;
  const auto refuse_pair = [&](const Cache& a, const Cache& b) {
    refuse("ValueError", job.op, a.name, " and ", b.name, " overlap: ", *a.view, " and ", *b.view);
  };
  for (int c = 0; c < job.num_caches; ++c) {
    const auto written = dst[c].memory(job.row_bytes);
    if (host::rows_overlap(written))
      refuse("ValueError", job.op, "rows of ", dst[c].name, " overlap each other: ", *dst[c].view);
    for (int d = 0; d < job.num_caches; ++d) {
      if (d > c && host::rows_meet(written, dst[d].memory(job.row_bytes))) refuse_pair(dst[c], dst[d]);
      if (!host::rows_meet(written, src[d].memory(job.row_bytes))) continue;
      is_in_place = c == d && dst[c].address == src[d].address && dst[c].rows == src[d].rows;
      if (!is_in_place) refuse_pair(dst[c], src[d]);
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

/// The processor of the indices must be able to work on `device`, where `what` is.
inline void match_device(const Job& job, DLDevice device, const char* what, const char* is_on) {
  if (is_host(device)) return;  // the check for pinned memory comes last
  if (is_host(job.device))
    refuse(
        kTensorMatchError, job.op, "the indices are on ", job.device, " and ", what, is_on, device,
        ": a transfer from or to a CUDA device needs its indices on that device");
  if (device.device_id != job.device.device_id)
    refuse(
        kTensorMatchError, job.op, "two devices are mixed: the indices are on ", job.device, " and ", what, is_on,
        device);
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
inline void match_caches(Job& job, const Cache* dst, const Cache* src) {
  const auto& first = dst[0];
  const auto dtype = first.view->dtype();
  const auto element_bytes = static_cast<std::int64_t>(dtype.bits) * dtype.lanes / 8;
  auto& t = job.transfer;
  t.num_layers = 1;
  job.row_bytes = first.row_elements * element_bytes;
  for (const auto* side : {dst, src}) {
    for (int c = 0; c < job.num_caches; ++c) {
      const auto& cache = side[c];
      if (!host::operator==(cache.view->dtype(), dtype))
        refuse(
            kTensorMatchError, job.op, "the dtype differs: ", first.name, " and ", cache.name, " are ", *first.view,
            " and ", *cache.view);
      if (cache.row_elements != first.row_elements)
        refuse(
            kTensorMatchError, job.op, "the row size differs: ", first.name, " has rows of ", job.row_bytes, " bytes, ",
            cache.name, " of ", cache.row_elements * element_bytes, ": ", *first.view, " and ", *cache.view);
      const auto device = cache.view->device();
      match_device(job, device, cache.name, " is on ");
      if (!is_host(device) && device.device_type != kDLCUDA && device.device_type != kDLCUDAManaged)
        refuse(kTensorMatchError, job.op, cache.name, " must be on a CUDA device or the CPU: ", *cache.view);
    }
    if (job.num_caches == 2) match_pair(job.op, side[0], side[1]);
  }
  if (job.row_bytes == 0) t.num_rows = 0;  // nothing to do
  const auto match_side = [&](const Cache* side, std::int64_t& num_rows, Rows& rows, CacheAddresses* addresses) {
    num_rows = side->num_rows;
    rows = side->rows;
    if (t.num_rows > 0 && num_rows == 0)
      refuse(
          "IndexError", job.op, "there are ", t.num_rows, " indices, but ", side->name, " has no rows: ", *side->view);
    for (int c = 0; c < job.num_caches; ++c) {
      const auto memory = side[c].memory(job.row_bytes);
      const auto span = memory.outer.extent() + memory.inner.extent() + memory.width;
      addresses[c] = {side[c].name, &side[c].address, side[c].view, span > 0 ? span : 1};
    }
  };
  match_side(dst, job.dst_rows, t.dst, job.dst);
  match_side(src, job.src_rows, t.src, job.src);
  job.is_in_place = match_overlaps(job, dst, src);
}

/// \brief A tensor with the address of a cache for each layer.
struct PointerTable {
  const char* name;
  const host::TensorView* view;
};

/// Refuse null addresses: on the CPU one would end the process, on a device the context.
inline void refuse_null(const Job& job, const CacheAddresses& cache) {
  for (std::uint32_t layer = 0; layer < job.transfer.num_layers; ++layer) {
    if (cache.layers[layer] == 0)
      refuse("ValueError", job.op, cache.name, "[", layer, "] is a null address: layer ", layer, " has no cache there");
  }
}

/// \brief Check the addresses of all layers; sets them and their number.
inline void match_pointers(Job& job, const PointerTable* dst, const PointerTable* src) {
  auto num_layers = host::SymbolicSize{"number of layers"};
  auto device = host::SymbolicDevice{};
  const auto match_side = [&](const PointerTable* side, CacheAddresses* addresses) {
    for (int c = 0; c < job.num_caches; ++c) {
      host::TensorMatcher({num_layers})  // addresses, one for each layer
          .with_dtype<std::uint64_t, std::int64_t>()
          .with_device<kDLCUDA, kDLCPU, kDLCUDAHost>(device)
          .verify(*side[c].view, side[c].name);
      addresses[c] = {side[c].name, static_cast<const std::uint64_t*>(side[c].view->data_ptr())};
    }
  };
  match_side(dst, job.dst);
  match_side(src, job.src);
  host::RuntimeCheck(num_layers.unwrap() < INT32_MAX, job.op, ": too many layers: ", num_layers.unwrap());
  job.transfer.num_layers = static_cast<std::uint32_t>(num_layers.unwrap());
  job.has_device_table = !is_host(device.unwrap());
  match_device(job, device.unwrap(), "the addresses", " on ");
}

/// \brief The layout of all layers, as Python passes it.
struct LayerStrides {
  struct Side {
    std::int64_t stride;
    host::Optional<std::int64_t> page_stride;
    host::Optional<std::int64_t> num_rows;
  };
  host::Optional<std::int64_t> element_size;
  host::Optional<std::int64_t> page_size;
  Side src;
  Side dst;
};

inline Rows match_side(const Job& job, const char* name, const LayerStrides::Side& side, std::int64_t page_size) {
  if (side.stride < 0 || side.page_stride.value_or(0) < 0)
    refuse("ValueError", job.op, "the strides of the ", name, " must not be negative");
  if (!side.page_stride.has_value()) return {side.stride, 0, kNoPages};
  if (page_size == 0) refuse("ValueError", job.op, "the page stride of the ", name, " needs a page_size");
  if (*side.page_stride == page_size * side.stride) return {side.stride, 0, kNoPages};
  return {side.stride, *side.page_stride, static_cast<std::uint32_t>(page_size)};
}

inline void match_strides(Job& job, const LayerStrides& strides) {
  const auto& [element_size, page_size, src, dst] = strides;
  auto& t = job.transfer;
  if (!element_size.has_value() && src.stride != dst.stride)
    refuse(
        "ValueError", job.op, "element_size is needed if the strides differ: ", src.stride, " bytes at the source, ",
        dst.stride, " at the destination");
  job.row_bytes = element_size.value_or(dst.stride);
  if (job.row_bytes < 1) refuse("ValueError", job.op, "element_size must be at least 1 byte, got ", job.row_bytes);
  t.src = match_side(job, "source", src, page_size.value_or(0));
  t.dst = match_side(job, "destination", dst, page_size.value_or(0));
  const bool rows_fit = t.dst.row_stride >= job.row_bytes || t.dst.page_size == 1;
  const bool pages_fit =
      t.dst.page_size == kNoPages || t.dst.page_stride >= (t.dst.page_size - 1) * t.dst.row_stride + job.row_bytes;
  if ((!rows_fit || !pages_fit) && t.num_rows > 1)
    refuse(
        "ValueError", job.op, "rows of the destination overlap each other: rows of ", job.row_bytes, " bytes are ",
        t.dst.row_stride, " bytes apart", t.dst.page_size == kNoPages ? "" : ", or their pages overlap");
  const auto rows_of = [&](const char* name, const host::Optional<std::int64_t>& rows) {
    if (rows.value_or(0) < 0) refuse("ValueError", job.op, name, " must not be negative, got ", *rows);
    return rows.value_or(kUnknownRows);
  };
  job.src_rows = rows_of("num_rows_src", src.num_rows);
  job.dst_rows = rows_of("num_rows_dst", dst.num_rows);
  // Where the rows of a layer are neighbours on both sides, the order layer by layer stays within fewer pages of
  // memory; if all layers of a row are neighbours, the order row by row does.
  const auto is_dense = [&](const Rows& rows) {
    return rows.page_size == kNoPages && rows.row_stride < 2 * job.row_bytes;
  };
  t.by_layer = is_dense(t.dst) && is_dense(t.src);
}

}  // namespace hicache
