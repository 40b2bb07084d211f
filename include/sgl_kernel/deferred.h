#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/family.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <typeinfo>

/// \file deferred.h
/// \brief `host::Deferred`: a C++ function that is compiled when it is first called.
///
/// A thin host part compiles in a fraction of a second. Put heavy code that is not always needed, such as a CPU kernel
/// on a machine with a GPU, into a file of its own and name it:
/// \code
///   // norm.cpp, the host part; in an unnamed namespace, like all its definitions
///   host::Deferred<void(const Args&)> norm_on_cpu{"norm_cpu.cpp", "norm_on_cpu"};
///   ... norm_on_cpu(args);
///
///   // norm_cpu.cpp, which includes deferred.h too
///   void norm_on_cpu(const Args& args) { ... }
/// \endcode
/// The function may be `static` or in an unnamed namespace; if it is in a named one, write "norm::norm_on_cpu". Its
/// exceptions reach the caller. The core compiles the file by the same rules as any module. Host only.

namespace host {

namespace details {

/// The compiler's spelling of a type, for people.
template <typename T>
constexpr const char* spelling_of() noexcept {
  return __PRETTY_FUNCTION__;
}

/// A function's type as a text, in two parts that a space separates. The first is compared: the type's name in the C++
/// ABI, which all compilers spell alike, and the size and alignment of what each parameter and the result is or refers
/// to, so that a struct that was changed on one side is noticed. The second is the compiler's spelling.
template <typename R, typename... Args>
void append_signature(Message& text, R (*)(Args...)) {
  text << typeid(R (*)(Args...)).name();
  ((text << ':' << sizeof(std::remove_reference_t<Args>) << '/' << alignof(std::remove_reference_t<Args>)), ...);
  if constexpr (!std::is_void_v<R>)
    text << '>' << sizeof(std::remove_reference_t<R>) << '/' << alignof(std::remove_reference_t<R>);
  const char* spelling = spelling_of<R(Args...)>();
  const char* bracket = std::strrchr(spelling, '[');
  text << ' ' << (bracket == nullptr ? spelling : bracket);
}

}  // namespace details

/// \brief A function in another file of the family, loaded at its first call. Thread-safe; make it a global variable.
template <typename Signature>
struct Deferred;

template <typename R, typename... Args>
struct Deferred<R(Args...)> {
 public:
  using function_t = R (*)(Args...);

  /// \param file the C++ file, relative to the family's csrc; a literal.
  /// \param symbol the function's name in it; a literal.
  constexpr Deferred(const char* file, const char* symbol) noexcept : m_file(file), m_symbol(symbol) {}
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;

  R operator()(Args... args) {
    auto function = __atomic_load_n(&m_function, __ATOMIC_ACQUIRE);
    if (function == nullptr) [[unlikely]]
      function = m_load();
    return function(static_cast<Args&&>(args)...);
  }

 private:
  [[gnu::cold, gnu::noinline]] function_t m_load() {
    Message signature;
    details::append_signature(signature, static_cast<function_t>(nullptr));
    const auto address = details::ask_core("sgljit.deferred", {SGL_FAMILY, m_file, m_symbol, signature.c_str()});
    const auto function = reinterpret_cast<function_t>(address);
    __atomic_store_n(&m_function, function, __ATOMIC_RELEASE);
    return function;
  }

  const char* m_file;
  const char* m_symbol;
  function_t m_function = nullptr;
};

/// \brief The export of a deferred function's file: its address, for a caller that expects the same type.
/// \param expected of `append_signature`.
template <auto kFunction>
std::int64_t address_of(const char* expected) {
  Message text;
  details::append_signature(text, kFunction);
  const char* actual = text.c_str();
  const char* end = std::strchr(actual, ' ');
  const char* expected_end = std::strchr(expected, ' ');
  const auto size = static_cast<std::size_t>(end - actual);
  if (expected_end == nullptr || static_cast<std::size_t>(expected_end - expected) != size ||
      std::memcmp(actual, expected, size) != 0)
    throw Error(
        "TypeError", "the deferred function is declared with a type other than its own: declared ", expected,
        ", defined ", actual,
        " (after each ':', the bytes and the alignment of a parameter, after '>' those of the result)");
  return reinterpret_cast<std::int64_t>(kFunction);
}

}  // namespace host
