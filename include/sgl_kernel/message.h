#pragma once

#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>

#include <dlpack/dlpack.h>

#include <cstddef>

/// \file message.h
/// \brief `host::Message`: text built in a fixed buffer, without `<string>` or `<sstream>`.
///
/// The two standard headers would cost a cold build more than the kernel itself (1.2 s and 0.8 s of nvcc phases).
/// A message never allocates and never overruns: longer text is cut at a character and ends in "...".

namespace host {

struct Message;

namespace details {

template <typename T>
concept TextLike = requires(const T& value) {
  { *value.data() } -> traits::same_as<const char&>;
  value.size();
};

template <typename T>
concept SequenceLike = !TextLike<T> && requires(const T& value) {
  *value.begin();
  value.end();
};

/// An overload of `append_to(host::Message&, const T&)`, found by argument-dependent look-up. Only for classes, because
/// a number may convert to some class.
template <typename T>
concept CustomPrintable = __is_class(T) && requires(Message& message, const T& value) { append_to(message, value); };

/// A type-erased value for a message. A check then costs the compiler a few stores, however many types a kernel prints;
/// formatting is compiled once, and for size, because no fast path runs it.
struct Piece {
 public:
  template <typename T>
  Piece(const T& value) noexcept;  // NOLINT: converts on purpose
  /// Also of a literal, for which the template would be instantiated once for each length.
  [[gnu::cold]] SGL_INLINE Piece(const char* text) noexcept;  // NOLINT
  [[gnu::cold]] SGL_INLINE Piece(int value) noexcept;         // NOLINT
  [[gnu::cold]] SGL_INLINE Piece(long value) noexcept;        // NOLINT

  void (*print)(Message& message, const Piece& piece);
  union {
    long long integer;
    unsigned long long natural;
    double number;
    const void* pointer;
  };
  std::size_t size = 0;
};

}  // namespace details

/// \brief Text in a fixed buffer, always NUL-terminated.
///
/// `Message() << "expected " << 3 << ", got " << tensor.dtype()`. Prints integers, floats (the shortest form that
/// reads back as the same number), bools, enums, pointers, C strings, anything with `data()` and `size()` over `char`,
/// sequences as `<1, 2>`, `DLDataType` ("float16") and `DLDevice` ("cuda:0"). To print a type of your own, put
/// `void append_to(host::Message&, const T&)` beside it.
struct Message {
 public:
  /// Bytes of text that fit; room for two 8-d shapes, a path and a cause.
  static constexpr std::size_t kCapacity = 2047;

  Message() = default;

  const char* c_str() const noexcept {
    return m_text;
  }
  std::size_t size() const noexcept {
    return m_size;
  }

  /// \brief Append `size` bytes. Once the buffer is full, later text is dropped.
  [[gnu::cold]] SGL_INLINE void append(const char* text, std::size_t size) noexcept;

  /// \brief Append a C string.
  [[gnu::cold]] SGL_INLINE void append(const char* text) noexcept;

  /// \brief Append at most `limit` of `size` bytes; "..." replaces the rest.
  [[gnu::cold]] SGL_INLINE void append_limited(const char* text, std::size_t size, std::size_t limit) noexcept;

  [[gnu::cold]] SGL_INLINE Message& operator<<(const details::Piece& piece);

 private:
  /// The largest size up to `limit` that does not split a UTF-8 character.
  static SGL_INLINE std::size_t s_cut_at_character(const char* text, std::size_t limit) noexcept;

