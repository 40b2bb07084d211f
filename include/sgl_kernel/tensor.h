#pragma once

#include <sgl_kernel/dtype.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/tensor_view.h>
#include <sgl_kernel/utils.h>

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

/// \file tensor.h
/// \brief Check tensors against a pattern, and take from them the sizes, strides, dtype and device that it leaves open.
///
/// \code
///   auto N = SymbolicSize{"num_tokens"};
///   auto D = SymbolicSize{"hidden"};
///   auto device = SymbolicDevice{};
///   TensorMatcher({N, D})  //
///       .with_strides({-1, 1})
///       .with_dtype<fp16_t, bf16_t>()
///       .with_device<kDLCUDA>(device)
///       .verify(input, "input")
///       .verify(output, "output");
///   const auto num_tokens = N.unwrap();
/// \endcode
///
/// A symbol takes its value from the first tensor. Every later tensor must have the same value, in this matcher and in
/// any other. A mismatch throws a `TensorMatchError` with the tensor, its name if `verify` got one, the location of
/// `verify` and the cause. `with_dtype` accepts every type with a `dtype_of` (dtype.h); specialise that for your own
/// types.

namespace host {

/// \brief The error kind, and so the Python exception's name, of a failed match.
inline constexpr const char* kTensorMatchError = "TensorMatchError";

namespace details {

/// A literal -1 in a shape or in strides: any value; also any device index.
inline constexpr std::int64_t kAnySize = -1;
inline constexpr std::int32_t kAnyDeviceID = -1;

/// The allowed values of a dtype or device; an empty list allows all.
template <typename T>
struct Options {
 public:
  constexpr Options() = default;
  constexpr Options(const T* data, std::size_t size) : m_data(data), m_size(size) {}

  constexpr const T* begin() const {
    return m_data;
  }
  constexpr const T* end() const {
    return m_data + m_size;
  }
  constexpr bool allow(const T& value) const {
    if (m_size == 0) return true;
    for (const auto& option : *this) {
      if (s_matches(option, value)) return true;
    }
    return false;
  }

 private:
  static constexpr bool s_matches(DLDataType option, DLDataType value) {
    return ::host::operator==(option, value);
  }
  static constexpr bool s_matches(DLDevice option, DLDevice value) {
    return option.device_type == value.device_type &&
           (option.device_id == kAnyDeviceID || option.device_id == value.device_id);
  }

  const T* m_data = nullptr;
  std::size_t m_size = 0;
};

/// The name of a size in errors, which is not copied.
struct Annotation {
 public:
  constexpr Annotation() noexcept = default;
  Annotation(const char* text) noexcept : m_data(text), m_size(std::strlen(text)) {}
  template <TextLike T>
  constexpr Annotation(const T& text) noexcept : m_data(text.data()), m_size(text.size()) {}

  constexpr const char* data() const noexcept {
    return m_data;
  }
  constexpr std::size_t size() const noexcept {
    return m_size;
  }

 private:
  const char* m_data = "";
  std::size_t m_size = 0;
};

template <typename... Ts>
  requires(HasDType<Ts> && ...)
inline constexpr DLDataType kDTypeList[] = {dtype_of<Ts>::value...};

template <typename... Ts>
constexpr auto dtype_options() -> Options<DLDataType> {
  static_assert(
      (HasDType<Ts> && ...),
      "a dtype option must be an integer, bool, float, half, bfloat16 or fp8 type, or one that host::dtype_of<T> is "
      "specialised for (sgl_kernel/dtype.h)");
  if constexpr (sizeof...(Ts) > 0 && (HasDType<Ts> && ...)) return {kDTypeList<Ts...>, sizeof...(Ts)};
  return {};
}

template <DLDeviceType... Codes>
inline constexpr DLDevice kDeviceList[] = {DLDevice{Codes, kAnyDeviceID}...};

template <DLDeviceType... Codes>
constexpr auto device_options() -> Options<DLDevice> {
  if constexpr (sizeof...(Codes) > 0) return {kDeviceList<Codes...>, sizeof...(Codes)};
  return {};
}

}  // namespace details

/// \brief A size or stride that several tensors share. The annotation, text of any type, is quoted in errors; it must
/// outlive the symbol.
struct SymbolicSize {
 public:
  SymbolicSize(details::Annotation annotation = {}) noexcept : m_annotation(annotation) {}
  SymbolicSize(const char* annotation) noexcept : m_annotation(annotation) {}
  template <details::TextLike T>
  SymbolicSize(const T& annotation) noexcept : m_annotation(annotation) {}
  SymbolicSize(const SymbolicSize&) = delete;
  SymbolicSize& operator=(const SymbolicSize&) = delete;

