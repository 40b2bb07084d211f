#pragma once

/// \file signature.h
/// \brief `SGL_FIELDS`: the fields of a struct that crosses from the host to a kernel, or to a deferred function.
///
/// \code
///   struct Params {
///     void* data;
///     long long length;
///     SGL_FIELDS(data, length)
///   };
/// \endcode
/// Both sides of such a call are compiled by themselves, perhaps from different versions of a header. So each compiler
/// spells the types of the parameters, with name, type and offset of every field, as one type. Its name in the C++ ABI
/// is the same text from all compilers if, and only if, both sides mean the same; the core compares the texts when it
/// loads the code. A field that the line forgets is an error of the compiler.
///
/// Read by every compiler, NVRTC among them.

#if defined(__CUDACC__)
#define SGL_UNCALLED __host__ __device__  // for NVRTC a function without a side is an error, also if nothing calls it
#else
#define SGL_UNCALLED
#endif

#if defined(__CUDACC_RTC__)
#define SGL_OFFSET_OF(TYPE, FIELD) ((unsigned long)__INTADDR__(&((TYPE*)0)->FIELD))  // NVRTC has no offsetof
#else
#define SGL_OFFSET_OF(TYPE, FIELD) __builtin_offsetof(TYPE, FIELD)
#endif

namespace sgl {

/// \brief Specialise it as true for a class of a library, which can have no `SGL_FIELDS`: it is then compared by its
/// name, size and alignment.
template <typename T>
inline constexpr bool kIsOpaque = false;

template <auto kField, typename T, unsigned long kOffset>
struct Field;
template <typename T, unsigned long kSize, unsigned long kAlignment, typename... Fields>
struct Struct;
template <typename T, typename Underlying>
struct Enum;

namespace details {

template <typename... Fields>
struct FieldList {
  template <typename T>
  using of = Struct<T, sizeof(T), alignof(T), Fields...>;
};

template <typename T>
concept HasFields = requires(const T& value) { T::sgl_fields(value); };

template <typename T>
concept HasNoFields = __is_empty(T) || kIsOpaque<T>;

/// A type with all that its values depend on. A pointer is followed by name alone.
template <typename T>
struct Described {
  using type = T;
};
template <typename T>
  requires((__is_class(T) || __is_union(T)) && !HasFields<T>)
struct Described<T> {
  static_assert(
      HasNoFields<T>,
      "this struct crosses between host and kernel, or to a deferred function, so that its fields must be known: "
      "write SGL_FIELDS(a, b, ...) into it, with their names (sgl_kernel/signature.h)");
  using type = FieldList<>::of<T>;
};
template <typename T>
  requires HasFields<T>
struct Described<T> {
  using type = typename decltype(T::sgl_fields(*static_cast<const T*>(nullptr)))::template of<T>;
};
template <typename T>
  requires(__is_enum(T))
struct Described<T> {
  using type = Enum<T, __underlying_type(T)>;
};
template <typename T>
struct Described<const T> {
  using type = const typename Described<T>::type;
};
template <typename T>
struct Described<T&> {
  using type = typename Described<T>::type&;
};
template <typename T, unsigned long kSize>
struct Described<T[kSize]> {
  using type = typename Described<T>::type[kSize];
};

template <typename Function>
struct DescribedFunction;
template <typename R, typename... Args>
struct DescribedFunction<R(Args...)> {
  using type = typename Described<R>::type(typename Described<Args>::type...);
};
template <typename R, typename... Args>
struct DescribedFunction<R(Args...) noexcept> : DescribedFunction<R(Args...)> {};
template <typename Function>
struct DescribedFunction<Function*> : DescribedFunction<Function> {};

}  // namespace details

/// \brief The type of a function, or of a pointer to one, with the fields of its parameters.
template <typename Function>
using described = typename details::DescribedFunction<Function>::type;

/// A variable of a device file, or a class of the host, whose name is that of a described function.
#if defined(__CUDACC_RTC__)
template <typename Described>
__device__ char signature;
#else
template <typename Described>
struct signature {};
#endif

}  // namespace sgl

#define SGL_FIELD(FIELD)                                                                   \
  ::sgl::Field<                                                                            \
      &SglSelf::FIELD, typename ::sgl::details::Described<decltype(SglSelf::FIELD)>::type, \
      SGL_OFFSET_OF(SglSelf, FIELD)>
// Each of these macros is expanded once in a scan of its result, so that there are eight, and four scans.
#define SGL_EACH_1(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_2(__VA_ARGS__))
#define SGL_EACH_2(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_3(__VA_ARGS__))
#define SGL_EACH_3(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_4(__VA_ARGS__))
#define SGL_EACH_4(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_5(__VA_ARGS__))
#define SGL_EACH_5(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_6(__VA_ARGS__))
#define SGL_EACH_6(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_7(__VA_ARGS__))
#define SGL_EACH_7(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_8(__VA_ARGS__))
#define SGL_EACH_8(FIELD, ...) SGL_FIELD(FIELD) __VA_OPT__(, SGL_EACH_AGAIN SGL_PARENTHESES(__VA_ARGS__))
#define SGL_EACH_AGAIN() SGL_EACH_1
#define SGL_PARENTHESES ()
#define SGL_EACH_FIELD(...) SGL_SCAN(SGL_SCAN(SGL_SCAN(SGL_EACH_1(__VA_ARGS__))))
#define SGL_SCAN(...) __VA_ARGS__

/// \brief Inside a struct: the names of all its fields, up to 32.
// The structured binding takes as many names as there are fields, or does not compile.
#define SGL_FIELDS(...)                                                    \
  template <typename SglSelf>                                              \
  SGL_UNCALLED static constexpr auto sgl_fields(const SglSelf& sgl_self) { \
    [[maybe_unused]] const auto& [__VA_ARGS__] = sgl_self;                 \
    return ::sgl::details::FieldList<SGL_EACH_FIELD(__VA_ARGS__)>{};       \
  }
