#pragma once

/// \file cpu/isa.h
/// \brief One portable library that uses the widest vectors of the processor it runs on.
///
/// CPU modules are compiled for the baseline of their architecture, never with -march=native, so that an artifact
/// built on one machine serves every other. Only inner loops gain from wider vectors: they are compiled once for each
/// width, and the version is chosen at run time.

/// \brief Put it before a loop with independent iterations whose pointers may be equal, as in `y[i] = f(x[i])` in
/// place. Without it the compiler checks the pointers at run time, and runs such a loop one by one.
#if defined(__clang__)
#define SGL_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define SGL_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif

/// \brief Put it before a loop with a known, small number of iterations: g++ would unroll it, and then find no loop to
/// vectorise.
#if defined(__clang__) || defined(__CUDACC__)
#define SGL_ROLLED_LOOP
#else
#define SGL_ROLLED_LOOP _Pragma("GCC unroll 1")
#endif

namespace host::cpu {

/// \brief How many floats a vector holds, in the version of a loop: 16, 8, or 4 in the baseline.
template <int kFloats>
struct Vectors {
  static constexpr int kCount = kFloats;
};

namespace details {

template <int kFloats, typename Body>
[[gnu::always_inline]] inline void run(const Body& body) {
  if constexpr (requires { body(Vectors<kFloats>{}); }) body(Vectors<kFloats>{});
  else body();
}

#if defined(__x86_64__)
// Features one by one, because g++ before 12 does not know `arch=x86-64-v3`. Without the preference for 512 bits
// compilers use 256, because of early AVX-512 processors.
#if defined(__clang__)
#define SGL_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512)))
#else
#define SGL_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif

template <typename Body>
SGL_AVX512 void run_avx512(const Body& body) {
  run<16>(body);
}

template <typename Body>
__attribute__((target("avx2,fma"))) void run_avx2(const Body& body) {
  run<8>(body);
}

#undef SGL_AVX512
#endif

}  // namespace details

/// \brief Calls `body()` in the version compiled for this processor's widest vectors: AVX-512, AVX2 or the baseline on
/// x86-64; elsewhere there is one version.
///
/// \code
///   with_widest_vectors([=]() __attribute__((always_inline)) {
///     for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * scale;
///   });
/// \endcode
///
/// \param body an always_inline lambda that calls always_inline functions. A function that is not inlined runs as
///   compiled for the baseline. It may take `Vectors<n>`, by which it knows its version.
/// \note The choice takes some nanoseconds and the body is a function of its own: give it rows, not elements.
template <typename Body>
void with_widest_vectors(const Body& body) {
#if defined(SGL_ONLY_VERSION)  // such as run_avx512: what runs on this processor alone compiles in half the time
  details::SGL_ONLY_VERSION(body);
#else
#if defined(__x86_64__)
  // The answers also consider which registers the operating system saves at a context switch.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return details::run_avx512(body);
#if !defined(__clang__) && __GNUC__ >= 11
  const bool has_f16c = __builtin_cpu_supports("f16c");  // a virtual machine may hide it
#else
  constexpr bool has_f16c = true;  // these cannot ask; all processors with AVX2 have it
#endif
  if (has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return details::run_avx2(body);
#endif
  details::run<4>(body);
#endif
}

/// \brief Asks for `count` elements that are read soon. The processor asks on its own within a page of 4 KiB; from page
/// to page, and where a loop computes much, this hides the latency of memory. The address need not be valid. Unrolled,
/// the requests would delay the loop behind them: by 17 % in `fused_add_rmsnorm` of bf16.
template <typename T>
[[gnu::always_inline]] inline void prefetch(const T* begin, long long count) {
  constexpr int kLine = 64;
#if !defined(__CUDACC__)  // nvcc does not know it
#pragma GCC unroll 1
#endif
  for (long long i = 0; i < count; i += kLine / static_cast<int>(sizeof(T))) __builtin_prefetch(begin + i);
}

#if defined(__x86_64__)
/// \brief Copies lines of 64 bytes past the caches: a plain store first reads its line, a third transfer for two. For
/// more than caches hold. Another thread sees them after `end_streams`. In assembler: compilers differ in their names.
template <int kFloats>
[[gnu::always_inline]] inline void stream(void* to, const void* from, long long bytes) {
  using Vector [[gnu::vector_size(4 * kFloats)]] = float;
  for (long long i = 0; i < bytes; i += sizeof(Vector)) {
    Vector vector;
    __builtin_memcpy(&vector, static_cast<const char*>(from) + i, sizeof(vector));
    auto& place = *reinterpret_cast<char (*)[sizeof(vector)]>(static_cast<char*>(to) + i);
    if constexpr (kFloats == 4) asm("movntps %1, %0" : "=m"(place) : "x"(vector));
    else asm("vmovntps %1, %0" : "=m"(place) : "v"(vector));
  }
}
#else
template <int>
inline void stream(void* to, const void* from, long long bytes) {
  __builtin_memmove(to, from, static_cast<unsigned long>(bytes));
}
#endif

inline void end_streams() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace host::cpu