  [[nodiscard]] details::Annotation get_name() const noexcept {
    return m_annotation;
  }
  [[nodiscard]] bool has_value() const noexcept {
    return m_has_value;
  }
  /// \brief Fix the value before the first match, so that every tensor must have it.
  SGL_INLINE void set_value(std::int64_t value, DebugInfo info = {});
  /// \brief The value. Throws a RuntimeError if no match has set it.
  [[nodiscard]] std::int64_t unwrap(DebugInfo info = {}) const {
    RuntimeCheck(info, m_has_value, "the value of size '", m_annotation, "' is not set");
    return m_value;
  }
  /// \brief Take `value`, or compare with the value taken before. `prefix` and `dim` name the place in the error.
  void verify(std::int64_t value, const char* prefix, std::int64_t dim) {
    if (!m_has_value) {
      m_value = value;
      m_has_value = true;
    } else if (m_value != value) [[unlikely]] {
      s_mismatch(prefix, dim, m_annotation, m_value, value);
    }
  }

  /// \brief Throw the error of an unexpected size.
  [[noreturn, gnu::cold]] SGL_INLINE static void s_mismatch(
      const char* prefix, std::int64_t dim, details::Annotation annotation, std::int64_t expected, std::int64_t got);

 private:
  details::Annotation m_annotation;
  std::int64_t m_value = 0;
  bool m_has_value = false;
};

/// \brief A dtype that several tensors share, optionally one of a list.
struct SymbolicDType {
 public:
  SymbolicDType() noexcept = default;
  SymbolicDType(const SymbolicDType&) = delete;
  SymbolicDType& operator=(const SymbolicDType&) = delete;

  [[nodiscard]] bool has_value() const noexcept {
    return m_has_value;
  }
  SGL_INLINE void set_value(DLDataType value, DebugInfo info = {});
  [[nodiscard]] DLDataType unwrap(DebugInfo info = {}) const {
    RuntimeCheck(info, m_has_value, "the dtype is not set");
    return m_value;
  }
  /// \brief Allow only the dtypes of `Ts`; none means any.
  template <typename... Ts>
  void set_options() {
    m_options = details::dtype_options<Ts...>();
  }
  void verify(DLDataType dtype) {
    verify(dtype, {});
  }
  /// \brief Take `dtype`, or compare with the one taken before; it must also be among both lists of options.
  SGL_INLINE void verify(DLDataType dtype, const details::Options<DLDataType>& options);
  /// \brief Whether the value is the dtype of `T`; false while there is no value.
  template <typename T>
  [[nodiscard]] bool is_type() const noexcept {
    return m_has_value && ::host::is_type<T>(m_value);
  }

 private:
  details::Options<DLDataType> m_options;
  DLDataType m_value = {};
  bool m_has_value = false;
};

/// \brief A device that several tensors share, optionally of one of several types. Type and index must agree.
struct SymbolicDevice {
 public:
  SymbolicDevice() noexcept = default;
  SymbolicDevice(const SymbolicDevice&) = delete;
  SymbolicDevice& operator=(const SymbolicDevice&) = delete;

  [[nodiscard]] bool has_value() const noexcept {
    return m_has_value;
  }
  SGL_INLINE void set_value(DLDevice value, DebugInfo info = {});
  [[nodiscard]] DLDevice unwrap(DebugInfo info = {}) const {
    RuntimeCheck(info, m_has_value, "the device is not set");
    return m_value;
  }
  /// \brief Allow only devices of these types, with any index; none means any.
  template <DLDeviceType... Codes>
  void set_options() {
    m_options = details::device_options<Codes...>();
  }
  void verify(DLDevice device) {
    verify(device, {});
  }
  /// \brief Take `device`, or compare with the one taken before; it must also be among both lists of options.
  SGL_INLINE void verify(DLDevice device, const details::Options<DLDevice>& options);

