/// \file quant_cpu.cpp
/// \brief The scale of a whole tensor on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/deferred.h>

#include "quant.h"

namespace quant {

/// The scale of the largest magnitude of all rows of `input`, ignoring NaN.
/// \param stride from row to row, in bytes.
float scale_on_cpu(
    const void* input, std::int64_t stride, std::int64_t num_rows, std::int64_t columns, DLDataType dtype) {
  std::int32_t largest = 0;  // as bits: those of non-negative floats are ordered like their values
  host::cpu::with_element_type(dtype, [&]<typename T>(T) {
    const auto reduce = [&](auto vectors, std::int64_t row, std::int64_t first,
                            std::int64_t count) __attribute__((always_inline)) {
      const auto* x = static_cast<const T*>(host::pointer::offset(input, row * stride)) + first;
      const T* const inputs[] = {x};
      const auto visit = [&](auto part, std::int64_t begin, std::int64_t length,
                             const auto& add) __attribute__((always_inline)) {
        const auto term = [&](std::int64_t i, const float (&values)[1])
                              __attribute__((always_inline)) { add(i, sgl::Values<1>{{sgl::abs(values[0])}}); };
        host::cpu::for_each_element(part, inputs, begin, length, term);
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
  return scale_for_e4m3(__builtin_bit_cast(float, largest));
}

}  // namespace quant
