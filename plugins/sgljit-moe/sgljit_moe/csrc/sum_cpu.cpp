/// \file sum_cpu.cpp
/// \brief `moe_sum`, and `expert_matvec` by columns, on the CPU. Compiled at the first call with a CPU tensor.

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/rows.h>
#include <sgl_kernel/deferred.h>

#include <vector>

#include "matvec.h"
#include "sum.h"

namespace moe {

using namespace host;

template <int kFloats>
using Floats [[gnu::vector_size(4 * kFloats)]] = float;

/// \brief Some elements of the sum of rows, each times its weight: `count` from the first of `row(i)` on.
/// \param more a row that is added to the sum, or null.
template <typename T, int kFloats, typename Row, typename Weight>
[[gnu::always_inline]] inline void add_rows(
    std::int64_t rows, const Row& row, const Weight& weight, float scale, const T* more, T* result,
    std::int64_t count) {
  constexpr int kLanes = 32;  // elements that are summed at a time, in registers
  std::int64_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) {
    float floats[kLanes];
    Floats<kFloats> vectors[kLanes / kFloats], sums[kLanes / kFloats] = {};
    const auto load = [&](const T* from) __attribute__((always_inline)) {
      cpu::InputChunk<T, kFloats> x;
      x.load(from + begin, kLanes);
      SGL_ROLLED_LOOP
      for (int j = 0; j < kLanes; ++j) x.get(j, *reinterpret_cast<float (*)[1]>(floats + j));
      __builtin_memcpy(vectors, floats, sizeof(floats));
    };
    for (std::int64_t i = 0; i < rows; ++i) {
      load(row(i));
      for (int k = 0; k < kLanes / kFloats; ++k) sums[k] += weight(i) * vectors[k];
    }
    for (auto& sum : sums) sum *= scale;
    if (more != nullptr) {
      load(more);
      for (int k = 0; k < kLanes / kFloats; ++k) sums[k] += vectors[k];
    }
    __builtin_memcpy(floats, sums, sizeof(floats));
    cpu::OutputChunk<T, kFloats> output;
    output.begin(result + begin);
    SGL_ROLLED_LOOP
    for (int j = 0; j < kLanes; ++j) output.set(j, {floats[j]});
    output.store(kLanes);
  }
  for (; begin < count; ++begin) {
    float sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) sum += weight(i) * cpu::to_float(row(i)[begin]);
    sum *= scale;
    if (more != nullptr) sum += cpu::to_float(more[begin]);
    result[begin] = cpu::from_float<T>(sum);
  }
}

/// \brief The weights as floats, so that the loop over the rows, which takes most of the time, is compiled for these
/// alone.
std::vector<float> weights_as_floats(const Sum& params, DLDataType dtype) {
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(params.num_tokens * params.experts));
  cpu::with_element_type(dtype, [&]<typename T>(T) {
    const auto [of_token, of_expert] = params.weights_stride;
    for (std::int64_t token = 0; token < params.num_tokens; ++token)
      for (int i = 0; i < params.experts; ++i)
        result.push_back(
            cpu::to_float(*static_cast<const T*>(pointer::offset(params.weights, token * of_token + i * of_expert))));
  });
  return result;
}

void sum_on_cpu(const Sum& given, std::int64_t columns, DLDataType dtype, DLDataType of_weights) {
  auto params = given;
  std::vector<float> weights;
  if (params.weights != nullptr && !is_type<float>(of_weights)) {
    constexpr auto kBytes = static_cast<long long>(sizeof(float));
    weights = weights_as_floats(params, of_weights);
    params.weights = weights.data();
    params.weights_stride[0] = params.experts * kBytes;
    params.weights_stride[1] = kBytes;
  }
  cpu::with_element_type(dtype, [&]<typename T>(T) {
    const auto piece = [&]<int kFloats>(
                           cpu::Vectors<kFloats>, std::int64_t token, std::int64_t first,
                           std::int64_t count) __attribute__((always_inline)) {
      const void* rows = pointer::offset(params.input, token * params.token_stride, first * std::int64_t{sizeof(T)});
      auto* result = static_cast<T*>(pointer::offset(params.output, token * params.output_stride)) + first;
      const auto row = [&](std::int64_t i) __attribute__((always_inline)) {
        return static_cast<const T*>(pointer::offset(rows, i * params.expert_stride));
      };
      const auto weight = [&](std::int64_t i) __attribute__((always_inline)) {
        if (params.weights == nullptr) return 1.0f;
        const auto [of_token, of_expert] = params.weights_stride;
        return *static_cast<const float*>(pointer::offset(params.weights, token * of_token + i * of_expert));
      };
      add_rows<T, kFloats>(params.experts, row, weight, params.scale, static_cast<const T*>(nullptr), result, count);
    };
    cpu::for_each_piece(params.num_tokens, columns, piece);
  });
}

void sum_columns_on_cpu(const Columns& params, std::int64_t num_rows, DLDataType dtype, DLDataType of_ids) {
  cpu::with_element_type(dtype, [&]<typename T>(T) {
    const auto piece = [&]<int kFloats>(
                           cpu::Vectors<kFloats>, std::int64_t number, std::int64_t first,
                           std::int64_t count) __attribute__((always_inline)) {
      const auto id = is_type<std::int32_t>(of_ids) ? static_cast<const std::int32_t*>(params.ids)[number]
                                                    : static_cast<const std::int64_t*>(params.ids)[number];
      const void* matrix = pointer::offset(params.weight, id * params.expert_stride, first * std::int64_t{sizeof(T)});
      const auto* x = static_cast<const T*>(pointer::offset(params.x, number / params.repeats * params.x_stride));
      const auto column = [&](std::int64_t i) __attribute__((always_inline)) {
        return static_cast<const T*>(pointer::offset(matrix, i * params.column_stride));
      };
      const auto factor = [&](std::int64_t i) __attribute__((always_inline)) { return cpu::to_float(x[i]); };
      auto* result = static_cast<T*>(pointer::offset(params.output, number * params.output_stride)) + first;
      const T* more = nullptr;
      if (params.bias != nullptr)
        more = static_cast<const T*>(pointer::offset(params.bias, id * params.bias_stride)) + first;
      add_rows<T, kFloats>(params.num_columns, column, factor, 1, more, result, count);
    };
    cpu::for_each_piece(num_rows, params.num_elements, piece);
  });
}

}  // namespace moe
