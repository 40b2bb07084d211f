/// \file quant_cpu.cpp
/// \brief The scale of a whole tensor on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/deferred.h>

#include "quant.h"

namespace quant {

/// scale_of the largest magnitude of all rows of `input`, ignoring NaN.
float scale_on_cpu(const sgl::RowOperand& input, std::int64_t num_rows, std::int64_t columns, DLDataType dtype) {
  std::int32_t largest = 0;  // as bits: those of non-negative floats are ordered like their values
  host::cpu::with_element_type(dtype, [&]<typename T>(T) {
    const auto reduce = [&](auto vectors, std::int64_t row, std::int64_t first,
                            std::int64_t count) __attribute__((always_inline)) {
      const auto* x = reinterpret_cast<const T*>(static_cast<const char*>(input.data) + row * input.stride) + first;
      const auto visit =
          [&]<int kFloats>(host::cpu::Vectors<kFloats>, std::int64_t begin, std::int64_t length, const auto& add)
              __attribute__((always_inline)) {
                host::cpu::InputChunk<T, kFloats> chunk;
                chunk.load(x + begin, length);
                for (std::int64_t i = 0; i < length; ++i) add(i, sgl::Values<1>{{sgl::abs(chunk[i])}});
              };
      host::cpu::prefetch(x + count, count);
      sgl::Values<1> found;
      host::cpu::reduce_over<sgl::Reduction::kMax>(vectors, count, found, visit);
      const auto bits = found.values[0] < 0 ? 0 : __builtin_bit_cast(std::int32_t, found.values[0]);
      auto seen = __atomic_load_n(&largest, __ATOMIC_RELAXED);
      while (seen < bits &&
             !__atomic_compare_exchange_n(&largest, &seen, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      }
    };
    host::cpu::for_each_piece(num_rows, columns, reduce);
  });
  return scale_of(__builtin_bit_cast(float, largest));
}

}  // namespace quant
