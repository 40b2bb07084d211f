#pragma once

#include <optional>

/// \file optional.h
/// \brief `host::Optional<T>`: an argument that may be None.

namespace host {

/// \brief `std::optional`, under the name that kernels know from tvm-ffi: `has_value()`, `value()`, `value_or()`.
template <typename T>
using Optional = std::optional<T>;

}  // namespace host
