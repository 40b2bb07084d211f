/// \file kvcache.cpp
/// \brief The host part: the functions that Python calls.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/variant.h>

#include "kvcache.h"
#include "window.h"

namespace {

using namespace host;
using kvcache::Copy;

RowProgram<Copy, 2> copy{"kvcache.h"};
template <typename Scale>
RowProgram<kvcache::Latent<Scale>, 2> latent{"kvcache.h"};

Kernel<kvcache::Window> append{"window.cuh", "kvcache::append"};
Deferred<void(const kvcache::Window&)> append_on_cpu{"window_cpu.cpp", "kvcache::append_on_cpu"};

/// [tokens, heads, dim], a row for each head, or [tokens, row].
Rows rows_of(const char* name, const TensorView& tensor) {
  return tensor.dim() == 2 ? rows(name, tensor) : heads(name, tensor);
}

/// The slots of a cache, which has as many dimensions, or four: those of blocks.
Rows slots_of(const char* name, const TensorView& cache, const TensorView& indices, bool heads_first, bool is_written) {
  if (heads_first && cache.dim() != 4) [[unlikely]]
    throw Error(
        "ValueError", name, ": heads_first is for a cache of blocks, [blocks, heads, block_size, dim], got ", cache);
  const auto slots = cache.dim() == 4 ? heads_of_blocks(name, cache, heads_first) : rows_of(name, cache);
  return indexed(slots, "indices", indices, is_written);
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

/// One of the two copies of a call.
struct Part {
  Rows from;
  Rows to;
};

/// \param reads whether rows of the cache are copied, or copied to.
Part part_of(bool reads, Rows x, Rows cache) {
  refuse_other(x, cache);
  // Heads that lie side by side in both are one row: a kernel has less to compute for each address.
  if (x.inner > 1 && x.inner == cache.inner && x.inner_stride == x.columns && cache.inner_stride == cache.columns) {
    for (auto* rows : {&x, &cache}) {
      rows->columns *= rows->inner;
      rows->inner = 1;
      rows->inner_stride = rows->columns;
    }
  }
  return reads ? Part{cache, x} : Part{x, cache};
}

/// Copies both parts as words, the widest that all rows consist of: whatever the dtypes, few kernels serve all calls.
void copy_parts(const Part (&parts)[2]) {
  std::int64_t bytes = 4;
  for (const auto& part : parts) {
    for (const auto* rows : {&part.from, &part.to}) bytes = rows->word_bytes() < bytes ? rows->word_bytes() : bytes;
  }
  const auto words = [&](const Part& part) {
    const auto from = part.from.in_words(bytes), to = part.to.in_words(bytes);  // an error names the first
    return copy.rows(Copy::x = from, Copy::out = to);
  };
  copy({}, {words(parts[0]), words(parts[1])});
}

void copy_caches(
    bool reads, const TensorView& k, const TensorView& v, const TensorView& k_cache, const TensorView& v_cache,
    const TensorView& indices, bool heads_first) {
  const auto part = [&](const char* name, const TensorView& x, const char* cache_name, const TensorView& cache) {
    return part_of(reads, rows_of(name, x), slots_of(cache_name, cache, indices, heads_first, !reads));
  };
  copy_parts({part("k", k, "k_cache", k_cache), part("v", v, "v_cache", v_cache)});
}

void store_cache(
    TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView indices, bool heads_first) {
  copy_caches(false, k, v, k_cache, v_cache, indices, heads_first);
}

void gather_cache(
    TensorView k_cache, TensorView v_cache, TensorView indices, TensorView k, TensorView v, bool heads_first) {
  copy_caches(true, k, v, k_cache, v_cache, indices, heads_first);
}

void set_mla_kv_buffer(TensorView kv_buffer, TensorView loc, TensorView k_nope, TensorView k_rope) {
  const auto buffer = indexed(rows_of("kv_buffer", kv_buffer), "loc", loc, true);
  const auto nope = rows_of("k_nope", k_nope), rope = rows_of("k_rope", k_rope);
  const auto columns = nope.columns + rope.columns;
  if (buffer.columns != columns) [[unlikely]]
    buffer.raise(
        {}, {"Size mismatch for a row: expected ", columns, ", those of k_nope and k_rope, but got ", buffer.columns});
  copy_parts(
      {part_of(false, nope, buffer.slice(0, nope.columns)),
       part_of(false, rope, buffer.slice(nope.columns, rope.columns))});
}

template <typename Scale>
void store_latent(const Rows& bytes, const Rows& nope, const Rows& rope) {
  using F = kvcache::Latent<Scale>;
  auto& program = latent<Scale>;
  const auto scales = bytes.slice(512, 16).in_words(4), rest = bytes.slice(512 + 16, 128).in_words(2);
  auto q = bytes.slice(0, 512);
  q.dtype = dtype_of<__nv_fp8_e4m3>::value;
  program({}, {program.rows(F::x = nope, F::q = q, F::scales = scales), program.rows(F::x = rope, F::rest = rest)});
}

void set_mla_kv_buffer_fp8(
    TensorView kv_buffer, TensorView loc, TensorView k_nope, TensorView k_rope, bool scale_ue8m0) {
  constexpr int kGroup = 128;
  const auto buffer = indexed(rows_of("kv_buffer", kv_buffer), "loc", loc, true);
  if (!is_type<std::uint8_t>(kv_buffer.dtype()) && !is_type<__nv_fp8_e4m3>(kv_buffer.dtype())) [[unlikely]]
    buffer.raise({}, {"DType mismatch: expected uint8 or float8_e4m3fn but got ", kv_buffer.dtype()});
  const auto nope = rows_of("k_nope", k_nope).floats(), rope = rows_of("k_rope", k_rope).floats().typed_as(nope);
  const auto refuse_other = [&](const Rows& rows, std::int64_t columns) {
    if (rows.columns != columns) [[unlikely]]
      rows.raise({}, {"Size mismatch for a row: expected ", columns, " but got ", rows.columns});
    if (rows.index == nullptr && rows.count != loc.numel()) [[unlikely]]
      rows.raise(
          {}, {"Size mismatch for the number of rows: expected ", loc.numel(), ", the elements of loc, but got ",
               rows.count});
  };
  refuse_other(buffer, 656);
  refuse_other(nope, 512);
  refuse_other(rope, 64);
  if (scale_ue8m0) return store_latent<sgl::GroupPower<kGroup>>(buffer, nope, rope);
  store_latent<sgl::GroupScale<kGroup>>(buffer, nope, rope);
}

/// Both parts of each head, one behind the other.
void concat(const char* name, const TensorView& whole, const Rows& nope, const Rows& rope) {
  const auto out = heads(name, whole);
  for (const auto* part : {&nope, &rope}) part->typed_as(out);
  const auto columns = nope.columns + rope.columns;
  if (out.columns != columns) [[unlikely]]
    out.raise(
        {}, {"Size mismatch for a row: expected ", columns, ", those of ", nope.name, " and ", rope.name, ", but got ",
             out.columns});
  copy_parts({{nope, out.slice(0, nope.columns)}, {rope, out.slice(nope.columns, rope.columns)}});
}

void concat_mla_q(TensorView q, TensorView q_nope, TensorView q_rope) {
  concat("q", q, heads("q_nope", q_nope), heads("q_rope", q_rope));
}

void concat_mla_k(TensorView k, TensorView k_nope, TensorView k_rope) {
  concat("k", k, heads("k_nope", k_nope), repeated(rows("k_rope", k_rope)));
}

/// A tensor [batch, heads, rows, size] of a window.
struct Argument {
  const char* name;
  const TensorView& tensor;
  std::int64_t bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype()));

