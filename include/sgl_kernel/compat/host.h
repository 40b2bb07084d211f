#pragma once

#include <sgl_kernel/compat/tvm_ffi.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

/// \file compat/host.h
/// \brief Host code: checks that are streams, values that print through `operator<<`, powers of two, tensors.

/// Whether this compiler takes device code: nvcc and hipcc do.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define SGL_COMPAT_DEVICE 1
#else
#define SGL_COMPAT_DEVICE 0
#endif

namespace host {

namespace details {

/// A class that a standard stream prints, and that a message cannot print by itself.
template <typename T>
concept StreamPrintable =
    std::is_class_v<T> && !TextLike<T> && !SequenceLike<T> && !std::same_as<T, DLDataType> &&
    !std::same_as<T, DLDevice> && requires(std::ostream& stream, const T& value) { stream << value; };

/// The standard stream that appends to a message. Its bases are complete where a value is printed: whoever declared
/// the operator has included them. Here they cost nothing.
template <typename Buffer>
struct MessageBuffer : Buffer {
  explicit MessageBuffer(Message& message) : m_message(message) {}

 protected:
  typename Buffer::int_type overflow(typename Buffer::int_type c) override {
    const char letter = Buffer::traits_type::to_char_type(c);
    m_message.append(&letter, 1);
    return c;
  }

 private:
  Message& m_message;
};

template <typename Stream, typename Buffer, typename T>
void print_streamed(Message& message, const T& value) {
  MessageBuffer<Buffer> buffer(message);
  Stream stream(&buffer);
  stream << value;
}

}  // namespace details

/// \brief Print a class that has only an `operator<<` for standard streams.
template <details::StreamPrintable T>
[[gnu::cold]] void append_to(Message& message, const T& value) {
  details::print_streamed<std::ostream, std::streambuf>(message, value);
}

template <typename>
inline constexpr bool dependent_false_v = false;

/// \brief The exception of a failed check.
using PanicError = Error;

template <std::unsigned_integral T>
[[nodiscard]] constexpr bool is_pow2(T x) {
  return std::has_single_bit(x);
}
/// \brief The binary logarithm, rounded down or up; -1 for 0.
template <std::unsigned_integral T>
[[nodiscard]] constexpr std::int32_t log2_floor(T x) {
  return static_cast<std::int32_t>(std::bit_width(x)) - 1;
}
template <std::unsigned_integral T>
[[nodiscard]] constexpr std::int32_t log2_ceil(T x) {
  return x == 0 ? -1 : static_cast<std::int32_t>(std::bit_width(static_cast<T>(x - 1)));
}
/// \brief The next power of two that is not below, or not above, `x`.
template <std::unsigned_integral T>
[[nodiscard]] constexpr T round_up_pow2(T x) {
  return std::bit_ceil(x);
}
template <std::unsigned_integral T>
[[nodiscard]] constexpr T round_down_pow2(T x) {
  return std::bit_floor(x);
}

namespace details {

/// What `CHECK_HOST(...) << "text"` throws at the end of its statement.
struct Failure {
 public:
  explicit Failure(DebugInfo location = {}) : m_location(location) {}
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;
  [[noreturn]] ~Failure() noexcept(false) {
    panic(m_location, m_text.c_str());
  }

  template <typename T>
  Failure& operator<<(const T& value) {
    m_text << value;
    return *this;
  }

 private:
  DebugInfo m_location;
  Message m_text;
};

}  // namespace details

namespace ffi {

using ::tvm::ffi::ShapeView;
using ::tvm::ffi::Tensor;
using ::tvm::ffi::TensorView;

/// \brief A new tensor from the caller's allocator, with uninitialised elements.
[[nodiscard]] inline Tensor empty(ShapeView shape, DLDataType dtype, DLDevice device) {
#if defined(SGL_TVM_FFI_CPP)
  return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, dtype, device);
#else
  return allocate(shape, dtype, device);
#endif
}
[[nodiscard]] inline Tensor empty_like(const TensorView& other) {
  return empty(other.shape(), other.dtype(), other.device());
}
/// \brief A tensor of `bytes` bytes; an empty handle for 0.
[[nodiscard]] inline Tensor alloc_workspace_tensor(std::size_t bytes, DLDevice device) {
  if (bytes == 0) return {};
  const std::int64_t shape[] = {static_cast<std::int64_t>(bytes)};
  return empty(ShapeView(shape, 1), DLDataType{kDLUInt, 8, 1}, device);
}

}  // namespace ffi

}  // namespace host

/// `SGL_PANIC << "text"` throws; `CHECK_HOST(condition) << "text"` does unless the condition holds.
#define SGL_PANIC ::host::details::Failure()
#define CHECK_HOST(...)         \
  if (__VA_ARGS__) [[likely]] { \
  } else SGL_PANIC
