#pragma once

#include <sgl_kernel/row_program.h>

/// \file kvcache.h
/// \brief The one program of the family. Read by the C++ compiler for the CPU and by NVRTC.

namespace kvcache {

struct Copy {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = row[x]);
  }
};

}  // namespace kvcache
