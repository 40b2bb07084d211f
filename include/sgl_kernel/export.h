#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/impl/opaque.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/signature.h>
#include <sgl_kernel/tensor_view.h>
#include <sgl_kernel/utils.h>

#include <tvm/ffi/c_api.h>

#include <cxxabi.h>
#include <sys/auxv.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// \file export.h
/// \brief `SGL_EXPORT(name, (symbol))`: make a C++ function callable from Python.
///
/// The symbol is a function, a function template with its arguments, a static member or a lambda without captures.
/// Parameters: integers, enums, floats, bool, `host::TensorView`, `host::Optional` of any of these, `const char*`,
/// `DLDevice`, `DLDataType`, `void*`; a struct of such fields, and of arrays and structs of them, which `SGL_FIELDS`
/// names: it takes an argument for each, one after the other. Results: void, integers, enums, floats, bool,
/// `host::Tensor`. A wrong number or type of arguments, or a tensor with elements but no memory (a fake one), is a
/// `TypeError` with the function, the position, the expected and the actual type. Every C++ exception ends here and
/// becomes a Python one: `host::Error` by its name, any other as a `RuntimeError`. The text of a `TensorMatchError`
/// begins with the function's name.
///
/// Include it last. If tvm-ffi's C++ headers are included before it, their types (`tvm::ffi::TensorView`, `Optional`,
/// `String`, ...) are accepted and returned too, and `tvm::ffi::Error` keeps its kind; otherwise only the C ABI is
/// used.

#if defined(TVM_FFI_FUNCTION_H_) || defined(TVM_FFI_ANY_H_)
#define SGL_HAS_TVM_FFI_CPP 1
#else
#define SGL_HAS_TVM_FFI_CPP 0
#endif

namespace host::details {

/// `kTVMFFIBigInt`: an int outside of int64. tvm-ffi has the type since 0.1.15, and gives its index to no other before;
/// older releases refuse such an int themselves, with an OverflowError.
inline constexpr std::int32_t kBigInt = 78;

/// The type of an argument, in a Python programmer's words.
[[gnu::cold]] SGL_INLINE const char* type_name(std::int32_t type_index) noexcept;

/// No tensor's memory is below this address. The address of a view of a tensor without memory is its offset, so the
/// bound is as high as can be: 4 GiB.
inline constexpr std::uintptr_t kLowestAddress = std::uintptr_t{1} << 32;

/// Whether this may be memory of the CPU's, though it is so low. An executable may lie at a fixed address below 4 GiB,
/// as Debian's Python does. Its heap lies behind it, and nothing before it.
[[gnu::cold]] SGL_INLINE bool is_in_low_heap(const DLTensor& tensor) noexcept;

/// The place of an argument, with all that an error needs.
struct ArgSlot {
  const char* function;
  std::int32_t position;  // from 1, as in Python's own messages

  [[noreturn, gnu::cold]] SGL_INLINE void mismatch(const char* expected, const char* got) const;
  [[noreturn, gnu::cold]] SGL_INLINE void wrong_type(const char* expected, bool or_none, std::int32_t got) const;
  [[noreturn, gnu::cold]] SGL_INLINE void out_of_range(bool is_signed, std::size_t bits, std::int64_t got) const;
  [[gnu::cold]] SGL_INLINE void check_empty(const DLTensor& tensor) const;
  /// Refuse a tensor without memory, such as a tracer's: it converts like any other.
  void check_memory(const DLTensor& tensor) const {
    if (reinterpret_cast<std::uintptr_t>(tensor.data) < kLowestAddress) [[unlikely]]
      if (!is_in_low_heap(tensor)) check_empty(tensor);
  }
};

/// The DLTensor of an argument that is a tensor.
inline const DLTensor* dl_tensor(const TVMFFIAny& any) noexcept {
  if (any.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(any.v_ptr);
  return reinterpret_cast<const DLTensor*>(any.v_obj + 1);  // it follows the object's header
}
inline bool is_tensor(const TVMFFIAny& any) noexcept {
  return any.type_index == kTVMFFIDLTensorPtr || any.type_index == kTVMFFITensor;
}

[[noreturn, gnu::cold]] SGL_INLINE void raise_count(const char* name, std::size_t expected, std::int32_t got);

/// Hand an exception to Python. A `TensorMatchError` names the function that was called, if its text does not yet.
[[gnu::cold]] SGL_INLINE void report(const char* function, const Error& error) noexcept;

/// Reads a `T` from an argument: `matches` returns whether that is possible, `read` does it. `kName` is for errors.
template <typename T>
struct Arg;

template <>
struct Arg<bool> {
  static constexpr const char* kName = "bool";
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFIBool || any.type_index == kTVMFFIInt;
  }
  static bool read(const TVMFFIAny& any, ArgSlot) noexcept {
    return any.v_int64 != 0;
  }
};

template <traits::integral T>
struct Arg<T> {
  static constexpr const char* kName = "int";
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFIInt || any.type_index == kTVMFFIBool;
  }
  static T read(const TVMFFIAny& any, ArgSlot slot) {
    const auto value = static_cast<T>(any.v_int64);
    // Eight bytes always fit: Python code writes all ones as -1 for a uint64_t.
    if (sizeof(T) < 8 && static_cast<std::int64_t>(value) != any.v_int64) [[unlikely]]
      slot.out_of_range(traits::is_signed<T>, sizeof(T) * 8, any.v_int64);
    return value;
  }
};

