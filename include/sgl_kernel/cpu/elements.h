#pragma once

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/isa.h>

#include <cstdint>

/// \file cpu/elements.h
/// \brief How the loops of row operations read and write elements of any type: as floats.
///
/// x86-64 has instructions between fp16 and float, but compilers do not use them in the vectors of a loop: chunks of
/// fp16 are converted before and behind an inner loop over their elements. All other types are converted within it.

namespace host::cpu {

/// \brief Elements of a chunk, by the type of the output: whole vectors of AVX-512 of it and of the floats.
template <typename T>
inline constexpr int kChunk = sizeof(T) == 1 ? 64 : 32;

/// \brief Whether elements of type T are converted by chunks, where vectors hold `kFloats` floats.
template <typename T, int kFloats>
inline constexpr bool kByChunks = false;
#if defined(__x86_64__)
template <>
inline constexpr bool kByChunks<fp16_t, 8> = true;  // with F16C, see `with_widest_vectors`
template <>
inline constexpr bool kByChunks<fp16_t, 16> = true;
#endif

/// \brief How many neighbours an iteration of an inner loop takes. Two of bf16 are the halves of a word of 32 bits: the
/// iteration makes both of them floats, and puts two results together, so that vectors of words need no shuffles.
template <typename T, typename U, int kFloats>
inline constexpr int kTogether = 1;
template <int kFloats>
  requires(kFloats > 1)
inline constexpr int kTogether<bf16_t, bf16_t, kFloats> = 2;
template <int kFloats>
  requires(kFloats > 1)
inline constexpr int kTogether<bf16_t, fp8_e4m3_t, kFloats> = 2;
template <int kFloats>
  requires(kFloats > 1)
inline constexpr int kTogether<bf16_t, fp8_e5m2_t, kFloats> = 2;

namespace details {

using Word [[gnu::may_alias, gnu::aligned(2)]] = std::uint32_t;
using HalfWord [[gnu::may_alias, gnu::aligned(1)]] = std::uint16_t;

template <typename T, int kCount>
[[gnu::always_inline]] inline void read(const T* from, float (&to)[kCount]) {
  for (int n = 0; n < kCount; ++n) to[n] = to_float(from[n]);
}
[[gnu::always_inline]] inline void read(const bf16_t* from, float (&to)[2]) {
  const std::uint32_t both = *reinterpret_cast<const Word*>(from);
  to[0] = from_bits(both << 16);
  to[1] = from_bits(both & 0xffff0000);
}
template <typename T>
[[gnu::always_inline]] inline void write(const float (&from)[1], T* to) {
  to[0] = from_float<T>(from[0]);
}
[[gnu::always_inline]] inline void write(const float (&from)[2], bf16_t* to) {
  *reinterpret_cast<Word*>(to) = (bf16_bits(from[0]) >> 16) | (bf16_bits(from[1]) & 0xffff0000);
}
template <int kMantissa>
[[gnu::always_inline]] inline void write_fp8(const float (&from)[2], void* to) {
  *static_cast<HalfWord*>(to) =
      static_cast<std::uint16_t>(choose(0xff, fp8_bits<kMantissa, 0>(from[0]), fp8_bits<kMantissa, 8>(from[1])));
}
[[gnu::always_inline]] inline void write(const float (&from)[2], fp8_e4m3_t* to) {
  write_fp8<3>(from, to);
}
[[gnu::always_inline]] inline void write(const float (&from)[2], fp8_e5m2_t* to) {
  write_fp8<2>(from, to);
}
template <typename T>
[[gnu::always_inline]] inline void write_integers(const float (&from)[2], T* to) {
  const auto lower = integer_bits<T>(from[0]) & 0xff, upper = integer_bits<T>(from[1]) & 0xff;
  *reinterpret_cast<HalfWord*>(to) = static_cast<std::uint16_t>(lower | upper << 8);
}
[[gnu::always_inline]] inline void write(const float (&from)[2], std::int8_t* to) {
  write_integers(from, to);
}
[[gnu::always_inline]] inline void write(const float (&from)[2], std::uint8_t* to) {
  write_integers(from, to);
}

}  // namespace details

/// \brief The elements of a chunk of an input. Where they are converted, `length` is a multiple of kFloats.
template <typename T, int kFloats>
struct InputChunk {
  const T* elements;