  std::int64_t row_bytes() const {
    return tensor.size(3) * bytes;
  }
  /// From index to index of a dimension; that of a dimension of one index has no meaning, and counts as aligned.
  std::int64_t stride(int dimension) const {
    return tensor.size(dimension) > 1 ? tensor.stride(dimension) * bytes : 0;
  }
  std::int64_t word() const {
    return widest_word(tensor.data_ptr(), stride(0), stride(1), stride(2), row_bytes());
  }
};

/// All bytes from the first element of a tensor to its last.
MemoryRows span_of(const Argument& argument) {
  const auto* data = argument.tensor.data_ptr();
  if (argument.tensor.numel() == 0) return {data, 0};
  auto width = argument.row_bytes();
  for (int i : {0, 1, 2}) width += (argument.tensor.size(i) - 1) * argument.stride(i);
  return {data, width};
}

/// Refuses memory with which the result would depend on the order of the rows.
void refuse_shared(const Argument& cache, std::initializer_list<const Argument*> others) {
  for (const auto* other : others) {
    if (rows_meet(span_of(cache), span_of(*other))) [[unlikely]]
      throw Error(
          "ValueError", cache.name, " shares memory with ", other->name, ": ", cache.name, " is ", cache.tensor, ", ",
          other->name, " is ", other->tensor, ". All memory between the first and the last element of a tensor counts");
  }
}

kvcache::WindowSide side_of(const Argument& cache, const Argument& rows) {
  return {
      .cache = cache.tensor.data_ptr(),
      .rows = rows.tensor.data_ptr(),
      .rows_stride = {rows.stride(0), rows.stride(1), rows.stride(2)},
      .row_bytes = cache.row_bytes(),
      .slices = 0};
}