 private:
  details::Options<DLDevice> m_options;
  DLDevice m_value = {};
  bool m_has_value = false;
};

namespace details {

/// One entry of a shape or of strides: a symbol, a number, or -1 for any.
struct SizeRef {
 public:
  template <traits::integral T>
  SizeRef(T value) noexcept : m_literal(static_cast<std::int64_t>(value)) {}
  SizeRef(SymbolicSize& symbol) noexcept : m_symbol(&symbol) {}

  bool is_bound() const noexcept {
    return m_symbol != nullptr ? m_symbol->has_value() : m_literal != kAnySize;
  }
  void verify(std::int64_t value, const char* prefix, std::int64_t dim) const {
    if (m_symbol != nullptr) return m_symbol->verify(value, prefix, dim);
    if (m_literal != kAnySize && m_literal != value) [[unlikely]]
      SymbolicSize::s_mismatch(prefix, dim, {}, m_literal, value);
  }

 private:
  SymbolicSize* m_symbol = nullptr;
  std::int64_t m_literal = kAnySize;
};

/// An argument of `with_dtype` or `with_device`: a symbol, one value, or a list of options.
template <typename Symbol, typename Value>
struct PropertyRef {
 public:
  PropertyRef() noexcept = default;
  PropertyRef(Symbol& symbol) noexcept : m_symbol(&symbol) {}
  PropertyRef(Value value) noexcept : m_value(value), m_has_value(true) {}
  PropertyRef(std::initializer_list<Value> options) noexcept : m_listed(options.begin(), options.size()) {}

  void restrict_to(Options<Value> options) noexcept {
    m_options = options;
  }
  void verify(Value value) const {
    if (m_symbol != nullptr) return m_symbol->verify(value, m_options);
    Symbol once;
    if (m_has_value) once.verify(m_value);
    once.verify(value, m_options);
    once.verify(value, m_listed);
  }

 private:
  Symbol* m_symbol = nullptr;
  Value m_value = {};
  bool m_has_value = false;
  Options<Value> m_listed;
  Options<Value> m_options;
};

}  // namespace details

/// \brief A pattern for tensors: shape, strides, dtype, device; then `verify` each tensor that must match it.
///
/// The rules: the number of dimensions is that of the shape. -1 matches any size or stride. Without `with_strides` the
/// tensor must be contiguous (`TensorView::is_contiguous`). With it, the stride of a dimension of size 1 is not
/// compared, because it has no meaning; a symbol without a value still takes it. Without `with_dtype` any dtype
/// matches, without `with_device` any device. Template arguments list the allowed values, a function argument is a
/// value or symbol that must be equal; both may be given.
///
/// \note It refers to its arguments: use it as one expression, do not store it.
/// \note In a template, `with_dtype<T>()` with a parameter `T` makes the calls after it dependent: write the other
/// `with_`s before it, or `.template with_device<...>()`.
struct TensorMatcher {
 private:
  using DTypeRef = details::PropertyRef<SymbolicDType, DLDataType>;
  using DeviceRef = details::PropertyRef<SymbolicDevice, DLDevice>;

 public:
  [[nodiscard]] explicit TensorMatcher(std::initializer_list<details::SizeRef> shape) noexcept : m_shape(shape) {}
  TensorMatcher(const TensorMatcher&) = delete;
  TensorMatcher& operator=(const TensorMatcher&) = delete;

  /// \brief Expect these strides, in elements, instead of a contiguous tensor.
  [[nodiscard]] SGL_INLINE auto with_strides(
      std::initializer_list<details::SizeRef> strides, DebugInfo info = {}) && -> TensorMatcher&&;

  /// \brief Expect one of the dtypes of `Ts`.
  template <typename... Ts>
  [[nodiscard]] auto with_dtype() && -> TensorMatcher&& {
    static_assert(sizeof...(Ts) > 0, "with_dtype() needs a type, a SymbolicDType or a DLDataType");
    m_dtype.restrict_to(details::dtype_options<Ts...>());
    return static_cast<TensorMatcher&&>(*this);
  }
  /// \brief Expect the dtype of a symbol, a given one, or one of a list; and if `Ts` are given, one of theirs.
  template <typename... Ts>
  [[nodiscard]] auto with_dtype(DTypeRef&& dtype) && -> TensorMatcher&& {
    m_dtype = dtype;
    m_dtype.restrict_to(details::dtype_options<Ts...>());
    return static_cast<TensorMatcher&&>(*this);
  }

