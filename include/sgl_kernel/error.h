#pragma once

#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/message.h>

#include <initializer_list>
#include <new>  // std::exception, as the base of std::bad_alloc, at a tenth of the cost of <exception>

/// \file error.h
/// \brief `host::Error`: the exception that becomes a Python exception of a chosen name.

namespace host {

/// \brief An exception with the name of a Python exception ("ValueError") and a message in a fixed buffer.
///
/// `throw host::Error("ValueError", "top_k must be positive, got ", top_k)`. `SGL_EXPORT` turns it into the Python
/// exception of that name. The name must outlive the exception: pass a literal.
struct Error : std::exception {
 public:
  template <typename... Args>
  explicit Error(const char* kind, const Args&... args) : Error(kind, std::initializer_list<details::Piece>{args...}) {}
  [[gnu::cold]] SGL_INLINE explicit Error(const char* kind, std::initializer_list<details::Piece> pieces);

  /// \brief The Python exception's name.
  const char* kind() const noexcept {
    return m_kind;
  }
  /// \brief The message, without the name.
  const char* what() const noexcept override {
    return m_message.c_str();
  }

 private:
  const char* m_kind;
  Message m_message;
};

namespace details {

[[noreturn, gnu::cold]] SGL_INLINE void raise(const char* kind, std::initializer_list<Piece> pieces);

}  // namespace details

}  // namespace host

#if SGL_BODIES

namespace host {

SGL_INLINE Error::Error(const char* kind, std::initializer_list<details::Piece> pieces) : m_kind(kind) {
  for (const auto& piece : pieces) m_message << piece;
}

SGL_INLINE void details::raise(const char* kind, std::initializer_list<Piece> pieces) {
  throw Error(kind, pieces);
}

}  // namespace host

#endif  // SGL_BODIES
