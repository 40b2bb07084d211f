#pragma once

#include <sgl_kernel/device.cuh>

/// \file type.cuh
/// \brief Facts about element types (`dtype_trait`, `packed_t`) and conversion between them (`device::cast`).
///
/// | scalar       | packed pair    | packed four    |
/// |--------------|----------------|----------------|
/// | `fp32_t`     | `fp32x2_t`     | `fp32x4_t`     |
/// | `fp16_t`     | `fp16x2_t`     |                |
/// | `bf16_t`     | `bf16x2_t`     |                |
/// | `fp8_e4m3_t` | `fp8x2_e4m3_t` | `fp8x4_e4m3_t` |
/// | `fp8_e5m2_t` | `fp8x2_e5m2_t` | `fp8x4_e5m2_t` |
/// | `int8_t`     | `int8x2_t`     |                |
/// | `uint8_t`    | `uint8x2_t`    |                |
///
/// The types of fp8 need fp8.cuh. Compiles under NVRTC.

/// \brief Facts about `T`: `packed_t` is the type of twice as many elements, `element_t` that of one element,
/// `kElements` their number; `from(x)` converts `x` to `T`.
template <typename T>
struct dtype_trait;

namespace device {

/// \brief Convert a value, or a pack element by element: `cast<fp32x2_t>(fp16x2_t{1, 2})` is `float2{1, 2}`.
///
/// Rounds to nearest even. To fp8, a finite value out of range becomes the largest one of its sign (448 for e4m3, 57344
/// for e5m2), where PyTorch's conversion gives NaN (e4m3) or infinity (e5m2). From floats to `int8_t` and `uint8_t`,
/// too, what is out of range becomes the nearest value, and NaN becomes 0. A conversion without an instruction goes
/// through fp32, exactly. Each thread acts by itself, in a few instructions.
template <typename To, typename From>
[[nodiscard]] SGL_DEVICE To cast(const From& value) {
  return dtype_trait<To>::from(value);
}

namespace details {

/// Widening to fp32, one element or a pair; exact for every type.
SGL_DEVICE float to_fp32(float x) {
  return x;
}
SGL_DEVICE float to_fp32(fp16_t x) {
  return __half2float(x);
}
SGL_DEVICE float to_fp32(bf16_t x) {
  return __bfloat162float(x);
}
SGL_DEVICE float2 to_fp32x2(float2 x) {
  return x;
}
SGL_DEVICE float2 to_fp32x2(fp16x2_t x) {
  return __half22float2(x);
}
SGL_DEVICE float2 to_fp32x2(bf16x2_t x) {
  // A bf16 is the upper half of a float. Not __bfloat1622float2: the compiler does not repeat its inline assembly where
  // a value is used again, but keeps the results, in twice the registers.
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
SGL_DEVICE float2 to_fp32x2(int8x2_t x) {
  return {static_cast<float>(x.x), static_cast<float>(x.y)};
}
SGL_DEVICE float2 to_fp32x2(uint8x2_t x) {
  return {static_cast<float>(x.x), static_cast<float>(x.y)};
}
SGL_DEVICE float4 to_fp32x4(float4 x) {
  return x;
}
// fp8.cuh defines the next six, and has uses for the macros below.
SGL_DEVICE float to_fp32(fp8_e4m3_t x);
SGL_DEVICE float to_fp32(fp8_e5m2_t x);
SGL_DEVICE float2 to_fp32x2(fp8x2_e4m3_t x);
SGL_DEVICE float2 to_fp32x2(fp8x2_e5m2_t x);
SGL_DEVICE float4 to_fp32x4(fp8x4_e4m3_t x);
SGL_DEVICE float4 to_fp32x4(fp8x4_e5m2_t x);

/// The nearest integer, the even one of two, within a range.
SGL_DEVICE int narrow_to_integer(float x, int least, int most) {
#if defined(USE_ROCM)
  x = x != x ? 0.0f : ::fminf(::fmaxf(x, least), most);  // there the conversion below is undefined out of range
#endif
  const int nearest = __float2int_rn(x);  // saturates, and makes 0 of NaN
  return nearest < least ? least : nearest > most ? most : nearest;
}
SGL_DEVICE int8_t narrow_to_int8(float x) {
  return static_cast<int8_t>(narrow_to_integer(x, -128, 127));
}
SGL_DEVICE int8x2_t narrow_to_int8x2(float2 x) {
#if defined(USE_ROCM)
  return {narrow_to_int8(x.x), narrow_to_int8(x.y)};
#else
  uint32_t bits;  // both are bounded and packed by one instruction
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(bits) : "r"(__float2int_rn(x.y)), "r"(__float2int_rn(x.x)));
  int8x2_t result;
  memcpy(&result, &bits, sizeof(result));
  return result;
#endif
}
SGL_DEVICE uint8_t narrow_to_uint8(float x) {
  return static_cast<uint8_t>(narrow_to_integer(x, 0, 255));
}

template <typename T>
concept WidensToFp32x2 = requires(const T& x) { to_fp32x2(x); };
template <typename T>
concept WidensToFp32x4 = requires(const T& x) { to_fp32x4(x); };

template <typename T>
concept is_float_scalar = is_any_of<T, fp32_t, fp16_t, bf16_t, fp8_e4m3_t, fp8_e5m2_t>;
template <typename T>
concept is_integer = is_any_of<
    T, bool, char, signed char, unsigned char, short, unsigned short, int, unsigned int, long, unsigned long, long long,
    unsigned long long>;

template <typename T, typename Element, typename Packed, int kCount>
struct DTypeTraitBase {
  using self_t = T;
  using element_t = Element;
  using packed_t = Packed;
  enum : int { kElements = kCount };  // no variable, see is_same
};

/// The conversions to a scalar; `narrow` converts from fp32.
template <typename T, typename From, typename Narrow>
SGL_DEVICE T convert_scalar(const From& value, Narrow narrow) {
  if constexpr (is_same<T, From>) {
    return value;
  } else if constexpr (is_float_scalar<From>) {
    return narrow(to_fp32(value));
  } else if constexpr (is_integer<From> || is_same<From, double>) {
    return static_cast<T>(value);
  } else {
    static_assert(
        always_false<From>, "device::cast to a scalar takes fp32_t, fp16_t, bf16_t, fp8_*_t, double or an integer");
  }
}

}  // namespace details

}  // namespace device