/// \param word bytes of a load.
void launch_append(kvcache::Window& params, std::int64_t word, DLDevice device) {
  constexpr std::int64_t kSlice = 64, kLeastSlice = 32;  // bytes of a row: memory is read by 32
  const auto chip = runtime::get_chip(device.device_id);
  const auto planes = params.batch * params.heads;
  const std::int64_t bytes[] = {params.sides[0].row_bytes, params.sides[1].row_bytes};
  const auto blocks_of = [&](std::int64_t slice) {
    return planes * (div_ceil(bytes[0], slice) + div_ceil(bytes[1], slice));
  };
  // Half as much for each block where multiprocessors would have none.
  auto slice = blocks_of(kSlice) < chip.num_sms ? kLeastSlice : kSlice;
  while (slice > word && slice / 2 >= bytes[0] && slice / 2 >= bytes[1]) slice /= 2;
  for (int i : {0, 1}) params.sides[i].slices = static_cast<unsigned>(div_ceil(bytes[i], slice));
  for (auto lanes = slice / word; lanes > 1; lanes /= 2) ++params.lane_bits;
  LaunchKernel(blocks_of(slice), kvcache::kWindowThreads, device).enable_pdl(chip.has_pdl())(append.get(word), params);
}

void append_to_window(TensorView k_cache, TensorView v_cache, TensorView k, TensorView v) {
  auto batch = SymbolicSize{"batch"}, heads = SymbolicSize{"heads"}, window = SymbolicSize{"window"},
       tokens = SymbolicSize{"tokens"}, k_size = SymbolicSize{"size of keys"}, v_size = SymbolicSize{"size of values"};
  auto type = SymbolicDType{};
  type.set_options<float, __half, __nv_bfloat16, __nv_fp8_e4m3, __nv_fp8_e5m2>();
  auto device = SymbolicDevice{};
  device.set_options<kDLCUDA, kDLCPU>();
  const Argument of_k_cache = {"k_cache", k_cache}, of_v_cache = {"v_cache", v_cache}, of_k = {"k", k}, of_v = {"v", v};
  const auto check_cache = [&](const Argument& cache, SymbolicSize& size) {
    TensorMatcher({batch, heads, window, size})
        .with_dtype(type)
        .with_device(device)
        .ensure_alignment(cache.bytes)
        .verify(cache.tensor, cache.name);
  };
  const auto check_rows = [&](const Argument& rows, SymbolicSize& size) {
    TensorMatcher({batch, heads, tokens, size})
        .with_strides({-1, -1, -1, 1})
        .with_dtype(type)
        .with_device(device)
        .ensure_alignment(rows.bytes)
        .verify(rows.tensor, rows.name);
  };
  check_cache(of_k_cache, k_size);
  check_cache(of_v_cache, v_size);
  check_rows(of_k, k_size);
  check_rows(of_v, v_size);
  if (tokens.unwrap() > window.unwrap()) [[unlikely]]
    throw Error(
        kTensorMatchError, "Tensor match failed for k, ", k, " at ", DebugInfo{},
        "\n- Root cause: Size mismatch for shape#2('tokens'): expected at most ", window.unwrap(),
        ", the window of k_cache, but got ", tokens.unwrap());
  refuse_shared(of_k_cache, {&of_v_cache, &of_k, &of_v});
  refuse_shared(of_v_cache, {&of_k, &of_v});
  kvcache::Window params = {
      .sides = {side_of(of_k_cache, of_k), side_of(of_v_cache, of_v)},
      .batch = batch.unwrap(),
      .heads = heads.unwrap(),
      .window = window.unwrap(),
      .tokens = tokens.unwrap(),
      .lane_bits = 0};
  if (params.batch == 0 || params.heads == 0 || params.tokens == 0 || k_size.unwrap() + v_size.unwrap() == 0) return;
  if (device.unwrap().device_type == kDLCPU) return append_on_cpu(params);
  launch_append(params, widest_word(of_k_cache.word(), of_v_cache.word(), of_k.word(), of_v.word()), device.unwrap());
}

}  // namespace

SGL_EXPORT(append_to_window, (append_to_window))
SGL_EXPORT(store_cache, (store_cache))
SGL_EXPORT(gather_cache, (gather_cache))
SGL_EXPORT(set_mla_kv_buffer, (set_mla_kv_buffer))
SGL_EXPORT(set_mla_kv_buffer_fp8, (set_mla_kv_buffer_fp8))
SGL_EXPORT(concat_mla_q, (concat_mla_q))
SGL_EXPORT(concat_mla_k, (concat_mla_k))
