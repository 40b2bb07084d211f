#pragma once

#include <sgl_kernel/signature.h>

namespace launches {

enum class Add { kOne = 1 };
enum class Multiply { kOne = 1 };

struct Params {
  float* data;
  SGL_FIELDS(data)
};

}  // namespace launches
