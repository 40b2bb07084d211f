#pragma once

#include <sgl_kernel/signature.h>

/// \file align.h
/// \brief What the host part and the kernels of `moe_align_block_size` and `sort_by_expert` share. Read by every
/// compiler.

namespace moe {

inline constexpr unsigned kAlignBlocks = 8;  ///< of a cluster
inline constexpr unsigned kFewPairs = 128;   ///< that each thread of `sort_few` compares its own with

/// \brief Pairs of a token and an expert, to be sorted by expert into blocks of one expert each.
struct Align {
  const void* ids;  ///< the expert of each pair
  int* sorted;
  long long sorted_size;
  int* block_experts;
  long long num_blocks;  ///< that `block_experts` has room for
  int* num_padded;
  int* places;  ///< of each pair in `sorted`; may be null
  int* ends;    ///< behind the last place of each expert; may be null
  unsigned num_pairs;
  int num_experts;
  unsigned block_size;
  unsigned chunk;  ///< pairs of a warp, a multiple of its lanes
  SGL_FIELDS(
      ids, sorted, sorted_size, block_experts, num_blocks, num_padded, places, ends, num_pairs, num_experts, block_size,
      chunk)
};

}  // namespace moe
