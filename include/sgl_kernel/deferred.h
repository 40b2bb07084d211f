#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/family.h>

#include <cstdint>
#include <cstring>

/// \file deferred.h
/// \brief `host::Deferred`: a C++ function that is compiled when it is first called.
///
/// A host part is compiled in a fraction of a second as long as it is thin. What is heavy and not always needed, such
/// as a CPU kernel on a machine with a GPU, goes into a file of its own and is asked for by name:
/// \code
///   // norm.cpp, the host part; in an unnamed namespace, as all that it defines
///   host::Deferred<void(const Args&)> norm_on_cpu{"norm_cpu.cpp", "norm_on_cpu"};
///   ... norm_on_cpu(args);
///
///   // norm_cpu.cpp, which includes deferred.h too
///   void norm_on_cpu(const Args& args) { ... }
/// \endcode
/// The function may be `static` or in an unnamed namespace; one in a named namespace is asked for with it,
/// "norm::norm_on_cpu". What it throws reaches the caller. The core compiles the file on the same rules as any module.
/// Host only.

namespace host {

namespace details {

/// How the compiler spells a type; the same text for the same type in every module of one compiler.
template <typename T>
constexpr const char* spelling_of() noexcept {
  return __PRETTY_FUNCTION__;
}

/// What stands behind "[" in such a text: `with T = void (*)(int)]`.
inline const char* type_in(const char* spelling) noexcept {
  const char* bracket = std::strrchr(spelling, '[');
  return bracket == nullptr ? spelling : bracket + 1;
}

}  // namespace details

/// \brief A function of another file of the family, loaded when it is first called. Thread-safe; a global variable.
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

/// \brief What the file of a deferred function exports: its address, for a caller that takes it for the same type.
template <auto kFunction>
std::int64_t address_of(const char* expected) {
  const char* actual = details::spelling_of<decltype(kFunction)>();
  if (std::strcmp(actual, expected) != 0)
    throw Error(
        "TypeError", "the deferred function is declared with another type than it has: declared [",
        details::type_in(expected), ", defined [", details::type_in(actual));
  return reinterpret_cast<std::int64_t>(kFunction);
}

}  // namespace host
