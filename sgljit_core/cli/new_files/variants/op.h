#pragma once

#include <sgl_kernel/row_map.h>

/// \file $op.h
/// \brief The formula, for one element. g++ reads it for the CPU, and NVRTC for the GPU at the first launch.
///
/// An op that reduces each row to a number first, as a norm does, includes row_reduce.h in place of row_map.h:
/// docs/headers.md of sgljit has both. Any other kernel is ordinary CUDA, in a .cuh of its own: docs/variants.md.

namespace $namespace {

struct $functor {
  float scale;  // the members are the numbers of a call; without any, leave out the line with SGL_FIELDS, too
  SGL_FIELDS(scale)

  // A float of each input. A float16 or bfloat16 is converted before, and the result is rounded after.
  SGL_HD float operator()(float x) const {
    return scale * x;  // the functions of sgl_kernel/functor.h work on both sides, such as sgl::exp
  }
};

}  // namespace $namespace