  std::size_t m_size = 0;
  bool m_cut = false;
  char m_text[kCapacity + 1] = {};
};

namespace details {

[[gnu::cold]] SGL_INLINE void print_integer(Message& message, const Piece& piece);
[[gnu::cold]] SGL_INLINE void print_natural(Message& message, const Piece& piece);
[[gnu::cold]] SGL_INLINE void print_number(Message& message, const Piece& piece);
[[gnu::cold]] SGL_INLINE void print_text(Message& message, const Piece& piece);
[[gnu::cold]] SGL_INLINE void print_pointer(Message& message, const Piece& piece);
[[gnu::cold]] SGL_INLINE void print_dtype(Message& message, const Piece& piece);
[[gnu::cold]] SGL_INLINE void print_device(Message& message, const Piece& piece);

template <typename T>
[[gnu::cold]] void print_custom(Message& message, const Piece& piece) {
  append_to(message, *static_cast<const T*>(piece.pointer));
}

template <typename T>
[[gnu::cold]] void print_sequence(Message& message, const Piece& piece) {
  const char* separator = "<";
  for (const auto& item : *static_cast<const T*>(piece.pointer)) {
    message << separator << item;
    separator = ", ";
  }
  message << (separator[0] == '<' ? "<>" : ">");
}

template <typename T>
Piece::Piece(const T& value) noexcept : print(nullptr), integer(0) {
  if constexpr (CustomPrintable<T>) {
    print = print_custom<T>;
    pointer = &value;
  } else if constexpr (traits::is_same<T, bool>) {
    print = print_text;
    pointer = value ? "true" : "false";
    size = static_cast<std::size_t>(-1);
  } else if constexpr (traits::is_same<T, char>) {
    print = print_text;
    pointer = &value;
    size = 1;
  } else if constexpr (__is_enum(T)) {
    *this = Piece(static_cast<__underlying_type(T)>(value));
  } else if constexpr (traits::integral<T>) {
    print = traits::is_signed<T> ? print_integer : print_natural;
    if constexpr (traits::is_signed<T>) integer = value;
    else natural = value;
  } else if constexpr (traits::floating_point<T>) {
    print = print_number;
    number = static_cast<double>(value);
    size = sizeof(T);
  } else if constexpr (traits::is_same<T, decltype(nullptr)>) {
    print = print_pointer;
    pointer = nullptr;
  } else if constexpr (traits::convertible_to<const T&, const char*>) {
    print = print_text;
    pointer = static_cast<const char*>(value);
    size = static_cast<std::size_t>(-1);
  } else if constexpr (traits::is_pointer<T>) {
    print = print_pointer;
    pointer = reinterpret_cast<const void*>(value);
  } else if constexpr (traits::is_same<T, DLDataType>) {
    print = print_dtype;
    pointer = &value;
  } else if constexpr (traits::is_same<T, DLDevice>) {
    print = print_device;
    pointer = &value;
  } else if constexpr (TextLike<T>) {
    print = print_text;
    pointer = value.data();
    size = value.size();
  } else if constexpr (SequenceLike<T>) {
    print = print_sequence<T>;
    pointer = &value;
  } else {
    static_assert(
        !sizeof(T),
        "host::Message cannot print this type: pass a number, bool, enum, pointer, text, sequence, DLDataType or "
        "DLDevice, or define `void append_to(host::Message&, const T&)` beside the type");
  }
}

}  // namespace details

}  // namespace host

#if SGL_BODIES

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace host {

SGL_INLINE void Message::append(const char* text, std::size_t size) noexcept {
  if (m_cut) return;
  if (size <= kCapacity - m_size) {
    std::memcpy(m_text + m_size, text, size);
    m_size += size;
  } else {
    std::memcpy(m_text + m_size, text, kCapacity - m_size);
    m_size = s_cut_at_character(m_text, kCapacity - 3);
    std::memcpy(m_text + m_size, "...", 3);
    m_size += 3;
    m_cut = true;
  }
  m_text[m_size] = '\0';
}

SGL_INLINE void Message::append(const char* text) noexcept {
  if (text == nullptr) text = "(null)";
  append(text, std::strlen(text));
}

SGL_INLINE void Message::append_limited(const char* text, std::size_t size, std::size_t limit) noexcept {
  if (size <= limit) return append(text, size);
  append(text, s_cut_at_character(text, limit - 3));
  append("...");
}

SGL_INLINE Message& Message::operator<<(const details::Piece& piece) {
  piece.print(*this, piece);
  return *this;
}

SGL_INLINE std::size_t Message::s_cut_at_character(const char* text, std::size_t limit) noexcept {
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0u) == 0x80u) --limit;
  return limit;
}

