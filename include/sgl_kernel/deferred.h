#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/family.h>
#include <sgl_kernel/impl/opaque.h>
#include <sgl_kernel/signature.h>

#include <cstdint>
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
/// exceptions reach the caller. A struct among the parameters names its fields (signature.h), so that a file that was
/// compiled from another version of it is refused. The core compiles the file by the same rules as any module. Host
/// only.

namespace host {

namespace details {

/// The name of a function's type, the same from all compilers for the same type (signature.h).
template <typename Function>
const char* signature_name() noexcept {
  return typeid(sgl::signature<sgl::described<Function>>).name();
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
        details::ask_core("sgljit.deferred", {SGL_FAMILY, m_file, m_symbol, details::signature_name<function_t>()});
    const auto function = reinterpret_cast<function_t>(address);
    __atomic_store_n(&m_function, function, __ATOMIC_RELEASE);
    return function;
  }

  const char* m_file;
  const char* m_symbol;
  function_t m_function = nullptr;
};

/// \brief The exports of a deferred function's file: its address, and that of the name of its type.
template <auto kFunction>
std::int64_t address_of() {
  return reinterpret_cast<std::int64_t>(kFunction);
}
template <auto kFunction>
std::int64_t signature_of() {
  return reinterpret_cast<std::int64_t>(details::signature_name<decltype(kFunction)>());
}

}  // namespace host
