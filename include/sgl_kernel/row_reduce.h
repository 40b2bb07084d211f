#pragma once

/// \file row_reduce.h
/// \brief Row reductions: each row becomes one number, and each element is computed with it, as in a norm.
///
/// \code
///   // rmsnorm.h: the functor, read by every compiler
///   struct RMSNorm {
///     float eps;
///     SGL_FIELDS(eps)
///     SGL_HD float term(float x) const { return x * x; }                                  // they are added up
///     SGL_HD float finish(float sum, float size) const { return sgl::rsqrt(sum / size + eps); }
///     SGL_HD float operator()(float factor, float x, float weight) const { return x * factor * weight; }
///   };
///
///   // rmsnorm.cpp: the host part
///   host::RowReduce<acme::RMSNorm, 1, 1> rmsnorm_of_rows{"rmsnorm.h"};
///
///   void rmsnorm(host::TensorView x, host::TensorView weight, host::TensorView out, double eps) {
///     rmsnorm_of_rows({host::rows("x", x)}, {host::shared_row("weight", weight)}, {host::rows("out", out)},
///                     {static_cast<float>(eps)});
///   }
/// \endcode
/// As with a row map (row_map.h), the functor's file includes this header, and every compiler finds its part here.
///
/// A functor may have more members:
/// - `float combine(float a, float b, ...) const`, of the inputs: `term` and the call operator take its result in place
///   of the inputs, and it is the first output, written before the reduction.
/// - `term` may return `sgl::Values<N>` for N reductions at once, up to four, those of a second pass included; `finish`
///   takes such a value then. It may return a struct.
/// - `second_term(first, x, ...)` and `second_finish(first, reduced, size)` are a second pass over the row, with what
///   `finish` returned. The call operator gets the result of the last pass.
/// - `static constexpr bool kFirstEstimates = true;` says that the first of two passes gives an estimate: for elements
///   of two bytes it may be over the first part of a row, with its size: on the CPU an eighth at least, on a device
///   1/128.
/// - `kReduction` is how the terms are combined, `kSecondReduction` how those of the second pass are.
/// - `void write_row(row, statistic) const` is called once for each row, to keep what it was reduced to.

#include <sgl_kernel/functor.h>

#if defined(__CUDACC__)

#include <sgl_kernel/row_reduce.cuh>

#else

#include <sgl_kernel/impl/row_layout.h>
#include <sgl_kernel/impl/row_op.h>
#include <sgl_kernel/impl/row_reduce_functor.h>
#include <sgl_kernel/impl/row_reduce_params.h>
#include <sgl_kernel/rows.h>
#include <sgl_kernel/runtime.h>
#include <sgl_kernel/variant.h>

#include <cstddef>
#include <cstdint>

namespace host {

/// \brief An op that reduces each row to one number, and computes each element of its outputs with it. A global
/// variable.
///
/// \tparam F the functor, in a named namespace, with the members `term`, of a float for each input; `finish`, of the
///   reduction of the row's terms and of its size; and the call operator, of what `finish` returned, a float for each
///   input and one for each shared row, to a float or to `sgl::Values<kOutputs>`.
/// \tparam kInputs, kShared one to four together, at least one input.
/// \tparam Layout how many threads share a row on CUDA: `Layout{}(vectors, work, num_rows, chip)`.
template <typename F, int kInputs, int kShared = 0, int kOutputs = 1, typename Layout = sgl::ChooseRowLayout>
struct RowReduce {
  static_assert(kInputs >= 1 && kInputs + kShared <= 4, "RowReduce: one to four inputs, with the shared ones");

 public:
  /// \param file the file of the functor, relative to the family's csrc; a literal.
  explicit constexpr RowReduce(const char* file) noexcept
      : m_resident(file, "device::row_reduce"),
        m_generic(file, "device::row_reduce_generic"),
        m_on_cpu(file, "host::cpu::row_reduce") {}

  /// \brief Computes the outputs. On CUDA it launches on the current stream of their device, and returns at once.
  ///
  /// `match_rows` has the rules for the operands. Inputs of 16 bits are computed in float, and rounded once.
  /// \param f may be left out if it has no fields.
  /// \throws TensorMatchError, ValueError as `match_rows`; TensorMatchError if one of `shared` is not of `shared_row`.
  template <int kGivenInputs, int kGivenShared, int kGivenOutputs>
  void operator()(
      const Rows (&inputs)[kGivenInputs], const Rows (&shared)[kGivenShared], const Rows (&outputs)[kGivenOutputs],
      const F& f = details::without_fields<F>(), DebugInfo location = {}) {
    static_assert(
        kGivenShared == kShared,
        "RowReduce: the second braces must hold as many shared rows as kShared, its third argument, 0 by default");
    s_check_given<kGivenInputs, kGivenOutputs>();
    m_run(inputs, shared, outputs, f, location);
  }
  /// \brief The same without shared rows.
  template <int kGivenInputs, int kGivenOutputs>
  void operator()(
      const Rows (&inputs)[kGivenInputs], const Rows (&outputs)[kGivenOutputs],
      const F& f = details::without_fields<F>(), DebugInfo location = {}) {
    static_assert(kShared == 0, "RowReduce: pass the shared rows after the inputs, in braces of their own");
    s_check_given<kGivenInputs, kGivenOutputs>();
    m_run(inputs, nullptr, outputs, f, location);
  }