#define SGL_DEFINE_SCALAR(TYPE, PACKED, NARROW)                                               \
  template <>                                                                                 \
  struct dtype_trait<TYPE> : device::details::DTypeTraitBase<TYPE, TYPE, PACKED, 1> {         \
    template <typename From>                                                                  \
    SGL_DEVICE static TYPE from(const From& value) {                                          \
      return device::details::convert_scalar<TYPE>(value, [](float wide) { return NARROW; }); \
    }                                                                                         \
  }

SGL_DEFINE_SCALAR(fp32_t, fp32x2_t, wide);
SGL_DEFINE_SCALAR(fp16_t, fp16x2_t, __float2half_rn(wide));
SGL_DEFINE_SCALAR(bf16_t, bf16x2_t, __float2bfloat16(wide));
SGL_DEFINE_SCALAR(int8_t, int8x2_t, device::details::narrow_to_int8(wide));
SGL_DEFINE_SCALAR(uint8_t, uint8x2_t, device::details::narrow_to_uint8(wide));

#define SGL_DEFINE_PAIR(TYPE, ELEMENT, PACKED, NARROW)                                                    \
  template <>                                                                                             \
  struct dtype_trait<TYPE> : device::details::DTypeTraitBase<TYPE, ELEMENT, PACKED, 2> {                  \
    template <typename From>                                                                              \
    SGL_DEVICE static TYPE from(const From& value) {                                                      \
      if constexpr (device::details::is_same<TYPE, From>) {                                               \
        return value;                                                                                     \
      } else {                                                                                            \
        static_assert(                                                                                    \
            device::details::WidensToFp32x2<From>,                                                        \
            "device::cast to a pair takes a pair: fp32x2_t, fp16x2_t, bf16x2_t, fp8x2_*_t, (u)int8x2_t"); \
        const float2 wide = device::details::to_fp32x2(value);                                            \
        return NARROW;                                                                                    \
      }                                                                                                   \
    }                                                                                                     \
  }

SGL_DEFINE_PAIR(fp32x2_t, fp32_t, fp32x4_t, wide);
SGL_DEFINE_PAIR(fp16x2_t, fp16_t, void, __float22half2_rn(wide));
SGL_DEFINE_PAIR(bf16x2_t, bf16_t, void, __float22bfloat162_rn(wide));
SGL_DEFINE_PAIR(int8x2_t, int8_t, void, device::details::narrow_to_int8x2(wide));
SGL_DEFINE_PAIR(
    uint8x2_t, uint8_t, void,
    (uint8x2_t{device::details::narrow_to_uint8(wide.x), device::details::narrow_to_uint8(wide.y)}));

#define SGL_DEFINE_FOUR(TYPE, ELEMENT)                                                                                 \
  template <>                                                                                                          \
  struct dtype_trait<TYPE> : device::details::DTypeTraitBase<TYPE, ELEMENT, void, 4> {                                 \
    template <typename From>                                                                                           \
    SGL_DEVICE static TYPE from(const From& value) {                                                                   \
      if constexpr (device::details::is_same<TYPE, From>) {                                                            \
        return value;                                                                                                  \
      } else {                                                                                                         \
        static_assert(                                                                                                 \
            device::details::WidensToFp32x4<From>, "device::cast to a pack of four takes one: fp32x4_t or fp8x4_*_t"); \
        return TYPE(device::details::to_fp32x4(value));                                                                \
      }                                                                                                                \
    }                                                                                                                  \
  }

SGL_DEFINE_FOUR(fp32x4_t, fp32_t);

/// \brief The type that holds twice as many elements as `T`: `packed_t<fp16_t>` is `fp16x2_t`.
template <typename T>
using packed_t = typename dtype_trait<T>::packed_t;
