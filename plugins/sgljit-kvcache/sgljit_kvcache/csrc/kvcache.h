#pragma once

#include <sgl_kernel/quantize.h>

/// \file kvcache.h
/// \brief The programs of the family. Read by the C++ compiler for the CPU and by NVRTC.

namespace kvcache {

struct Copy {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = row[x]);
  }
};

/// \brief Both parts of a latent row in FP8: the first quantised, with the scales of its groups; the second as it is.
template <typename Scale>
struct Latent {
  SGL_OPERANDS(x, q, scales, rest)

  template <typename Row, int kSet>
  SGL_HD auto operator()(const Row& row, sgl::Segment<kSet>) const {
    if constexpr (kSet == 0) return Scale::store(row, q, scales, row[x]);
    else return sgl::store(rest = row[x]);
  }
};

}  // namespace kvcache
