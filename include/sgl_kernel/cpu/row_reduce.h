#pragma once

#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/row_map_params.h>
#include <sgl_kernel/utils.h>

#include <cstdint>

/// \file cpu/row_reduce.h
/// \brief `host::RowReduce` on the CPU: each row is reduced to one number, and then mapped with it.

namespace host::cpu {

/// \brief Rows on the CPU: inputs, shared rows and outputs, in this order.
template <int kOperands>
struct RowReduceJob {
  sgl::RowOperand operands[kOperands];
  std::int64_t num_rows;
  std::int64_t columns;
  SGL_FIELDS(operands, num_rows, columns)
};

/// \brief The functor's reduction of term(i) for i in [0, size). The error of a sum does not grow with the size: each
/// lane adds at most kBlock / kLanes terms in float, with an error of some ulp, and the sums of lanes are added in
/// double.
template <typename F, typename Term>
[[gnu::always_inline]] inline double reduce_over(std::int64_t size, const Term& term) {
  constexpr std::int64_t kLanes = 32;  // independent, which fit into vectors: two of AVX-512, four of AVX2
  constexpr std::int64_t kBlock = 8192;
  constexpr bool kIsMax = sgl::details::kIsMax<F>;
  const auto combine = [](double a, double b) { return kIsMax ? (a < b ? b : a) : a + b; };
  double total = sgl::details::kIdentity<F>;
  std::int64_t i = 0;
  while (i + kLanes <= size) {
    const auto block_end = size - i < kBlock ? size : i + kBlock;
    float lanes[kLanes];
    for (float& lane : lanes) lane = sgl::details::kIdentity<F>;
    for (; i + kLanes <= block_end; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] = sgl::details::combine<F>(lanes[lane], term(i + lane));
    }
    for (const float lane : lanes) total = combine(total, lane);
  }
  for (; i < size; ++i) total = combine(total, term(i));
  return total;
}

/// \brief Reduces and maps each row; all is written when it returns. An output may be an input.
/// \tparam T, U the types of the inputs' and the outputs' elements.
template <typename F, int kInputs, int kShared, int kOutputs, typename T, typename U>
void row_reduce(const RowReduceJob<kInputs + kShared + kOutputs>& job, const F& f) {
  constexpr std::int64_t kElementsPerThread = 1 << 17;  // 50-100 us
  const auto run_row = [&](std::int64_t row) __attribute__((always_inline)) {
    const T* inputs[kInputs + kShared];
    U* outputs[kOutputs];
    const auto at = [&](int i) { return static_cast<char*>(job.operands[i].data) + row * job.operands[i].stride; };
    for (int i = 0; i < kInputs + kShared; ++i) inputs[i] = reinterpret_cast<const T*>(at(i));
    for (int i = 0; i < kOutputs; ++i) outputs[i] = reinterpret_cast<U*>(at(kInputs + kShared + i));
    const auto reduced = reduce_over<F>(job.columns, [&](std::int64_t j) __attribute__((always_inline)) {
      float values[kInputs];
      for (int i = 0; i < kInputs; ++i) values[i] = to_float(inputs[i][j]);
      return sgl::details::term(f, values);
    });
    const float statistic = f.finish(static_cast<float>(reduced), static_cast<float>(job.columns));
    SGL_INDEPENDENT_LOOP
    for (std::int64_t j = 0; j < job.columns; ++j) {
      float values[kInputs + kShared];
      for (int i = 0; i < kInputs + kShared; ++i) values[i] = to_float(inputs[i][j]);
      const auto results = sgl::details::call<kOutputs>(f, values, statistic);
      for (int i = 0; i < kOutputs; ++i) outputs[i][j] = from_float<U>(results.values[i]);
    }
  };
  const auto grain = div_ceil(kElementsPerThread, job.columns);
  parallel_for(job.num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
    with_widest_vectors([&]() __attribute__((always_inline)) {
      for (auto row = begin; row < end; ++row) run_row(row);
    });
  });
}

}  // namespace host::cpu
