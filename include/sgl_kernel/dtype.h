#pragma once

#include <sgl_kernel/impl/traits.h>

#include <dlpack/dlpack.h>

#include <cstdint>

/// \file dtype.h
/// \brief The `DLDataType` of a C++ type; you can add your own types.
///
/// `TensorMatcher::with_dtype<T>()` and `is_type<T>()` look up `dtype_of<T>::value`. To make them accept another
/// storage type, specialise it beside that type:
/// \code
///   template <>
///   struct host::dtype_of<my::half> {
///     static constexpr DLDataType value = {kDLFloat, 16, 1};
///   };
/// \endcode

// Declared, not included: a declaration costs nothing, the header half a second.
#if defined(USE_ROCM)
struct __half;
struct __hip_bfloat16;
struct __hip_fp8_e4m3;
struct __hip_fp8_e5m2;
#else
struct __half;
struct __nv_bfloat16;
struct __nv_fp8_e4m3;
struct __nv_fp8_e5m2;
struct __nv_fp8_e8m0;
#endif

namespace host {

/// \brief Customisation point: the `DLDataType` of `T` as a `static constexpr DLDataType value`.
template <typename T>
struct dtype_of {};

template <traits::integral T>
struct dtype_of<T> {
  static constexpr DLDataType value = {
      traits::is_signed<T> ? kDLInt : kDLUInt, static_cast<std::uint8_t>(sizeof(T) * 8), 1};
};
template <traits::floating_point T>
struct dtype_of<T> {
  static constexpr DLDataType value = {kDLFloat, static_cast<std::uint8_t>(sizeof(T) * 8), 1};
};
template <>
struct dtype_of<bool> {
  static constexpr DLDataType value = {kDLBool, 8, 1};
};

template <>
struct dtype_of<__half> {
  static constexpr DLDataType value = {kDLFloat, 16, 1};
};
#if defined(USE_ROCM)
template <>
struct dtype_of<__hip_bfloat16> {
  static constexpr DLDataType value = {kDLBfloat, 16, 1};
};
template <>
struct dtype_of<__hip_fp8_e4m3> {
  static constexpr DLDataType value = {kDLFloat8_e4m3fn, 8, 1};
};
template <>
struct dtype_of<__hip_fp8_e5m2> {
  static constexpr DLDataType value = {kDLFloat8_e5m2, 8, 1};
};
#else
template <>
struct dtype_of<__nv_bfloat16> {
  static constexpr DLDataType value = {kDLBfloat, 16, 1};
};
template <>
struct dtype_of<__nv_fp8_e4m3> {
  static constexpr DLDataType value = {kDLFloat8_e4m3fn, 8, 1};
};
template <>
struct dtype_of<__nv_fp8_e5m2> {
  static constexpr DLDataType value = {kDLFloat8_e5m2, 8, 1};
};
template <>
struct dtype_of<__nv_fp8_e8m0> {
  static constexpr DLDataType value = {kDLFloat8_e8m0fnu, 8, 1};
};
#endif

/// \brief A type that a tensor's elements can be matched against.
template <typename T>
concept HasDType = requires {
  { dtype_of<T>::value } -> traits::convertible_to<DLDataType>;
};

// Templates, so that tvm-ffi's own operators on the same types win if both are visible. Without `&&` no value is put
// together in memory byte by byte, and read as a word: a processor waits for such a word.
template <traits::same_as<DLDataType> T>
[[nodiscard]] constexpr bool operator==(const T& a, const T& b) noexcept {
  return ((a.code ^ b.code) | (a.bits ^ b.bits) | (a.lanes ^ b.lanes)) == 0;
}
template <traits::same_as<DLDevice> T>
[[nodiscard]] constexpr bool operator==(const T& a, const T& b) noexcept {
  return ((a.device_type ^ b.device_type) | (a.device_id ^ b.device_id)) == 0;
}

/// \brief Whether `dtype` is that of `T`: `is_type<float>({kDLFloat, 32, 1})` is true.
template <typename T>
[[nodiscard]] constexpr bool is_type(DLDataType dtype) noexcept {
  static_assert(HasDType<T>, "this type has no DLDataType: specialise host::dtype_of<T> (sgl_kernel/dtype.h)");
  return ::host::operator==(dtype, dtype_of<T>::value);
}

}  // namespace host
