/// \file kvcache.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "kvcache.h"

namespace {

using namespace host;
using kvcache::Copy;

RowProgram<Copy, 2> copy{"kvcache.h"};

/// [tokens, heads, dim], a row for each head, or [tokens, row].
Rows rows_of(const char* name, const TensorView& tensor) {
  return tensor.dim() == 2 ? rows(name, tensor) : heads(name, tensor);
}

/// Refuses rows that are not one for each element of the index, and of the dtype and size of those of the cache: a copy
/// keeps every bit.
void refuse_other(const Rows& x, const Rows& cache) {
  x.typed_as(cache);
  if (x.columns != cache.columns) [[unlikely]]
    x.raise(
        {}, {"Size mismatch for a row: expected ", cache.columns, ", that of ", cache.name, ", but got ", x.columns});
  if (x.count != cache.index->numel()) [[unlikely]]
    x.raise(
        {}, {"Size mismatch for the number of rows: expected ", cache.index->numel(), ", the elements of ",
             cache.index_name, ", but got ", x.count});
}

ProgramRows<Copy::kOperands> stored(const Rows& x, const Rows& cache) {
  refuse_other(x, cache);
  return copy.rows(Copy::x = x, Copy::out = cache);
}

ProgramRows<Copy::kOperands> gathered(const Rows& cache, const Rows& out) {
  refuse_other(out, cache);
  return copy.rows(Copy::x = cache, Copy::out = out);
}

void store_cache(TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView indices) {
  const auto slots = [&](const char* name, const TensorView& cache) {
    return indexed(rows_of(name, cache), "indices", indices, true);
  };
  copy({}, {stored(rows_of("k", k), slots("k_cache", k_cache)), stored(rows_of("v", v), slots("v_cache", v_cache))});
}

void gather_cache(TensorView k_cache, TensorView v_cache, TensorView indices, TensorView k, TensorView v) {
  const auto slots = [&](const char* name, const TensorView& cache) {
    return indexed(rows_of(name, cache), "indices", indices);
  };
  copy(
      {}, {gathered(slots("k_cache", k_cache), rows_of("k", k)), gathered(slots("v_cache", v_cache), rows_of("v", v))});
}

void set_mla_kv_buffer(TensorView kv_buffer, TensorView loc, TensorView k_nope, TensorView k_rope) {
  const auto buffer = indexed(rows_of("kv_buffer", kv_buffer), "loc", loc, true);
  const auto nope = rows_of("k_nope", k_nope), rope = rows_of("k_rope", k_rope);
  const auto columns = nope.columns + rope.columns;
  if (buffer.columns != columns) [[unlikely]]
    buffer.raise(
        {}, {"Size mismatch for a row: expected ", columns, ", those of k_nope and k_rope, but got ", buffer.columns});
  copy({}, {stored(nope, buffer.slice(0, nope.columns)), stored(rope, buffer.slice(nope.columns, rope.columns))});
}

}  // namespace

SGL_EXPORT(store_cache, (store_cache))
SGL_EXPORT(gather_cache, (gather_cache))
SGL_EXPORT(set_mla_kv_buffer, (set_mla_kv_buffer))
