#pragma once

#include <sgl_kernel/math.cuh>

/// \file atomic.cuh
/// \brief Atomic `add`, `max` and `min` on fp32, fp64, fp16, bf16 and integers in global or shared memory.
///
/// Each thread acts by itself and gets the value before the update. Threads update in any order, so a sum of floats may
/// differ in its last bits from run to run. Other memory is not ordered (relaxed).
/// \code
///   __shared__ float top;              // holds -1
///   atomic::max(&top, float(lane));    // 32 lanes: afterwards it holds 31
/// \endcode
/// Cost: one instruction if the hardware has it (`add` on all types, `max` and `min` on 32- and 64-bit integers and on
/// fp32), else a compare-and-swap loop, which under contention takes one round for each thread.
/// NaN: in `max` and `min` a `value` of NaN changes nothing. A NaN at `addr` gives way to the number, but on fp32 it
/// stays in `max` if its sign bit is clear, like that of every NaN that CUDA and PyTorch make, and in `min` if it is
/// set: one instruction, which compares bits, cannot know it. Compiles under NVRTC.

namespace device::atomic {

namespace details {

using namespace device::details;
using math::details::is_half;

template <typename T>
concept is_wide_integer = is_any_of<T, int, unsigned int, long, unsigned long, long long, unsigned long long>;

/// The integers of `atomicMax` and `atomicMin`: HIP has none for signed ones of 64 bits.
#if defined(USE_ROCM)
template <typename T>
concept has_extrema = is_any_of<T, int, unsigned int, unsigned long, unsigned long long>;
#else
template <typename T>
concept has_extrema = is_wide_integer<T>;
#endif

/// The type of the same size and sign that the intrinsics take.
template <typename T>
using native_t = conditional_t<
    sizeof(T) == 4, T, conditional_t<(static_cast<T>(-1) < static_cast<T>(0)), long long, unsigned long long>>;

template <typename To, typename From>
SGL_DEVICE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

/// Replace `*addr` by `op(*addr)` in a compare-and-swap loop over a `Word` of the same size.
template <typename Word, typename T, typename Op>
SGL_DEVICE T update(T* addr, Op op) {
  auto* word = reinterpret_cast<Word*>(addr);
  Word seen = *reinterpret_cast<volatile Word*>(word);
  while (true) {
    const T old = bits_as<T>(seen);
    const Word wanted = bits_as<Word>(static_cast<T>(op(old)));
    if (wanted == seen) return old;
    const Word before = atomicCAS(word, seen, wanted);
    if (before == seen) return old;
    seen = before;
  }
}

template <typename T, typename Op>
SGL_DEVICE T update_any(T* addr, Op op) {
  if constexpr (sizeof(T) == 2) {
#if defined(USE_ROCM)
    // There is no 16-bit swap: update the aligned 32-bit word around it, and keep its other half.
    const auto address = reinterpret_cast<uintptr_t>(addr);
    const uint32_t shift = (address & 2) * 8;
    T result{};
    update<uint32_t>(reinterpret_cast<uint32_t*>(address & ~uintptr_t{3}), [&](uint32_t word) {
      result = bits_as<T>(static_cast<uint16_t>(word >> shift));
      return (word & ~(0xffffu << shift)) | (static_cast<uint32_t>(bits_as<uint16_t>(op(result))) << shift);
    });
    return result;
#else
    return update<unsigned short>(addr, op);
#endif
  } else if constexpr (sizeof(T) == 4) {
    return update<unsigned int>(addr, op);
  } else {
    return update<unsigned long long>(addr, op);
  }
}

template <bool kIsMax, typename T>
SGL_DEVICE T extremum(T* addr, T value) {
  static_assert(
      is_half<T> || is_any_of<T, float, double> || is_wide_integer<T>,
      "atomic::max and atomic::min take fp32, fp64, fp16, bf16, or integers of 32 or 64 bits");
  if constexpr (has_extrema<T>) {
    auto* const to = reinterpret_cast<native_t<T>*>(addr);
    const auto wanted = static_cast<native_t<T>>(value);
    return static_cast<T>(kIsMax ? atomicMax(to, wanted) : atomicMin(to, wanted));
#if !defined(USE_ROCM)
  } else if constexpr (is_same<T, float>) {
    // The bits of positive floats are ordered like integers, those of negative floats in reverse; read as signed
    // integers, negative floats are below positive ones. NaN is outside this order, and changes nothing.
    if (value != value) return *static_cast<volatile float*>(addr);
    if (__float_as_int(value) >= 0)
      return __int_as_float(extremum<kIsMax>(reinterpret_cast<int*>(addr), __float_as_int(value)));
    return __uint_as_float(extremum<!kIsMax>(reinterpret_cast<unsigned int*>(addr), __float_as_uint(value)));
#endif
  } else {
    return update_any(addr, [value](T old) { return kIsMax ? math::max(old, value) : math::min(old, value); });
  }
}

}  // namespace details

/// \brief Add `value` to `*addr`.
template <typename T>
SGL_DEVICE T add(T* addr, T value) {
  if constexpr (details::is_wide_integer<T>) {
    // Signed and unsigned addition are the same, and the 64-bit intrinsic is unsigned only.
    using U = details::conditional_t<sizeof(T) == 4, unsigned int, unsigned long long>;
    return static_cast<T>(atomicAdd(reinterpret_cast<U*>(addr), static_cast<U>(value)));
  } else if constexpr (details::is_any_of<T, float, double>) {
    return atomicAdd(addr, value);
  } else {
    static_assert(details::is_half<T>, "atomic::add takes fp32, fp64, fp16, bf16, or integers of 32 or 64 bits");
#if defined(USE_ROCM)
    return details::update_any(addr, [value](T old) { return cast<T>(cast<float>(old) + cast<float>(value)); });
#else
    return atomicAdd(addr, value);
#endif
  }
}

/// \brief Raise `*addr` to `value` if that is larger.
template <typename T>
SGL_DEVICE T max(T* addr, T value) {
  return details::extremum<true>(addr, value);
}

/// \brief Lower `*addr` to `value` if that is smaller.
template <typename T>
SGL_DEVICE T min(T* addr, T value) {
  return details::extremum<false>(addr, value);
}

}  // namespace device::atomic
