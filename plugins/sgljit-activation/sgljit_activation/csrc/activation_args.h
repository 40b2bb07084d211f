#pragma once

#include <sgl_kernel/error.h>

#include <cmath>
#include <limits>

#include "activation.h"

/// \file activation_args.h
/// \brief The checks of arguments that row operations leave to the ops. Host only.

/// \throws ValueError naming the op unless `limit` is positive and `alpha` finite, in float32.
inline activation::ClampedSwiGLU checked_swiglu(const char* op, double alpha, double limit) {
  if (!(static_cast<float>(limit) > 0)) [[unlikely]]
    throw host::Error("ValueError", op, ": limit must be positive in float32, got ", limit);
  if (!(std::abs(static_cast<float>(alpha)) <= std::numeric_limits<float>::max())) [[unlikely]]
    throw host::Error("ValueError", op, ": alpha must be a finite number of float32, got ", alpha);
  return {static_cast<float>(alpha), static_cast<float>(limit)};
}
