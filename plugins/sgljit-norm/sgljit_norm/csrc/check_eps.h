#pragma once

#include <sgl_kernel/error.h>

/// \file check_eps.h
/// \brief The check of eps. A negative one could make the root that of a number next to zero, or below: the result
/// would be noise, or NaN.

/// \throws ValueError unless `eps` is at least 0.
inline void check_eps(const char* op, double eps) {
  if (!(eps >= 0)) [[unlikely]]
    throw host::Error("ValueError", op, ": eps must be at least 0, got ", eps);
}