namespace details {

SGL_INLINE Piece::Piece(const char* text) noexcept
    : print(print_text), pointer(text), size(static_cast<std::size_t>(-1)) {}
SGL_INLINE Piece::Piece(int value) noexcept : print(print_integer), integer(value) {}
SGL_INLINE Piece::Piece(long value) noexcept : print(print_integer), integer(value) {}

SGL_INLINE void print_integer(Message& message, const Piece& piece) {
  char digits[24];
  message.append(digits, static_cast<std::size_t>(std::snprintf(digits, sizeof(digits), "%lld", piece.integer)));
}

SGL_INLINE void print_natural(Message& message, const Piece& piece) {
  char digits[24];
  message.append(digits, static_cast<std::size_t>(std::snprintf(digits, sizeof(digits), "%llu", piece.natural)));
}

/// `size` is that of the type, which decides how many digits are enough.
SGL_INLINE void print_number(Message& message, const Piece& piece) {
  char digits[40];
  for (int precision = 6; precision <= 17; ++precision) {
    std::snprintf(digits, sizeof(digits), "%.*g", precision, piece.number);
    if (piece.size == sizeof(float) ? std::strtof(digits, nullptr) == static_cast<float>(piece.number)
                                    : std::strtod(digits, nullptr) == piece.number)
      break;
  }
  message.append(digits);
}

SGL_INLINE void print_text(Message& message, const Piece& piece) {
  if (piece.size == static_cast<std::size_t>(-1)) return message.append(static_cast<const char*>(piece.pointer));
  message.append(static_cast<const char*>(piece.pointer), piece.size);
}

SGL_INLINE void print_pointer(Message& message, const Piece& piece) {
  char digits[24];
  message.append(digits, static_cast<std::size_t>(std::snprintf(digits, sizeof(digits), "%p", piece.pointer)));
}

SGL_INLINE void print_dtype(Message& message, const Piece& piece) {
  // The index is the DLPack code; a name in brackets is followed by the number of bits.
  static constexpr const char* kNames[] = {
      "int",
      "uint",
      "float",
      "handle",
      "bfloat",
      "complex",
      "bool",
      "float8_e3m4",
      "float8_e4m3",
      "float8_e4m3b11fnuz",
      "float8_e4m3fn",
      "float8_e4m3fnuz",
      "float8_e5m2",
      "float8_e5m2fnuz",
      "float8_e8m0fnu",
      "float6_e2m3fn",
      "float6_e3m2fn",
      "float4_e2m1fn",
  };
  const auto dtype = *static_cast<const DLDataType*>(piece.pointer);
  if (dtype.code >= sizeof(kNames) / sizeof(kNames[0])) {
    message << "dtype(code=" << dtype.code << ", bits=" << dtype.bits << ')';
  } else {
    message << kNames[dtype.code];
    if (dtype.code < kDLBool) message << dtype.bits;  // the later ones have one width, or carry it in the name
  }
  if (dtype.lanes != 1) message << 'x' << dtype.lanes;
}

SGL_INLINE void print_device(Message& message, const Piece& piece) {
  struct Name {
    int type;
    const char* text;
  };
  static constexpr Name kNames[] = {
      {kDLCPU, "cpu"},
      {kDLCUDA, "cuda"},
      {kDLCUDAHost, "cuda_host"},
      {kDLCUDAManaged, "cuda_managed"},
      {kDLROCM, "rocm"},
      {kDLROCMHost, "rocm_host"},
      {kDLOpenCL, "opencl"},
      {kDLVulkan, "vulkan"},
      {kDLMetal, "metal"},
      {kDLVPI, "vpi"},
      {kDLExtDev, "ext_dev"},
      {kDLOneAPI, "oneapi"},
      {kDLWebGPU, "webgpu"},
      {kDLHexagon, "hexagon"},
      {kDLMAIA, "maia"},
      {kDLTrn, "trn"},
  };
  const auto device = *static_cast<const DLDevice*>(piece.pointer);
  const int type = device.device_type;
  const char* text = nullptr;
  for (const auto& name : kNames) {
    if (name.type == type) text = name.text;
  }
  if (text != nullptr) message << text;
  else message << "device_type(" << type << ')';
  // There is only one CPU, and an index below zero stands for any.
  if (type != kDLCPU && device.device_id >= 0) message << ':' << device.device_id;
}

}  // namespace details

}  // namespace host

#endif  // SGL_BODIES