template <typename T>
  requires(__is_enum(T))
struct Arg<T> : Arg<__underlying_type(T)> {
  static T read(const TVMFFIAny& any, ArgSlot slot) {
    return static_cast<T>(Arg<__underlying_type(T)>::read(any, slot));
  }
};

template <traits::floating_point T>
struct Arg<T> {
  static constexpr const char* kName = "float";
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFIFloat || any.type_index == kTVMFFIInt || any.type_index == kTVMFFIBool;
  }
  static T read(const TVMFFIAny& any, ArgSlot) noexcept {
    return any.type_index == kTVMFFIFloat ? static_cast<T>(any.v_float64) : static_cast<T>(any.v_int64);
  }
};

template <>
struct Arg<TensorView> {
  static constexpr const char* kName = "tensor";
  static bool matches(const TVMFFIAny& any) noexcept {
    return is_tensor(any);
  }
  static TensorView read(const TVMFFIAny& any, ArgSlot slot) {
    const TensorView view = dl_tensor(any);
    slot.check_memory(view.dl_tensor());
    return view;
  }
};

template <>
struct Arg<const char*> {
  static constexpr const char* kName = "str";
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFIRawStr || any.type_index == kTVMFFISmallStr || any.type_index == kTVMFFIStr;
  }
  static const char* read(const TVMFFIAny& any, ArgSlot slot) {
    const char* text = any.v_c_str;
    if (any.type_index == kTVMFFIRawStr) return text;
    std::size_t size;
    if (any.type_index == kTVMFFISmallStr) {
      text = any.v_bytes;  // up to 7 bytes, so a NUL follows
      size = any.small_str_len;
    } else {
      const auto* bytes = reinterpret_cast<const TVMFFIByteArray*>(any.v_obj + 1);
      text = bytes->data;
      size = bytes->size;
    }
    if (std::strlen(text) != size) slot.mismatch("str", "str with a NUL inside, which would end it there");
    return text;
  }
};

template <>
struct Arg<DLDevice> {
  static constexpr const char* kName = "device";
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFIDevice;
  }
  static DLDevice read(const TVMFFIAny& any, ArgSlot) noexcept {
    return any.v_device;
  }
};

template <>
struct Arg<DLDataType> {
  static constexpr const char* kName = "dtype";
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFIDataType;
  }
  static DLDataType read(const TVMFFIAny& any, ArgSlot) noexcept {
    return any.v_dtype;
  }
};

template <>
struct Arg<void*> {
  static constexpr const char* kName = "pointer";
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFIOpaquePtr || any.type_index == kTVMFFINone;
  }
  static void* read(const TVMFFIAny& any, ArgSlot) noexcept {
    return any.type_index == kTVMFFINone ? nullptr : any.v_ptr;
  }
};

/// `std::optional`, recognised by its shape: few modules need its header, and all would pay for it.
template <typename T>
inline constexpr bool kIsOptional = false;
template <template <typename> class Optional, typename T>
  requires requires(const Optional<T>& value) {
    Optional<T>{};
    { value.has_value() } -> traits::same_as<bool>;
  }
inline constexpr bool kIsOptional<Optional<T>> = true;

template <template <typename> class Optional, typename T>
  requires(kIsOptional<Optional<T>> && requires(const TVMFFIAny& any) { Arg<T>::matches(any); })
struct Arg<Optional<T>> {
  static constexpr const char* kName = Arg<T>::kName;
  static bool matches(const TVMFFIAny& any) noexcept {
    return any.type_index == kTVMFFINone || Arg<T>::matches(any);
  }
  static Optional<T> read(const TVMFFIAny& any, ArgSlot slot) {
    if (any.type_index == kTVMFFINone) return {};
    return Arg<T>::read(any, slot);
  }
};

