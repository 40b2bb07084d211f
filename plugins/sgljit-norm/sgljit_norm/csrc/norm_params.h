#pragma once

/// \file norm_params.h
/// \brief What the host parts and the kernels must agree on: the parameters, and how rows are laid over threads.
///
/// Read by the host compiler and by NVRTC: it includes nothing.

namespace norm_kernels {

/// \brief What rmsnorm and layernorm take. Strides are from row to row, in bytes.
struct NormParams {
  const void* input;
  const void* weight;
  const void* bias;  ///< of layernorm, or null
  void* out;
  long long input_stride;
  long long out_stride;
  long long num_tokens;
  long long hidden_size;
  float eps;
};

/// \brief What fused_add_rmsnorm takes. Strides are from row to row, in bytes.
struct FusedAddParams {
  void* input;
  void* residual;
  const void* weight;
  long long input_stride;
  long long residual_stride;
  long long num_tokens;
  long long hidden_size;
  float eps;
};

/// \brief The heads of q or of k: rows of head_dim elements. Strides are in bytes.
struct Heads {
  void* data;
  const void* weight;
  long long token_stride;
  long long head_stride;
  long long num_heads;
  long long head_dim;
};

/// \brief What the normalisations of q and k take.
struct QKNormParams {
  Heads q;
  Heads k;
  long long num_tokens;
  unsigned long long inverse_heads;  ///< 2^64 / (heads of q and k), rounded up: to divide by multiplying
  float eps;
};

/// \brief The longest row that a block holds in its registers, in bytes.
inline constexpr unsigned kMaxRowBytes = 64 * 1024;

/// \brief How rows are laid over threads, as measured on an H200.
struct Layout {
  unsigned load_bytes;   ///< of one load of a thread
  unsigned loads;        ///< of a row
  unsigned row_threads;  ///< that share a row: a power of two within a warp, else whole warps
  unsigned loads_per_thread;
  unsigned block_threads;
  /// Loading the weight together with the row hides its latency, where there are registers to hold it.
  bool weight_first;
  /// Bounds the registers, so that one block loads while another one waits in its reduction. 0: no bound; any other
  /// number, even one that is met anyway, leads the compiler to use more of them.
  unsigned blocks_per_sm;

  constexpr unsigned rows_per_block() const {
    return block_threads / row_threads;
  }
};

/// \brief The layout of rows of so many bytes, a multiple of `load_bytes`, of which a kernel reads `num_inputs`.
///
/// Each thread has up to 64 bytes of a row under way: then few blocks keep memory busy, and as many rows at a time can
/// stand in their reductions. Up to 2 KiB that is a warp or part of one, and no barrier is needed; several rows then
/// share a block, because blocks of less than 4 KiB come and go more slowly than memory delivers. A longer row has a
/// block to itself; of two inputs, which are both written again, its threads take a single load each.
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
    // 72 registers for each thread, or 64 where with 72 too few threads would fit.
    layout.blocks_per_sm = (layout.block_threads <= 256 ? 896 : kMaxThreads) / layout.block_threads;
  }
  layout.loads_per_thread = (layout.loads + layout.row_threads - 1) / layout.row_threads;
  return layout;
}

/// \brief The layout of a block that holds a row of q and one of k, at most `kMaxRowBytes` together; of `loads` it
/// counts those of both.
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
