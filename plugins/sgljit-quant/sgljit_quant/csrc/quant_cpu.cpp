/// \file quant_cpu.cpp
/// \brief Quantisation on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/deferred.h>

#include "e4m3.h"
#include "quant_args.h"

namespace quant {

/// The largest magnitude of n elements, as its bits, ignoring NaN. The bits of non-negative floats are ordered like
/// their values.
template <typename T>
[[gnu::always_inline]] inline std::int32_t largest_bits(const T* x, std::int64_t n) {
  using namespace host::cpu::details;
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto magnitude = to_bits(host::cpu::to_float(x[i])) & kMagnitude;
    const auto counted = static_cast<std::int32_t>(magnitude & ~mask_less(kInfinity, magnitude));
    largest = largest < counted ? counted : largest;
  }
  return largest;
}

template <typename T>
[[gnu::always_inline]] inline void quantize(const T* x, std::uint8_t* q, std::int64_t n, float inverse) {
  SGL_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) q[i] = to_e4m3(host::cpu::to_float(x[i]) * inverse);
}

/// The scale for a largest magnitude, bounded so that its inverse is finite and not zero.
inline float scale_of(std::int32_t largest_bits) {
  const float scale = host::cpu::details::from_bits(static_cast<std::uint32_t>(largest_bits)) / 448.0f;
  return scale < 0x1p-126f ? 0x1p-126f : scale > __FLT_MAX__ ? __FLT_MAX__ : scale;
}

inline void raise(std::int32_t* largest, std::int32_t value) {
  auto seen = __atomic_load_n(largest, __ATOMIC_RELAXED);
  while (seen < value &&
         !__atomic_compare_exchange_n(largest, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

inline constexpr std::int64_t kElementsPerThread = 1 << 18;  // 50-100 us

template <typename T>
void per_row(const Args& args) {
  const auto grain = host::div_ceil(kElementsPerThread, args.columns > 0 ? args.columns : 1);
  host::cpu::parallel_for(args.num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
    host::cpu::with_widest_vectors([&]() __attribute__((always_inline)) {
      for (auto row = begin; row < end; ++row) {
        const auto input = static_cast<const T*>(args.input) + row * args.input_stride;
        const auto output = static_cast<std::uint8_t*>(args.output) + row * args.output_stride;
        args.scale[row] = scale_of(largest_bits(input, args.columns));
        quantize(input, output, args.columns, 1.0f / args.scale[row]);
      }
    });
  });
}

/// Calls body(input, output, n) on pieces of rows, on several threads.
template <typename T, typename Body>
void for_each_piece(const Args& args, const Body& body) {
  constexpr std::int64_t kPiece = 1 << 14;
  const auto pieces_of_row = host::div_ceil(args.columns, kPiece);
  if (pieces_of_row == 0) return;
  const auto length = args.columns < kPiece ? args.columns : kPiece;
  const auto grain = host::div_ceil(kElementsPerThread, length);
  host::cpu::parallel_for(args.num_rows * pieces_of_row, grain, [&](std::int64_t begin, std::int64_t end) {
    host::cpu::with_widest_vectors([&]() __attribute__((always_inline)) {
      for (auto piece = begin; piece < end; ++piece) {
        const auto row = piece / pieces_of_row;
        const auto first = (piece - row * pieces_of_row) * kPiece;
        const auto left = args.columns - first;
        body(
            static_cast<const T*>(args.input) + row * args.input_stride + first,
            static_cast<std::uint8_t*>(args.output) + row * args.output_stride + first, left < kPiece ? left : kPiece);
      }
    });
  });
}

template <typename T>
void per_tensor(const Args& args) {
  if (!args.is_static) {
    std::int32_t largest = 0;
    for_each_piece<T>(args, [&](const T* input, std::uint8_t*, std::int64_t n) __attribute__((always_inline)) {
      raise(&largest, largest_bits(input, n));
    });
    *args.scale = scale_of(largest);
  }
  const float inverse = 1.0f / *args.scale;
  for_each_piece<T>(args, [=](const T* input, std::uint8_t* output, std::int64_t n) __attribute__((always_inline)) {
    quantize(input, output, n, inverse);
  });
}

template <typename T>
void quantize_typed(const Args& args) {
  return args.per_row ? per_row<T>(args) : per_tensor<T>(args);
}

/// q = x * (1 / scale) in e4m3, with one scale or one for each row, computed unless it is given.
void quantize_on_cpu(const Args& args) {
  using host::is_type;
  if (is_type<float>(args.dtype)) return quantize_typed<float>(args);
  if (is_type<fp16_t>(args.dtype)) return quantize_typed<fp16_t>(args);
  quantize_typed<bf16_t>(args);
}

}  // namespace quant

using quant::quantize_on_cpu;