  /// \brief Expect a device of one of these types.
  template <DLDeviceType... Codes>
  [[nodiscard]] auto with_device() && -> TensorMatcher&& {
    static_assert(sizeof...(Codes) > 0, "with_device() needs a device type, a SymbolicDevice or a DLDevice");
    m_device.restrict_to(details::device_options<Codes...>());
    return static_cast<TensorMatcher&&>(*this);
  }
  /// \brief Expect the device of a symbol, a given one, or one of a list; and if `Codes` are given, one of those types.
  template <DLDeviceType... Codes>
  [[nodiscard]] auto with_device(DeviceRef&& device) && -> TensorMatcher&& {
    m_device = device;
    m_device.restrict_to(details::device_options<Codes...>());
    return static_cast<TensorMatcher&&>(*this);
  }

  /// \brief Expect the first element of each row, the last dimension, at an address that `bytes` divides, a power of
  /// two.
  [[nodiscard]] auto ensure_alignment(std::int64_t bytes) && -> TensorMatcher&& {
    m_alignment = bytes;
    return static_cast<TensorMatcher&&>(*this);
  }

  /// \brief Check one tensor and bind the symbols that are still open; throws a `TensorMatchError`.
  auto verify(const TensorView& view, DebugInfo info = {}) const&& -> const TensorMatcher&& {
    m_verify(view, nullptr, info);
    return static_cast<const TensorMatcher&&>(*this);
  }
  /// \brief As above; the error names the argument: `.verify(weight, "weight")`.
  auto verify(const TensorView& view, const char* name, DebugInfo info = {}) const&& -> const TensorMatcher&& {
    m_verify(view, name, info);
    return static_cast<const TensorMatcher&&>(*this);
  }

 private:
  SGL_INLINE void m_verify(const TensorView& view, const char* name, DebugInfo info) const;

  SGL_INLINE void m_match(const TensorView& view) const;

  [[gnu::cold]] SGL_INLINE void m_match_alignment(const TensorView& view) const;

  std::initializer_list<details::SizeRef> m_shape;
  std::initializer_list<details::SizeRef> m_strides;
  bool m_has_strides = false;
  DTypeRef m_dtype;
  DeviceRef m_device;
  std::int64_t m_alignment = 1;
};

}  // namespace host

#if SGL_BODIES

