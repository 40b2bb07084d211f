#pragma once

/// \file rmsnorm_layout.h
/// \brief What the host part and the kernels of RMSNorm must agree on: the parameters, and how rows are laid over
/// threads.
///
/// Read by the host compiler and by NVRTC: it includes nothing.

namespace norm_kernels {

/// \brief What a kernel takes. Strides are from row to row, in bytes.
struct RMSNormParams {
  const void* input;
  const void* weight;
  void* out;
  long long input_stride;
  long long out_stride;
  long long num_tokens;
  long long hidden_size;
  float eps;
};

/// \brief Bytes that a thread loads at a time, and the longest row that a block holds in its registers.
inline constexpr unsigned kLoadBytes = 16;
inline constexpr unsigned kMaxRowBytes = 64 * 1024;

/// \brief How rows of so many bytes are laid over threads.
///
/// Up to 2 KiB a row stays within a warp, or within a part of one, and no barrier is needed; several rows then share a
/// block. A longer row has a block to itself. Threads hold more of a row as it grows, up to four loads, so that
/// multiprocessors have enough bytes under way and still several blocks each.
struct Layout {
  unsigned loads;        ///< of a row
  unsigned row_threads;  ///< that share a row; a power of two within a warp, else a multiple of a warp
  unsigned loads_per_thread;
  unsigned block_threads;
  bool in_warp;
  /// Loading the weight before the reduction hides its latency, where there are registers to hold it.
  bool weight_first;
  /// Where there are not, bound them, so that one block loads while another one waits in its reduction. 0: no bound;
  /// any other number, even one that is met anyway, leads the compiler to use more of them.
  unsigned blocks_per_sm;

  constexpr unsigned rows_per_block() const {
    return block_threads / row_threads;
  }
};

constexpr Layout layout_of(long long row_bytes) {
  constexpr unsigned kWarp = 32;
  Layout layout = {};
  layout.loads = static_cast<unsigned>(row_bytes / kLoadBytes);
  layout.in_warp = layout.loads <= 4 * kWarp;
  if (layout.in_warp) {
    layout.row_threads = 1;
    while (layout.row_threads < kWarp && layout.row_threads < layout.loads) layout.row_threads *= 2;
    layout.block_threads = 128;
  } else {
    const unsigned per_thread = layout.loads <= 256 ? 1 : layout.loads <= 1024 ? 2 : 4;
    const unsigned threads = (layout.loads + per_thread - 1) / per_thread;
    layout.row_threads = (threads + kWarp - 1) / kWarp * kWarp;
    layout.block_threads = layout.row_threads;
  }
  layout.loads_per_thread = (layout.loads + layout.row_threads - 1) / layout.row_threads;
  layout.weight_first = layout.in_warp || layout.loads_per_thread <= 2;
  layout.blocks_per_sm = layout.weight_first ? 0 : 1024 / layout.block_threads;
  return layout;
}

}  // namespace norm_kernels
