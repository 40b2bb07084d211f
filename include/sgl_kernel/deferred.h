#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/family.h>

#include <cstdint>
#include <cstring>

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

/// The compiler's spelling of a type; the same text for the same type in every module of one compiler.
template <typename T>
constexpr const char* spelling_of() noexcept {
  return __PRETTY_FUNCTION__;
}

/// The part of such a text behind "[": `with T = void (*)(int)]`.
inline const char* type_in(const char* spelling) noexcept {
  const char* bracket = std::strrchr(spelling, '[');
  return bracket == nullptr ? spelling : bracket + 1;
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
    const auto address =
        details::ask_core("sgljit.deferred", {SGL_FAMILY, m_file, m_symbol, details::spelling_of<function_t>()});
    const auto function = reinterpret_cast<function_t>(address);
    __atomic_store_n(&m_function, function, __ATOMIC_RELEASE);
    return function;
  }

  const char* m_file;
  const char* m_symbol;
  function_t m_function = nullptr;
};

/// \brief The export of a deferred function's file: its address, for a caller that expects the same type.
template <auto kFunction>
std::int64_t address_of(const char* expected) {
  const char* actual = details::spelling_of<decltype(kFunction)>();
  if (std::strcmp(actual, expected) != 0)
    throw Error(
        "TypeError", "the deferred function is declared with a type other than its own: declared [",
        details::type_in(expected), ", defined [", details::type_in(actual));
  return reinterpret_cast<std::int64_t>(kFunction);
}

}  // namespace host