namespace host {

namespace details {

/// Throw the error of an unexpected dtype or device.
[[noreturn, gnu::cold, gnu::noinline]] inline void raise_mismatch(
    const char* what, const Piece& expected, const Piece& got) {
  throw Error(kTensorMatchError, what, " mismatch: expected ", expected, " but got ", got);
}
template <typename T>
[[noreturn, gnu::cold, gnu::noinline]] void raise_mismatch(const char* what, const Options<T>& options, const T& got) {
  Message text;
  const char* separator = "[";
  for (const auto& option : options) {
    text << separator << option;
    separator = ", ";
  }
  throw Error(kTensorMatchError, what, " mismatch: expected one of ", text.c_str(), "] but got ", got);
}

}  // namespace details

SGL_INLINE void SymbolicSize::set_value(std::int64_t value, DebugInfo info) {
  RuntimeCheck(info, !m_has_value, "the value of size '", m_annotation, "' is already set to ", m_value);
  m_value = value;
  m_has_value = true;
}

SGL_INLINE void SymbolicSize::s_mismatch(
    const char* prefix, std::int64_t dim, details::Annotation annotation, std::int64_t expected, std::int64_t got) {
  Message text;
  text << "Size mismatch for " << prefix << '#' << dim;
  if (annotation.size() != 0) {
    text << "('";
    text.append_limited(annotation.data(), annotation.size(), 200);  // leave room for the rest
    text << "')";
  }
  text << ": expected " << expected << " but got " << got;
  throw Error(kTensorMatchError, text.c_str());
}

SGL_INLINE void SymbolicDType::set_value(DLDataType value, DebugInfo info) {
  RuntimeCheck(info, !m_has_value, "the dtype is already set to ", m_value);
  verify(value);
}

SGL_INLINE void SymbolicDType::verify(DLDataType dtype, const details::Options<DLDataType>& options) {
  if (m_has_value && !::host::operator==(m_value, dtype)) [[unlikely]]
    details::raise_mismatch("DType", m_value, dtype);
  if (!options.allow(dtype)) [[unlikely]]
    details::raise_mismatch("DType", options, dtype);
  if (!m_options.allow(dtype)) [[unlikely]]
    details::raise_mismatch("DType", m_options, dtype);
  m_value = dtype;
  m_has_value = true;
}

SGL_INLINE void SymbolicDevice::set_value(DLDevice value, DebugInfo info) {
  RuntimeCheck(info, !m_has_value, "the device is already set to ", m_value);
  verify(value);
}

SGL_INLINE void SymbolicDevice::verify(DLDevice device, const details::Options<DLDevice>& options) {
  if (m_has_value && !::host::operator==(m_value, device)) [[unlikely]]
    details::raise_mismatch("Device", m_value, device);
  if (!options.allow(device)) [[unlikely]]
    details::raise_mismatch("Device", options, device);
  if (!m_options.allow(device)) [[unlikely]]
    details::raise_mismatch("Device", m_options, device);
  m_value = device;
  m_has_value = true;
}

SGL_INLINE auto TensorMatcher::with_strides(
    std::initializer_list<details::SizeRef> strides, DebugInfo info) && -> TensorMatcher&& {
  RuntimeCheck(info, !m_has_strides, "with_strides is given twice");
  RuntimeCheck(
      info, strides.size() == m_shape.size(), "with_strides has ", strides.size(), " entries for a shape of ",
      m_shape.size());
  m_strides = strides;
  m_has_strides = true;
  return static_cast<TensorMatcher&&>(*this);
}

SGL_INLINE void TensorMatcher::m_verify(const TensorView& view, const char* name, DebugInfo info) const {
  try {
    m_match(view);
  } catch (const Error& cause) {
    details::raise(
        kTensorMatchError, {"Tensor match failed for ", name != nullptr ? name : "", name != nullptr ? ", " : "", view,
                            " at ", info, "\n- Root cause: ", cause.what()});
  }
}

SGL_INLINE void TensorMatcher::m_match(const TensorView& view) const {
  const auto rank = static_cast<std::int64_t>(m_shape.size());
  if (view.ndim() != rank) [[unlikely]]
    details::raise(kTensorMatchError, {"Dimension mismatch: expected ", rank, " but got ", view.ndim()});
  for (std::int64_t i = 0; i < rank; ++i) m_shape.begin()[i].verify(view.size(i), "shape", i);
  if (m_has_strides) {
    for (std::int64_t i = 0; i < rank; ++i) {
      const auto& expected = m_strides.begin()[i];
      if (view.size(i) != 1 || !expected.is_bound()) expected.verify(view.stride(i), "stride", i);
    }
  } else if (!view.is_contiguous()) [[unlikely]] {
    details::raise(kTensorMatchError, {"Stride mismatch: expected a contiguous tensor"});
  }
  m_dtype.verify(view.dtype());
  m_device.verify(view.device());
  if (m_alignment != 1) m_match_alignment(view);
}

SGL_INLINE void TensorMatcher::m_match_alignment(const TensorView& view) const {
  if (reinterpret_cast<std::uintptr_t>(view.data_ptr()) % static_cast<std::uintptr_t>(m_alignment) != 0)
    details::raise(kTensorMatchError, {"Alignment mismatch: expected an address that ", m_alignment, " divides"});
  for (std::int32_t i = 0; i + 1 < view.ndim(); ++i) {
    const auto step = view.stride(i) * static_cast<std::int64_t>(dtype_bytes(view.dtype()));
    if (view.size(i) != 1 && step % m_alignment != 0)
      details::raise(
          kTensorMatchError,
          {"Alignment mismatch for stride#", i, ": expected a multiple of ", m_alignment, " bytes but got ", step});
  }
}

}  // namespace host

#endif  // SGL_BODIES