  [[gnu::always_inline]] void load(const T* from, std::int64_t) {
    elements = from;
  }
  template <int kCount>
  [[gnu::always_inline]] void get(std::int64_t i, float (&floats)[kCount]) const {
    details::read(elements + i * kCount, floats);
  }
};

/// \brief The elements of a chunk of an output. They are in memory after `store`, whose `length` is as for an input.
template <typename T, int kFloats>
struct OutputChunk {
  T* elements;

  [[gnu::always_inline]] void begin(T* to) {
    elements = to;
  }
  template <int kCount>
  [[gnu::always_inline]] void set(std::int64_t i, const float (&floats)[kCount]) {
    details::write(floats, elements + i * kCount);
  }
  [[gnu::always_inline]] void store(std::int64_t) {}
};

#if defined(__x86_64__)
template <typename T, int kFloats>
  requires kByChunks<T, kFloats>
struct InputChunk<T, kFloats> {
  alignas(64) float floats[64];

  [[gnu::always_inline]] void load(const T* from, std::int64_t length) {
    for (int i = 0; i < length; i += kFloats)
      details::convert_vector(*reinterpret_cast<const T(*)[kFloats]>(from + i), floats + i);
  }
  [[gnu::always_inline]] void get(std::int64_t i, float (&to)[1]) const {
    to[0] = floats[i];
  }
};

template <typename T, int kFloats>
  requires kByChunks<T, kFloats>
struct OutputChunk<T, kFloats> {
  T* elements;
  alignas(64) float floats[64];

  [[gnu::always_inline]] void begin(T* to) {
    elements = to;
  }
  [[gnu::always_inline]] void set(std::int64_t i, const float (&from)[1]) {
    floats[i] = from[0];
  }
  [[gnu::always_inline]] void store(std::int64_t length) {
    for (int i = 0; i < length; i += kFloats)
      details::convert_vector(floats + i, *reinterpret_cast<T(*)[kFloats]>(elements + i));
  }
};
#endif

/// \brief Calls `body(Vectors<n>{}, first, length)` for parts of `count` elements that together are all of them: chunks
/// if inputs of type T or outputs of type U want them, and else one part.
template <typename T, typename U, int kFloats, typename Body>
[[gnu::always_inline]] inline void for_each_chunk(Vectors<kFloats> vectors, std::int64_t count, const Body& body) {
  std::int64_t first = 0;
  if constexpr (kByChunks<T, kFloats> || kByChunks<U, kFloats> || kTogether<T, U, kFloats> != 1) {
    for (; first + kChunk<U> <= count; first += kChunk<U>) body(vectors, first, kChunk<U>);
  }
  if (first < count) body(Vectors<1>{}, first, count - first);
}

/// \brief Calls `body(i, values)` with the floats of an element of each input, for each of `length` elements from
/// `first` on. Each i below `length` is passed once, but not with element first + i: for reductions, which take any
/// order.
template <typename T, int kFloats, int kInputs, typename Body>
[[gnu::always_inline]] inline void for_each_element(
    Vectors<kFloats>, const T* const (&inputs)[kInputs], std::int64_t first, std::int64_t length, const Body& body) {
  constexpr int kCount = kTogether<T, T, kFloats>;
  InputChunk<T, kFloats> x[kInputs];
  for (int i = 0; i < kInputs; ++i) x[i].load(inputs[i] + first, length);
  SGL_ROLLED_LOOP
  for (std::int64_t j = 0; j < length / kCount; ++j) {
    float floats[kInputs][kCount];
    for (int i = 0; i < kInputs; ++i) x[i].get(j, floats[i]);
    for (int n = 0; n < kCount; ++n) {
      float values[kInputs];
      for (int i = 0; i < kInputs; ++i) values[i] = floats[i][n];
      body(n * (length / kCount) + j, values);
    }
  }
}

}  // namespace host::cpu