template <typename T>
concept LightArg = requires(const TVMFFIAny& any, ArgSlot slot) {
  Arg<T>::matches(any);
  Arg<T>::read(any, slot);
};

/// Whether tvm-ffi has type traits for `T`.
template <typename T>
constexpr bool known_to_tvm() {
#if SGL_HAS_TVM_FFI_CPP
  if constexpr (traits::is_same<T, ::tvm::ffi::AnyView> || traits::is_same<T, ::tvm::ffi::Any>) return true;
  else return ::tvm::ffi::TypeTraits<T>::convert_enabled;
#else
  return false;
#endif
}

template <typename T>
auto read_argument(const TVMFFIAny& any, ArgSlot slot) {
  using U = traits::remove_cvref<T>;
  static_assert(
      !traits::is_lvalue_reference<T> || traits::is_const<traits::remove_reference<T>>,
      "SGL_EXPORT: a write to a reference parameter would be lost: take a value, return the result");
  if constexpr (LightArg<U>) {
    if (!Arg<U>::matches(any)) [[unlikely]]
      slot.wrong_type(Arg<U>::kName, kIsOptional<U>, any.type_index);
    return Arg<U>::read(any, slot);
  } else {
    static_assert(
        known_to_tvm<U>(),
        "SGL_EXPORT: this parameter type cannot come from Python. Allowed are integers, enums, floats, bool, "
        "host::TensorView, const char*, DLDevice, DLDataType, void*, host::Optional of one of these, structs of them "
        "with SGL_FIELDS, and tvm-ffi's own types if its headers are included before sgl_kernel/export.h");
#if SGL_HAS_TVM_FFI_CPP
    if (is_tensor(any)) slot.check_memory(*dl_tensor(any));
    if constexpr (traits::is_same<U, ::tvm::ffi::AnyView>) {
      return reinterpret_cast<const ::tvm::ffi::AnyView&>(any);
    } else if constexpr (traits::is_same<U, ::tvm::ffi::Any>) {
      return U(reinterpret_cast<const ::tvm::ffi::AnyView&>(any));
    } else {
      using Traits = ::tvm::ffi::TypeTraits<U>;
      auto value = Traits::TryCastFromAnyView(&any);
      if (!value.has_value()) [[unlikely]]
        slot.mismatch(Traits::TypeStr().c_str(), Traits::GetMismatchTypeInfo(&any).c_str());
      return U(*static_cast<decltype(value)&&>(value));
    }
#endif
  }
}

template <typename R>
void write_result(R&& value, TVMFFIAny* result) {
  using U = traits::remove_cvref<R>;
  result->zero_padding = 0;
  result->v_int64 = 0;
  if constexpr (traits::is_same<U, bool>) {
    result->type_index = kTVMFFIBool;
    result->v_int64 = value;
  } else if constexpr (traits::integral<U> || __is_enum(U)) {
    result->type_index = kTVMFFIInt;
    result->v_int64 = static_cast<std::int64_t>(value);
  } else if constexpr (traits::floating_point<U>) {
    result->type_index = kTVMFFIFloat;
    result->v_float64 = static_cast<double>(value);
  } else if constexpr (traits::is_same<U, Tensor>) {
    if (!value.defined()) return;  // None
    result->type_index = kTVMFFITensor;
    result->v_obj = static_cast<TVMFFIObject*>(value.release());
  } else {
    static_assert(
        known_to_tvm<U>(),
        "SGL_EXPORT: this result type cannot go to Python. Allowed are void, integers, enums, floats, bool, "
        "host::Tensor, and tvm-ffi's own types if its headers are included before sgl_kernel/export.h");
#if SGL_HAS_TVM_FFI_CPP
    reinterpret_cast<::tvm::ffi::Any&>(*result) = ::tvm::ffi::Any(static_cast<R&&>(value));
#endif
  }
}

template <typename... T>
struct Types {
  static constexpr std::size_t kCount = sizeof...(T);
};
template <typename... T, typename... U>
auto operator+(Types<T...>, Types<U...>) -> Types<T..., U...>;

/// The types of the arguments that a parameter takes: its own, or those of its fields.
template <typename T>
struct Flat {
  using type = Types<T>;
};
template <typename T>
using flat = typename Flat<T>::type;

template <typename T, std::size_t... Index>
auto flat_array(Indices<Index...>) -> decltype((Types<>{} + ... + (static_cast<void>(Index), flat<T>{})));
template <typename T, std::size_t kSize>
struct Flat<T[kSize]> {
  using type = decltype(flat_array<T>(IndicesUpTo<kSize>{}));
};

