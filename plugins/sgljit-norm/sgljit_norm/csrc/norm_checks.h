#pragma once

#include <sgl_kernel/error.h>

#include <cstdint>
#include <initializer_list>

/// \file norm_checks.h
/// \brief The checks of plain numbers that every op has.

/// A negative eps could make the root that of a number next to zero, or below: the result would be noise, or NaN.
/// \throws ValueError unless `eps` is at least 0.
inline void check_eps(const char* op, double eps) {
  if (!(eps >= 0)) [[unlikely]]
    throw host::Error("ValueError", op, ": eps must be at least 0, got ", eps);
}

/// No device loads an element from another address, and on the CPU it is undefined.
/// \throws ValueError if an address is not a multiple of the element size.
inline void check_aligned(const char* op, int element_bytes, std::initializer_list<const void*> addresses) {
  std::uintptr_t bits = 0;
  for (const void* address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  if (bits % static_cast<unsigned>(element_bytes) != 0) [[unlikely]]
    throw host::Error(
        "ValueError", op, ": the address of a tensor is not a multiple of its element size, ", element_bytes, " bytes");
}
