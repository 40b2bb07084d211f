#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/source_location.h>

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

/// \file utils.h
/// \brief Basics of host code: run-time checks, integer ranges, ceiling division, pointer offsets.
///
/// Host only. `div_ceil`, `irange` and `dtype_bytes` are `constexpr`, so nvcc (with `--expt-relaxed-constexpr`) accepts
/// them in device code too.

namespace host {

/// \brief The location of a check. As a defaulted last parameter it is that of the caller, without an argument.
struct DebugInfo : source_location_t {
  constexpr DebugInfo(source_location_t location = source_location_t::current()) noexcept
      : source_location_t(location) {}
};

/// \brief Prints as `file:line`; a path of more than 512 bytes is cut to its end.
[[gnu::cold]] SGL_INLINE void append_to(Message& message, const DebugInfo& info);

namespace details {

[[noreturn, gnu::cold]] SGL_INLINE void raise_at(DebugInfo location, std::initializer_list<Piece> pieces);

}  // namespace details

/// \brief Throw a `RuntimeError` that names `location` and then says `args`.
template <typename... Args>
[[noreturn, gnu::cold, gnu::noinline]] void panic(DebugInfo location, const Args&... args) {
  details::raise_at(location, {details::Piece(args)...});
}

namespace details {

/// `std::index_sequence`, without the compile time of `<utility>`.
template <std::size_t... kIndex>
struct Indices {};
#if __has_builtin(__make_integer_seq)
template <typename, std::size_t... kIndex>
using IndicesOf = Indices<kIndex...>;
template <std::size_t kCount>
using IndicesUpTo = __make_integer_seq<IndicesOf, std::size_t, kCount>;
#else
template <std::size_t kCount>
using IndicesUpTo = Indices<__integer_pack(kCount)...>;
#endif

template <typename T>
concept Location = traits::convertible_to<T, DebugInfo>;

template <typename T>
concept Condition = !Location<T> && requires(T&& value) { static_cast<bool>(value); };

}  // namespace details

/// \brief Throw a `RuntimeError` with `args` as its text unless the condition holds.
///
/// `RuntimeCheck(x > 0, "x must be positive, got ", x)` reports the location of the call;
/// `RuntimeCheck(location, x > 0, "...")` reports the given location. Costs one branch when it holds.
/// \note It is a class, so `RuntimeCheck(ok);` declares a variable `ok`, which does not compile: pass a text, or write
/// `RuntimeCheck{ok}`.
template <typename... Args>
struct RuntimeCheck {
  template <details::Condition Cond>
  explicit RuntimeCheck(Cond&& condition, Args&&... args, DebugInfo location = {}) {
    if (!static_cast<bool>(condition)) [[unlikely]]
      panic(location, args...);
  }
  template <details::Condition Cond>
  explicit RuntimeCheck(DebugInfo location, Cond&& condition, Args&&... args) {
    if (!static_cast<bool>(condition)) [[unlikely]]
      panic(location, args...);
  }
};

template <details::Condition Cond, typename... Args>
explicit RuntimeCheck(Cond&&, Args&&...) -> RuntimeCheck<Args...>;
template <details::Location Where, details::Condition Cond, typename... Args>
explicit RuntimeCheck(Where&&, Cond&&, Args&&...) -> RuntimeCheck<Args...>;

/// \brief Throw a `RuntimeError`: `Panic("unsupported dtype ", dtype)`, or with a location first.
template <typename... Args>
struct Panic {
  [[noreturn]] explicit Panic(Args&&... args, DebugInfo location = {}) {
    panic(location, args...);
  }
  [[noreturn]] explicit Panic(DebugInfo location, Args&&... args) {
    panic(location, args...);
  }
};

template <typename... Args>
explicit Panic(Args&&...) -> Panic<Args...>;
template <details::Location Where, typename... Args>
explicit Panic(Where&&, Args&&...) -> Panic<Args...>;

/// \brief The integers from `begin` up to, not including, `end`; empty when `end <= begin`. A range of the standard
/// library, in both directions.
template <traits::integral T>
struct IntRange {
  struct iterator {
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    T value;
    constexpr T operator*() const noexcept {
      return value;
    }
    constexpr iterator& operator++() noexcept {
      ++value;
      return *this;
    }
    constexpr iterator operator++(int) noexcept {
      return iterator{value++};
    }
    constexpr iterator& operator--() noexcept {
      --value;
      return *this;
    }
    constexpr iterator operator--(int) noexcept {
      return iterator{value--};
    }
    constexpr bool operator==(const iterator&) const noexcept = default;
  };
  T first;
  T last;
  constexpr iterator begin() const noexcept {
    return {first};
  }
  constexpr iterator end() const noexcept {
    return {last < first ? first : last};
  }
  constexpr std::size_t size() const noexcept {
    return static_cast<std::size_t>(end().value) - static_cast<std::size_t>(first);
  }
};

/// \brief `for (auto i : irange(3))` visits 0, 1, 2.
template <traits::integral T>
[[nodiscard]] constexpr auto irange(T end) noexcept -> IntRange<T> {
  return {T{0}, end};
}

/// \brief `for (auto i : irange(2, 5))` visits 2, 3, 4, in the common type of the two.
template <traits::integral T, traits::integral U>
[[nodiscard]] constexpr auto irange(T begin, U end) noexcept -> IntRange<decltype(true ? T{} : U{})> {
  using V = decltype(true ? T{} : U{});
  return {static_cast<V>(begin), static_cast<V>(end)};
}

/// \brief `a / b` rounded up: `div_ceil(7, 4)` is 2. Has no intermediate sum, so it does not overflow.
template <traits::integral T, traits::integral U>
[[nodiscard]] constexpr auto div_ceil(T a, U b) noexcept {
  using V = decltype(a / b);
  const V quotient = static_cast<V>(a) / static_cast<V>(b);
  const V rest = static_cast<V>(a) % static_cast<V>(b);
  return static_cast<V>(quotient + (rest != 0 && (rest > 0) == (static_cast<V>(b) > 0)));
}

/// \brief Bytes of one element of `dtype`, lanes included; packed types below a byte round up.
[[nodiscard]] constexpr auto dtype_bytes(DLDataType dtype) noexcept -> std::size_t {
  return (static_cast<std::size_t>(dtype.bits) * dtype.lanes + 7) / 8;
}

namespace pointer {

/// \brief `ptr` plus the sum of `offsets` in bytes. Only for `void*`, so that bytes are never mistaken for elements.
template <typename T, traits::integral... U>
[[nodiscard]] auto offset(T* ptr, U... offsets) noexcept -> void* {
  static_assert(traits::is_same<T, void>, "pointer::offset counts bytes: cast the pointer to void* first");
  return static_cast<char*>(ptr) + (std::ptrdiff_t{0} + ... + static_cast<std::ptrdiff_t>(offsets));
}

template <typename T, traits::integral... U>
[[nodiscard]] auto offset(const T* ptr, U... offsets) noexcept -> const void* {
  static_assert(traits::is_same<T, void>, "pointer::offset counts bytes: cast the pointer to const void* first");
  return static_cast<const char*>(ptr) + (std::ptrdiff_t{0} + ... + static_cast<std::ptrdiff_t>(offsets));
}

}  // namespace pointer

}  // namespace host

#if SGL_BODIES

namespace host {

SGL_INLINE void append_to(Message& message, const DebugInfo& info) {
  constexpr std::size_t kLimit = 512;
  const char* file = info.file_name();
  const std::size_t size = std::strlen(file);
  if (size > kLimit) message << "..." << file + (size - kLimit);
  else message << file;
  message << ':' << info.line();
}

SGL_INLINE void details::raise_at(DebugInfo location, std::initializer_list<Piece> pieces) {
  Message text;
  text << "Runtime check failed at " << location;
  const char* separator = ": ";
  for (const auto& piece : pieces) {
    text << separator << piece;
    separator = "";
  }
  raise("RuntimeError", {text.c_str()});
}

}  // namespace host

#endif  // SGL_BODIES
