#pragma once

#include <dlpack/dlpack.h>

#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

/// \file message.h
/// \brief `host::Message`: text put together in a fixed buffer, without `<string>` or `<sstream>`.
///
/// The two standard headers would cost a cold build more than the kernel itself (1.2 s and 0.8 s of nvcc phases).
/// A message never allocates and never overruns: what does not fit is cut at a character and ends in "...".

namespace host {

struct Message;

namespace details {

template <typename T>
concept TextLike = requires(const T& value) {
  { *value.data() } -> std::same_as<const char&>;
  value.size();
};

template <typename T>
concept SequenceLike = !TextLike<T> && requires(const T& value) {
  *value.begin();
  value.end();
};

/// An overload of `append_to(host::Message&, const T&)`, found by argument-dependent look-up. Only for classes, since a
/// number would convert to some class or other.
template <typename T>
concept CustomPrintable = std::is_class_v<T> && requires(Message& message, const T& value) { append_to(message, value); };

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
  void append(const char* text, std::size_t size) noexcept {
    if (m_cut) return;
    if (size <= kCapacity - m_size) {
      std::memcpy(m_text + m_size, text, size);
      m_size += size;
    } else {
      std::memcpy(m_text + m_size, text, kCapacity - m_size);
      m_size = cut_at_character(m_text, kCapacity - 3);
      std::memcpy(m_text + m_size, "...", 3);
      m_size += 3;
      m_cut = true;
    }
    m_text[m_size] = '\0';
  }

  /// \brief Append at most `limit` bytes of `text`; what is cut becomes "...".
  void append_limited(const char* text, std::size_t size, std::size_t limit) noexcept {
    if (size <= limit) return append(text, size);
    append(text, cut_at_character(text, limit > 3 ? limit - 3 : 0));
    append("...", 3);
  }

  template <typename T>
  Message& operator<<(const T& value) {
    using U = std::remove_cv_t<T>;
    if constexpr (details::CustomPrintable<T>) {
      append_to(*this, value);
    } else if constexpr (std::is_same_v<U, bool>) {
      print(value ? "true" : "false");
    } else if constexpr (std::is_same_v<U, char>) {
      append(&value, 1);
    } else if constexpr (std::is_enum_v<U>) {
      *this << static_cast<std::underlying_type_t<U>>(value);
    } else if constexpr (std::is_integral_v<U> && std::is_signed_v<U>) {
      print_signed(value);
    } else if constexpr (std::is_integral_v<U>) {
      print_unsigned(value);
    } else if constexpr (std::is_floating_point_v<U>) {
      print_float(static_cast<double>(value), std::is_same_v<U, float>);
    } else if constexpr (std::is_null_pointer_v<U>) {
      print("nullptr");
    } else if constexpr (std::is_convertible_v<const T&, const char*>) {
      print(static_cast<const char*>(value));
    } else if constexpr (std::is_pointer_v<U> || std::is_array_v<U>) {
      print_pointer(reinterpret_cast<const void*>(value));
    } else if constexpr (std::is_same_v<U, DLDataType>) {
      print_dtype(value);
    } else if constexpr (std::is_same_v<U, DLDevice>) {
      print_device(value);
    } else if constexpr (details::TextLike<U>) {
      append(value.data(), value.size());
    } else if constexpr (details::SequenceLike<U>) {
      const char* separator = "<";
      for (const auto& item : value) {
        print(separator);
        *this << item;
        separator = ", ";
      }
      print(separator[0] == '<' ? "<>" : ">");
    } else {
      static_assert(
          !sizeof(U),
          "host::Message cannot print this type: pass a number, bool, enum, pointer, text, sequence, DLDataType or "
          "DLDevice, or define `void append_to(host::Message&, const T&)` beside the type");
    }
    return *this;
  }

 private:
  /// The largest size up to `limit` that does not split a UTF-8 character.
  static std::size_t cut_at_character(const char* text, std::size_t limit) noexcept {
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0u) == 0x80u) --limit;
    return limit;
  }

  void print(const char* text) noexcept {
    if (text == nullptr) text = "(null)";
    append(text, std::strlen(text));
  }
  void print_signed(long long value) noexcept {
    char digits[24];
    append(digits, static_cast<std::size_t>(std::snprintf(digits, sizeof(digits), "%lld", value)));
  }
  void print_unsigned(unsigned long long value) noexcept {
    char digits[24];
    append(digits, static_cast<std::size_t>(std::snprintf(digits, sizeof(digits), "%llu", value)));
  }
  void print_pointer(const void* value) noexcept {
    char digits[24];
    append(digits, static_cast<std::size_t>(std::snprintf(digits, sizeof(digits), "%p", value)));
  }
  void print_float(double value, bool single) noexcept {
    char digits[40];
    for (int precision = 6;; ++precision) {
      std::snprintf(digits, sizeof(digits), "%.*g", precision, value);
      const bool exact = single ? std::strtof(digits, nullptr) == static_cast<float>(value)
                                : std::strtod(digits, nullptr) == value;
      if (exact || precision >= 17) break;  // a NaN never compares equal and ends at 17
    }
    print(digits);
  }

  void print_dtype(DLDataType dtype) noexcept {
    // The index is the DLPack code. Types with one width only carry it in their name.
    struct Name {
      const char* text;
      bool width;
    };
    static constexpr Name kNames[] = {
        {"int", true},
        {"uint", true},
        {"float", true},
        {"handle", true},
        {"bfloat", true},
        {"complex", true},
        {"bool", false},
        {"float8_e3m4", false},
        {"float8_e4m3", false},
        {"float8_e4m3b11fnuz", false},
        {"float8_e4m3fn", false},
        {"float8_e4m3fnuz", false},
        {"float8_e5m2", false},
        {"float8_e5m2fnuz", false},
        {"float8_e8m0fnu", false},
        {"float6_e2m3fn", false},
        {"float6_e3m2fn", false},
        {"float4_e2m1fn", false},
    };
    if (dtype.code < sizeof(kNames) / sizeof(kNames[0])) {
      print(kNames[dtype.code].text);
      if (kNames[dtype.code].width) print_unsigned(dtype.bits);
    } else {
      *this << "dtype(code=" << dtype.code << ", bits=" << dtype.bits << ')';
    }
    if (dtype.lanes != 1) *this << 'x' << dtype.lanes;
  }

  void print_device(DLDevice device) noexcept {
    switch (static_cast<int>(device.device_type)) {
      case kDLCPU:
        return print("cpu");  // there is only one
      case kDLCUDA:
        print("cuda");
        break;
      case kDLCUDAHost:
        print("cuda_host");
        break;
      case kDLCUDAManaged:
        print("cuda_managed");
        break;
      case kDLROCM:
        print("rocm");
        break;
      case kDLROCMHost:
        print("rocm_host");
        break;
      case kDLOpenCL:
        print("opencl");
        break;
      case kDLVulkan:
        print("vulkan");
        break;
      case kDLMetal:
        print("metal");
        break;
      case kDLOneAPI:
        print("oneapi");
        break;
      default:
        *this << "device_type(" << static_cast<int>(device.device_type) << ')';
    }
    if (device.device_id >= 0) *this << ':' << device.device_id;  // below zero stands for any
  }

  std::size_t m_size = 0;
  bool m_cut = false;
  char m_text[kCapacity + 1] = {};
};

}  // namespace host