template <typename Class, typename T>
auto flat_field(T Class::*) -> flat<T>;
template <auto... kField, typename... T, unsigned long... kOffset>
auto flat_fields(sgl::details::FieldList<sgl::Field<kField, T, kOffset>...>)
    -> decltype((Types<>{} + ... + flat_field(kField)));
template <sgl::details::HasFields T>
struct Flat<T> {
  using type = decltype(flat_fields(T::sgl_fields(*static_cast<const T*>(nullptr))));
};

/// A struct is made like `T{a, b, ...}`, of its fields in their order.
template <typename T, typename... Argument, std::size_t... Index>
T read_fields(const TVMFFIAny* args, ArgSlot slot, Types<Argument...>, Indices<Index...>) {
  return T{read_argument<Argument>(
      args[Index], ArgSlot{slot.function, slot.position + static_cast<std::int32_t>(Index)})...};
}

/// Reads a parameter from the arguments that begin with `*args`, which is the one that `slot` names.
template <typename T>
auto read_parameter(const TVMFFIAny* args, ArgSlot slot) {
  using U = traits::remove_cvref<T>;
  if constexpr (sgl::details::HasFields<U>)
    return read_fields<U>(args, slot, flat<U>{}, IndicesUpTo<flat<U>::kCount>{});
  else return read_argument<T>(*args, slot);
}

template <std::size_t Index, typename T>
struct ReadParameter {
  T value;
};
template <typename... Parameters>
struct ReadParameters : Parameters... {};

/// Where the arguments of each parameter begin; the last entry is their number.
template <typename... Args>
struct Positions {
  std::size_t first[sizeof...(Args) + 1] = {};

  constexpr Positions() {
    std::size_t i = 0;
    ((first[i + 1] = first[i] + flat<traits::remove_cvref<Args>>::kCount, ++i), ...);
  }
};

template <typename R, typename... Args, std::size_t... Index>
void unpack_and_call(
    const char* name, R (*function)(Args...), [[maybe_unused]] const TVMFFIAny* args, std::int32_t num_args,
    TVMFFIAny* result, Indices<Index...>) {
  constexpr Positions<Args...> kPositions;
  constexpr auto kCount = kPositions.first[sizeof...(Args)];
  if (num_args != static_cast<std::int32_t>(kCount)) [[unlikely]]
    raise_count(name, kCount, num_args);
  // Braces read the arguments from left to right, so that the first wrong one is the one reported.
  [[maybe_unused]] ReadParameters<ReadParameter<Index, traits::remove_cvref<Args>>...> read{{read_parameter<Args>(
      args + kPositions.first[Index], ArgSlot{name, static_cast<std::int32_t>(kPositions.first[Index]) + 1})}...};
  if constexpr (traits::is_same<R, void>) {
    function(static_cast<Args&&>(static_cast<ReadParameter<Index, traits::remove_cvref<Args>>&>(read).value)...);
  } else {
    write_result<R>(
        function(static_cast<Args&&>(static_cast<ReadParameter<Index, traits::remove_cvref<Args>>&>(read).value)...),
        result);
  }
}

/// The C ABI call: unpack, call, pack; no exception leaves it, but the end of a thread does: pthread_exit, by which a
/// Python that shuts down ends a thread that asks for its lock, unwinds the stack, and may not be stopped.
template <typename R, typename... Args>
int safe_call(
    const char* name, R (*function)(Args...), const TVMFFIAny* args, std::int32_t num_args, TVMFFIAny* result) {
  try {
    unpack_and_call(name, function, args, num_args, result, IndicesUpTo<sizeof...(Args)>{});
    return 0;
  } catch (const RaisedError&) {
    // the caller of this module finds the error already
  } catch (const Error& error) {
    report(name, error);
#if SGL_HAS_TVM_FFI_CPP
  } catch (const ::tvm::ffi::Error& error) {
    TVMFFIErrorSetRaisedFromCStr(error.kind().c_str(), error.message().c_str());
#endif
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
#if defined(__GLIBCXX__)
  } catch (const ::abi::__forced_unwind&) {
    throw;
#endif
  } catch (...) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "a C++ exception that is not a std::exception");
  }
  return -1;
}

/// Functions and captureless lambdas alike.
template <typename F>
int export_call(const char* name, F&& symbol, const TVMFFIAny* args, std::int32_t num_args, TVMFFIAny* result) {
  static_assert(
      requires { +symbol; },
      "SGL_EXPORT: the symbol must be a function, a function template with its arguments, a static member function "
      "or a lambda without captures");
  return safe_call(name, +symbol, args, num_args, result);
}

}  // namespace host::details

#if SGL_BODIES

