#pragma once

#include <sgl_kernel/signature.h>

#include <dlpack/dlpack.h>

/// \file impl/opaque.h
/// \brief The classes whose fields are not an author's to change, as fields of a struct with `SGL_FIELDS`.

namespace host {

struct TensorView;
template <typename T>
struct Optional;

}  // namespace host

template <>
inline constexpr bool sgl::kIsOpaque<DLDataType> = true;
template <>
inline constexpr bool sgl::kIsOpaque<DLDevice> = true;
template <>
inline constexpr bool sgl::kIsOpaque<host::TensorView> = true;
template <typename T>
inline constexpr bool sgl::kIsOpaque<host::Optional<T>> = true;
