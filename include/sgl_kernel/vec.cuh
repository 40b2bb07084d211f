#pragma once

#include <sgl_kernel/impl/word.h>
#include <sgl_kernel/device.cuh>

/// \file vec.cuh
/// \brief `AlignedVector`: several elements that one instruction loads or stores.
///
/// Compiles under NVRTC.

namespace device {

namespace details {

/// The type that moves `kBytes` at once.
template <size_t kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using type = unsigned char;
};
template <>
struct WordOf<2> {
  using type = unsigned short;
};
template <>
struct WordOf<4> {
  using type = unsigned int;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};

/// Whether a vector of `T` may lie where the pointer to `U` leads: SGLang's take any pointer.
template <typename T, typename U>
#if defined(SGL_COMPAT)
concept may_point_to = true;
#else
concept may_point_to = is_any_of<U, T, void>;
#endif

}  // namespace details

/// \brief Bytes of the widest load of one thread: 16, and 32 on Blackwell with CUDA 13 or later.
///
/// A host part never asks for more than `sgl::kWordBytes`.
#if SGL_ARCH_BLACKWELL_OR_GREATER && __CUDACC_VER_MAJOR__ >= 13
inline constexpr uint32_t kMaxVecBytes = 32;
template <>
struct details::WordOf<32> {
  using type = ulonglong4_32a;  // the compiler moves it with one 256-bit instruction; without it, with two, strided
};
#else
inline constexpr uint32_t kMaxVecBytes = sgl::kWordBytes;
#endif
static_assert(sgl::kWordBytes <= kMaxVecBytes, "a host part would ask for words that are moved in two parts");

/// \brief The type of `kBytes` bytes, a power of two up to `kMaxVecBytes`, that one instruction moves.
template <size_t kBytes>
using Word = typename details::WordOf<kBytes>::type;

/// \brief `N` elements of `T`, aligned so that one instruction moves them all.
///
/// `N` is a power of two and `N * sizeof(T)` at most `kMaxVecBytes`. Addresses must be aligned to that size. Each
/// thread acts by itself.
/// \code
///   AlignedVector<fp16_t, 8> v;   // 16 bytes
///   v.load(input, threadIdx.x);   // elements 8 * threadIdx.x and up
///   v[0] = v[0] + fp16_t(1);
///   v.store(output, threadIdx.x);
/// \endcode
template <typename T, size_t N>
struct alignas(sizeof(T) * N) AlignedVector {
  static_assert(N > 0 && (N & (N - 1)) == 0, "AlignedVector: the number of elements must be a power of two");
  static_assert(
      sizeof(T) * N <= kMaxVecBytes,
      "AlignedVector: at most 16 bytes, or 32 on Blackwell with CUDA 13 (kMaxVecBytes); take fewer elements or an "
      "array "
      "of vectors");

 private:
  using word_t = Word<sizeof(T) * N>;

 public:
  using value_type = T;
  enum : size_t { kSize = N };

  /// \brief Read vector number `offset`, which is elements `offset * N` and up, of `ptr`.
  template <typename U>
  SGL_DEVICE void load(const U* ptr, size_t offset = 0) {
    static_assert(details::may_point_to<T, U>, "AlignedVector::load takes a pointer to its element type or to void");
    // A copy instead of a cast of the pointer stays in registers, and breaks no aliasing rule.
    const word_t word = static_cast<const word_t*>(static_cast<const void*>(ptr))[offset];
    memcpy(m_data, &word, sizeof(word));
  }
  /// \brief Write vector number `offset` of `ptr`.
  template <typename U>
  SGL_DEVICE void store(U* ptr, size_t offset = 0) const {
    static_assert(details::may_point_to<T, U>, "AlignedVector::store takes a pointer to its element type or to void");
    word_t word;
    memcpy(&word, m_data, sizeof(word));
    static_cast<word_t*>(static_cast<void*>(ptr))[offset] = word;
  }
  /// \brief Set every element to `value`.
  SGL_DEVICE void fill(T value) {
#pragma unroll
    for (size_t i = 0; i < N; ++i) m_data[i] = value;
  }

  SGL_DEVICE T& operator[](size_t index) {
    return m_data[index];
  }
  SGL_DEVICE const T& operator[](size_t index) const {
    return m_data[index];
  }
  SGL_DEVICE T* data() {
    return m_data;
  }
  SGL_DEVICE const T* data() const {
    return m_data;
  }

 private:
  T m_data[N];
};

}  // namespace device
