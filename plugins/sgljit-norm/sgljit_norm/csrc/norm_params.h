#pragma once

/// \file norm_params.h
/// \brief The interface between host parts and kernels: the parameters, and the layout of rows over threads.
///
/// Read by the host compiler and by NVRTC.

#include <sgl_kernel/signature.h>

namespace norm_kernels {

/// \brief The parameters of rmsnorm and layernorm. Strides are from row to row, in bytes.
struct NormParams {
  const void* input;
  const void* weight;
  const void* bias;  ///< layernorm's, or null
  void* out;
  long long input_stride;
  long long out_stride;
  long long num_tokens;
  long long hidden_size;
  float eps;
  SGL_FIELDS(input, weight, bias, out, input_stride, out_stride, num_tokens, hidden_size, eps)
};

/// \brief The parameters of fused_add_rmsnorm. Strides are from row to row, in bytes.
struct FusedAddParams {
  void* input;
  void* residual;
  const void* weight;
  long long input_stride;
  long long residual_stride;
  long long num_tokens;
  long long hidden_size;
  float eps;
  SGL_FIELDS(input, residual, weight, input_stride, residual_stride, num_tokens, hidden_size, eps)
};

/// \brief The heads of q or of k: rows of head_dim elements. Strides are in bytes.
struct Heads {
  void* data;
  const void* weight;
  long long token_stride;
  long long head_stride;
  long long num_heads;
  long long head_dim;
  SGL_FIELDS(data, weight, token_stride, head_stride, num_heads, head_dim)
};

/// \brief The parameters of the normalisations of q and k.
struct QKNormParams {
  Heads q;
  Heads k;
  long long num_tokens;
  unsigned long long inverse_heads;  ///< 2^64 / (heads of q and k), rounded up, to divide by multiplication
  float eps;
  SGL_FIELDS(q, k, num_tokens, inverse_heads, eps)
};

/// \brief The longest row that fits into the registers of a block, in bytes.
inline constexpr unsigned kMaxRowBytes = 64 * 1024;

/// \brief The layout of rows over threads, tuned on an H200.
struct Layout {
  unsigned load_bytes;   ///< bytes of one load of a thread
  unsigned loads;        ///< loads of a row
  unsigned row_threads;  ///< threads that share a row: a power of two within a warp, else whole warps
  unsigned loads_per_thread;
  unsigned block_threads;
  /// Loading the weight together with the row hides its latency, if registers are left to hold it.
  bool weight_first;
  /// Limits the registers, so that one block loads while another one waits in its reduction. 0: no limit; with any
  /// other number, even one that holds anyway, the compiler uses more registers.
  unsigned blocks_per_sm;

  constexpr unsigned rows_per_block() const {
    return block_threads / row_threads;
  }
};

/// \brief The layout of rows of the given size, a multiple of `load_bytes`, for a kernel that reads `num_inputs` rows.
///
/// Each thread has up to 64 bytes of a row in flight: then few blocks keep memory busy, while as many rows wait in
/// their reductions. A warp or a part of one takes a row of up to 2 KiB, without a barrier. Several such rows share a
/// block, because blocks of less than 4 KiB start and end more slowly than memory delivers. A longer row has a block to
/// itself; with two inputs, which are both written again, each of its threads takes a single load.
constexpr Layout layout_of(long long row_bytes, unsigned load_bytes, unsigned num_inputs = 1) {
  constexpr unsigned kWarp = 32;
  constexpr unsigned kMaxThreads = 1024;
  Layout layout = {};
  layout.load_bytes = load_bytes;
  layout.loads = static_cast<unsigned>(row_bytes / load_bytes);
  const unsigned most_loads = 64 / load_bytes / num_inputs;
  const auto threads_for = [&](unsigned loads_per_thread) {
    return ((layout.loads + loads_per_thread - 1) / loads_per_thread + kWarp - 1) / kWarp * kWarp;
  };
  if (layout.loads <= kWarp * most_loads) {
    layout.row_threads = 1;
    while (layout.row_threads < kWarp && layout.row_threads < layout.loads) layout.row_threads *= 2;
    layout.block_threads = layout.loads <= kWarp ? 256 : 128;
    layout.weight_first = true;
  } else {
    unsigned per_thread = num_inputs == 1 ? most_loads : 1;
    while (threads_for(per_thread) > kMaxThreads) per_thread *= 2;
    layout.row_threads = threads_for(per_thread);
    layout.block_threads = layout.row_threads;
    layout.weight_first = row_bytes <= 16 * 1024 || per_thread * load_bytes <= 32;
    // 72 registers for each thread, or 64 if too few threads would fit with 72.
    layout.blocks_per_sm = (layout.block_threads <= 256 ? 896 : kMaxThreads) / layout.block_threads;
  }
  layout.loads_per_thread = (layout.loads + layout.row_threads - 1) / layout.row_threads;
  return layout;
}

/// \brief The layout of a block that holds a row of q and one of k, at most `kMaxRowBytes` together; `loads` counts
/// those of both.
constexpr Layout layout_of_both(long long q_bytes, long long k_bytes, unsigned load_bytes) {
  Layout layout = layout_of(q_bytes + k_bytes, load_bytes);
  if (layout.row_threads < 32) layout.row_threads = 32;
  layout.block_threads = layout.row_threads;
  return layout;
}

/// \brief The layout of one of the rows in such a block.
constexpr Layout layout_of_one(const Layout& both, long long row_bytes) {
  Layout layout = both;
  layout.loads = static_cast<unsigned>(row_bytes / both.load_bytes);
  layout.loads_per_thread = (layout.loads + both.row_threads - 1) / both.row_threads;
  return layout;
}

}  // namespace norm_kernels