 private:
  static constexpr int kKept = sgl::details::kKept<F, kInputs>;
  static_assert(details::RowReduceFunctor<
                F, kOutputs - sgl::details::kCombines<F>, details::IndicesUpTo<kInputs>, details::IndicesUpTo<kKept>,
                details::IndicesUpTo<kKept + kShared>>::kIsChecked);
  static constexpr int kRead = kInputs + kShared;
  static constexpr int kOperands = kRead + kOutputs;
  static constexpr sgl::RowWork kWork = sgl::details::kHasSecondPass<F> ? sgl::RowWork::kTwoPasses
                                        : kInputs > 1                   ? sgl::RowWork::kMoreInputs
                                                                        : sgl::RowWork::kOneInput;
  using Params = sgl::RowReduceParams<kOperands>;
  struct Operands {
    Rows rows[kOperands];
  };

  template <int kGivenInputs, int kGivenOutputs>
  static constexpr void s_check_given() {
    static_assert(
        kGivenInputs == kInputs,
        "RowReduce: the first braces must hold as many inputs as kInputs, its second argument, which counts no shared "
        "rows");
    static_assert(
        kGivenOutputs == kOutputs,
        "RowReduce: the last braces must hold as many outputs as kOutputs, its fourth argument, 1 by default");
  }

  void m_run(const Rows* inputs, const Rows* shared, const Rows* outputs, const F& f, DebugInfo location) {
    static_assert(__is_trivially_copyable(F), "RowReduce: the functor must be trivially copyable");
    const auto operand = [&](std::size_t i) -> const Rows& {
      return i < kInputs ? inputs[i] : i < kRead ? shared[i - kInputs] : outputs[i - kRead];
    };
    const auto all = [&]<std::size_t... I>(details::Indices<I...>) -> Operands {
      return {{operand(I)...}};
    }(details::IndicesUpTo<kOperands>{});
    for (std::size_t i = kInputs; i < kRead; ++i) {  // the kernels read one row of it
      if (!operand(i).is_shared) [[unlikely]]
        operand(i).raise(location, {"expected a shared row, of host::shared_row, but got rows of host::rows"});
    }
    const auto plan = match_rows(all.rows, kRead, kOutputs, sgl::details::is_one_type<F>(), false, location);
    if (plan.count == 0 || (plan.columns == 0 && !sgl::details::kWritesRows<F>)) return;
    const auto input_dtype = inputs[0].tensor.dtype();
    const auto output_dtype = outputs[0].tensor.dtype();
    if (outputs[0].tensor.device().device_type == kDLCPU) {
      cpu::RowJob<kOperands> job = {{}, plan.count, plan.columns};
      for (int i = 0; i < kOperands; ++i) job.operands[i] = all.rows[i].operand();
      return m_on_cpu(input_dtype, output_dtype, job, f);
    }
    Params params = {{}, plan.count, plan.columns, false};
    for (int i = 0; i < kOperands; ++i) params.operands[i] = all.rows[i].operand();
    m_launch(params, plan, input_dtype, output_dtype, outputs[0].tensor.device(), f, location);
  }

  void m_launch(
      Params& params, const RowPlan& plan, DLDataType input_dtype, DLDataType output_dtype, DLDevice device, const F& f,
      DebugInfo location) {
    const auto chip = runtime::get_chip(device.device_id, location);
    const auto layout = sgl::layout_rows(
        plan.columns, plan.elements, static_cast<std::int64_t>(dtype_bytes(input_dtype)), kWork, plan.count, chip,
        Layout{});
    params.triggers_first = layout.triggers_first;
    const auto kernel =
        layout.is_resident()
            ? m_resident.get(
                  type<F>, kInputs, kShared, kOutputs, plan.columns, plan.elements, layout.threads_per_row,
                  layout.block_threads, input_dtype, output_dtype)
            : m_generic.get(type<F>, kInputs, kShared, kOutputs, plan.elements, input_dtype, output_dtype);
    LaunchKernel(layout.num_blocks(plan.count), layout.block_threads, device, 0, location)
        .enable_pdl(chip.has_pdl())(kernel, params, f);
  }

  Kernel<Params, F> m_resident, m_generic;
  details::RowOpOnCpu<F, kInputs, kShared, kOutputs> m_on_cpu;
};

}  // namespace host

// A host part asks for the loop by its name, and compiles without it.
#if !defined(SGL_SEPARATE)
#include <sgl_kernel/cpu/row_reduce.h>
#endif

#endif
