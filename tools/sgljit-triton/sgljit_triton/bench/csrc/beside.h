#pragma once

#include <sgl_kernel/signature.h>

namespace beside {

struct Params {
  const void* rows;
  void* output;
  const void* weights;
  long long sizes[6];
  float scale;
  SGL_FIELDS(rows, output, weights, sizes, scale)
};

}  // namespace beside
