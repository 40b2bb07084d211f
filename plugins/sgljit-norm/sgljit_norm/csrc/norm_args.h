#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/rows.h>

#include <cstdint>

/// \file norm_args.h
/// \brief The checks of arguments that row operations leave to the ops. Host only.

/// A negative eps could make the root that of a number next to zero, or below: the result would be noise, or NaN.
/// \throws ValueError unless `eps` is at least 0.
inline float checked_eps(const char* op, double eps) {
  if (!(eps >= 0)) [[unlikely]]
    throw host::Error("ValueError", op, ": eps must be at least 0, got ", eps);
  return static_cast<float>(eps);
}

/// \brief A tensor [..., hidden] of float32, float16 or bfloat16 as rows, of two dimensions at least and `most` at
/// most.
inline host::Rows tokens(
    const char* name, const host::TensorView& x, int most = INT32_MAX, host::DebugInfo location = {}) {
  if (x.ndim() < 2 || x.ndim() > most) [[unlikely]]
    host::Rows{name, x, nullptr, 0, 0, 0, false}.raise(
        location, {"Dimension mismatch: expected ", most == 2 ? "" : "at least ", "2 but got ", x.ndim()});
  auto result = host::rows(name, x, location);
  result.floats(location);
  return result;  // where the caller wants it: a copy of what floats() returns would be one more
}

/// \brief A tensor [hidden] for all rows, of their dtype.
inline host::Rows weight_of(
    const host::Rows& x, const char* name, const host::TensorView& weight, host::DebugInfo location = {}) {
  auto result = host::shared_row(name, weight, location);
  result.typed_as(x, location);
  return result;
}
