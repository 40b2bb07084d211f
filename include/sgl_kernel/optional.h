#pragma once

#include <sgl_kernel/error.h>

/// \file optional.h
/// \brief `host::Optional<T>`: an argument that may be None.

namespace host {

/// \brief `std::optional` for the parameter types of exported functions. The standard header alone would take a tenth
/// of a host part's build.
template <typename T>
struct Optional {
  static_assert(__is_trivially_copyable(T), "host::Optional holds a number, a view, a dtype or a device");

 public:
  constexpr Optional() noexcept : m_none{} {}
  constexpr Optional(const T& value) noexcept : m_value(value), m_has_value(true) {}

  [[nodiscard]] constexpr bool has_value() const noexcept {
    return m_has_value;
  }
  constexpr explicit operator bool() const noexcept {
    return m_has_value;
  }
  /// \brief The value. Throws a ValueError if there is none.
  [[nodiscard]] constexpr const T& value() const {
    if (!m_has_value) [[unlikely]]
      details::raise("ValueError", {"an argument is None, but its value is needed"});
    return m_value;
  }
  /// \brief The value, or `other` if there is none.
  [[nodiscard]] constexpr T value_or(const T& other) const noexcept {
    return m_has_value ? m_value : other;
  }
  /// \brief The value, which must be there.
  [[nodiscard]] constexpr const T& operator*() const noexcept {
    return m_value;
  }
  [[nodiscard]] constexpr const T* operator->() const noexcept {
    return &m_value;
  }

 private:
  union {
    char m_none;
    T m_value;
  };
  bool m_has_value = false;
};

}  // namespace host