namespace host::details {

SGL_INLINE const char* type_name(std::int32_t type_index) noexcept {
  switch (type_index) {
    case kTVMFFINone:
      return "None";
    case kTVMFFIInt:
      return "int";
    case kTVMFFIBool:
      return "bool";
    case kTVMFFIFloat:
      return "float";
    case kTVMFFIOpaquePtr:
      return "pointer";
    case kTVMFFIDataType:
      return "dtype";
    case kTVMFFIDevice:
      return "device";
    case kTVMFFIDLTensorPtr:
    case kTVMFFITensor:
      return "tensor";
    case kTVMFFIRawStr:
    case kTVMFFISmallStr:
    case kTVMFFIStr:
      return "str";
    case kTVMFFIByteArrayPtr:
    case kTVMFFISmallBytes:
    case kTVMFFIBytes:
      return "bytes";
    case kTVMFFIError:
      return "error";
    case kTVMFFIFunction:
      return "function";
    case kTVMFFIShape:
      return "shape";
    case kTVMFFIArray:
    case kTVMFFIList:
      return "list";
    case kTVMFFIMap:
    case kTVMFFIDict:
      return "dict";
    case kTVMFFIModule:
      return "module";
    default:
      return "object";
  }
}

SGL_INLINE void ArgSlot::mismatch(const char* expected, const char* got) const {
  throw Error("TypeError", function, "(): argument ", position, ": expected ", expected, ", got ", got);
}

SGL_INLINE void ArgSlot::wrong_type(const char* expected, bool or_none, std::int32_t got) const {
  Message text;
  text << expected << (or_none ? " or None" : "");
  const bool is_big = got == kBigInt;
  mismatch(text.c_str(), is_big ? "an int outside of int64, -2**63 to 2**63 - 1" : type_name(got));
}

SGL_INLINE void ArgSlot::out_of_range(bool is_signed, std::size_t bits, std::int64_t got) const {
  Message expected;
  expected << (is_signed ? "int" : "uint") << bits;
  Message text;
  text << "int " << got << ", which does not fit";
  mismatch(expected.c_str(), text.c_str());
}

SGL_INLINE bool is_in_low_heap(const DLTensor& tensor) noexcept {
  static const auto executable = ::getauxval(AT_PHDR);
  return tensor.device.device_type == kDLCPU && reinterpret_cast<std::uintptr_t>(tensor.data) >= executable;
}

SGL_INLINE void ArgSlot::check_empty(const DLTensor& tensor) const {
  std::uint64_t num_elements = 1;
  for (std::int32_t i = 0; i < tensor.ndim; ++i) num_elements *= static_cast<std::uint64_t>(tensor.shape[i]);
  if (num_elements == 0) return;
  Message text;
  text << "one of " << num_elements << (num_elements == 1 ? " element" : " elements")
       << " without any: a fake or meta tensor, or one whose storage was freed. Call an op by its Python function or "
          "by its name in torch.ops, which take such tensors";
  mismatch("tensor with memory", text.c_str());
}

SGL_INLINE void raise_count(const char* name, std::size_t expected, std::int32_t got) {
  throw Error("TypeError", name, "(): expected ", expected, expected == 1 ? " argument" : " arguments", ", got ", got);
}

SGL_INLINE void report(const char* function, const Error& error) noexcept {
  Message text;
  const bool is_named = std::strncmp(error.what(), function, std::strlen(function)) == 0;
  if (!is_named && std::strcmp(error.kind(), "TensorMatchError") == 0) text << function << "(): ";
  text << error.what();
  TVMFFIErrorSetRaisedFromCStr(error.kind(), text.c_str());
}

}  // namespace host::details

#endif  // SGL_BODIES

// Its parameters begin with `sgl_`, as they hide functions of the same names from SYMBOL.
#define SGL_DEFINE_EXPORT(NAME, SYMBOL)                                                     \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##NAME(                   \
      void*, const TVMFFIAny* sgl_args, std::int32_t sgl_num_args, TVMFFIAny* sgl_result) { \
    return ::host::details::export_call(#NAME, SYMBOL, sgl_args, sgl_num_args, sgl_result); \
  }

/// \brief Export `SYMBOL`, in parentheses so that it may hold commas, to Python as `NAME`.
#if defined(SGL_COMPAT)
// The symbols of newer kernels of SGLang are named as they are seen in this namespace; all others are seen in it too.
#define SGL_EXPORT(NAME, SYMBOL)  \
  namespace sglang {              \
  SGL_DEFINE_EXPORT(NAME, SYMBOL) \
  }
#else
#define SGL_EXPORT(NAME, SYMBOL) SGL_DEFINE_EXPORT(NAME, SYMBOL)
#endif
