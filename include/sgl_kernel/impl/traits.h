#pragma once

#include <cstddef>

/// \file impl/traits.h
/// \brief The traits and concepts of `<type_traits>` and `<concepts>` that the host headers need. Those two headers are
/// a tenth of a host part's build.

namespace host::traits {

template <typename T, typename U>
inline constexpr bool is_same = false;
template <typename T>
inline constexpr bool is_same<T, T> = true;
template <typename T, typename U>
concept same_as = is_same<T, U>;

template <typename T>
struct RemoveReference {
  using type = T;
};
template <typename T>
struct RemoveReference<T&> {
  using type = T;
};
template <typename T>
struct RemoveReference<T&&> {
  using type = T;
};
template <typename T>
using remove_reference = typename RemoveReference<T>::type;

template <typename T>
struct RemoveCV {
  using type = T;
};
template <typename T>
struct RemoveCV<const T> {
  using type = T;
};
template <typename T>
struct RemoveCV<volatile T> {
  using type = T;
};
template <typename T>
struct RemoveCV<const volatile T> {
  using type = T;
};
template <typename T>
using remove_cvref = typename RemoveCV<remove_reference<T>>::type;

template <typename T, typename... U>
inline constexpr bool is_one_of = (is_same<T, U> || ...);
template <typename T>
concept integral = is_one_of<
    typename RemoveCV<T>::type, bool, char, signed char, unsigned char, wchar_t, char8_t, char16_t, char32_t, short,
    unsigned short, int, unsigned, long, unsigned long, long long, unsigned long long>;
template <typename T>
concept floating_point = is_one_of<typename RemoveCV<T>::type, float, double, long double>;
template <integral T>
inline constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(1);

template <typename T>
inline constexpr bool is_pointer = false;
template <typename T>
inline constexpr bool is_pointer<T*> = true;
template <typename T>
inline constexpr bool is_const = false;
template <typename T>
inline constexpr bool is_const<const T> = true;
template <typename T>
inline constexpr bool is_lvalue_reference = false;
template <typename T>
inline constexpr bool is_lvalue_reference<T&> = true;

template <typename From, typename To>
concept convertible_to = requires(void (&take)(To), From (&from)()) { take(from()); };

}  // namespace host::traits
