/// \file kvcache.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/export.h>

#include "kvcache.h"

namespace {

using namespace host;
using kvcache::Copy;

RowProgram<Copy, 2> copy_two{"kvcache.h"};
RowProgram<Copy> copy_one{"kvcache.h"};

/// [tokens, heads, dim], a row for each head, or [tokens, row].
Rows rows_of(const char* name, const TensorView& tensor) {
  return tensor.dim() == 2 ? rows(name, tensor) : heads(name, tensor);
}

/// A copy keeps every bit: it has no other dtype to convert to.
void refuse_other_dtype(const Rows& rows, const Rows& like) {
  if (rows.tensor.dtype() != like.tensor.dtype()) [[unlikely]]
    rows.raise({}, {"DType mismatch: expected ", like.tensor.dtype(), " but got ", rows.tensor.dtype()});
}

void store_cache(TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView indices) {
  const auto of = [&](const Rows& x, const Rows& cache) {
    refuse_other_dtype(cache, x);
    return copy_two.rows(Copy::x = x, Copy::out = indexed(cache, "indices", indices, true));
  };
  copy_two({}, {of(rows_of("k", k), rows_of("k_cache", k_cache)), of(rows_of("v", v), rows_of("v_cache", v_cache))});
}

void gather_cache(TensorView k_cache, TensorView v_cache, TensorView indices, TensorView k, TensorView v) {
  const auto of = [&](const Rows& cache, const Rows& out) {
    refuse_other_dtype(out, cache);
    return copy_two.rows(Copy::x = indexed(cache, "indices", indices), Copy::out = out);
  };
  copy_two({}, {of(rows_of("k_cache", k_cache), rows_of("k", k)), of(rows_of("v_cache", v_cache), rows_of("v", v))});
}

/// The segments of a program have one number of columns, and these parts have two: a launch for each.
void set_mla_kv_buffer(TensorView kv_buffer, TensorView loc, TensorView k_nope, TensorView k_rope) {
  const auto whole = rows_of("kv_buffer", kv_buffer);
  const auto nope = rows_of("k_nope", k_nope), rope = rows_of("k_rope", k_rope);
  const auto columns = nope.columns + rope.columns;
  if (whole.columns != columns) [[unlikely]]
    whole.raise(
        {}, {"Size mismatch for a row: expected ", columns, ", those of k_nope and k_rope, but got ", whole.columns});
  if (rope.count != nope.count) [[unlikely]]
    rope.raise({}, {"Size mismatch for the number of rows: expected ", nope.count, " but got ", rope.count});
  refuse_other_dtype(nope, whole);
  refuse_other_dtype(rope, whole);
  auto first = whole, second = whole;
  first.columns = nope.columns;
  second.columns = rope.columns;
  second.data = static_cast<char*>(whole.data) + nope.columns * whole.element_bytes();
  copy_one({}, Copy::x = nope, Copy::out = indexed(first, "loc", loc, true));
  copy_one({}, Copy::x = rope, Copy::out = indexed(second, "loc", loc, true));
}

}  // namespace

SGL_EXPORT(store_cache, (store_cache))
SGL_EXPORT(gather_cache, (gather_cache))
SGL_EXPORT(set_mla_kv_buffer, (set_mla_kv_buffer))
