/// \file sum_cpu.cpp
/// \brief `moe_sum` on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/rows.h>
#include <sgl_kernel/deferred.h>

#include "sum.h"

namespace moe {

using namespace host;

template <int kFloats>
using Floats [[gnu::vector_size(4 * kFloats)]] = float;

void sum_on_cpu(const Sum& params, std::int64_t columns, DLDataType dtype) {
  constexpr int kLanes = 32;  // elements that are summed at a time, in registers
  cpu::with_element_type(dtype, [&]<typename T>(T) {
    const auto piece = [&]<int kFloats>(
                           cpu::Vectors<kFloats>, std::int64_t token, std::int64_t first,
                           std::int64_t count) __attribute__((always_inline)) {
      const void* row = pointer::offset(params.input, token * params.token_stride, first * std::int64_t{sizeof(T)});
      auto* result = static_cast<T*>(pointer::offset(params.output, token * params.output_stride)) + first;
      const auto expert = [&](int i) __attribute__((always_inline)) {
        return static_cast<const T*>(pointer::offset(row, i * params.expert_stride));
      };
      const auto weight = [&](int i) __attribute__((always_inline)) {
        if (params.weights == nullptr) return 1.0f;
        const auto [of_token, of_expert] = params.weights_stride;
        return *static_cast<const float*>(pointer::offset(params.weights, token * of_token + i * of_expert));
      };
      std::int64_t begin = 0;
      for (; begin + kLanes <= count; begin += kLanes) {
        float floats[kLanes];
        Floats<kFloats> vectors[kLanes / kFloats], sums[kLanes / kFloats] = {};
        for (int i = 0; i < params.experts; ++i) {
          cpu::InputChunk<T, kFloats> x;
          x.load(expert(i) + begin, kLanes);
          SGL_ROLLED_LOOP
          for (int j = 0; j < kLanes; ++j) x.get(j, *reinterpret_cast<float (*)[1]>(floats + j));
          __builtin_memcpy(vectors, floats, sizeof(floats));
          for (int k = 0; k < kLanes / kFloats; ++k) sums[k] += weight(i) * vectors[k];
        }
        for (auto& sum : sums) sum *= params.scale;
        __builtin_memcpy(floats, sums, sizeof(floats));
        cpu::OutputChunk<T, kFloats> output;
        output.begin(result + begin);
        SGL_ROLLED_LOOP
        for (int j = 0; j < kLanes; ++j) output.set(j, {floats[j]});
        output.store(kLanes);
      }
      for (; begin < count; ++begin) {
        float sum = 0;
        for (int i = 0; i < params.experts; ++i) sum += weight(i) * cpu::to_float(expert(i)[begin]);
        result[begin] = cpu::from_float<T>(sum * params.scale);
      }
    };
    cpu::for_each_piece(params.num_tokens, columns, piece);
  });
}

}  // namespace moe
