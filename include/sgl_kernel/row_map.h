#pragma once

/// \file row_map.h
/// \brief Row maps: out[r, i] = f(a[r, i], b[r, i], ...), an op in a functor and a few lines.
///
/// \code
///   // silu_and_mul.h: the functor, read by every compiler
///   struct SiluAndMul {
///     SGL_HD float operator()(float gate, float value) const { return gate / (1 + sgl::exp(-gate)) * value; }
///   };
///
///   // silu_and_mul.cpp: the host part
///   host::RowMap<swiglu::SiluAndMul, 2> silu_and_mul_rows{"silu_and_mul.h"};
///
///   void silu_and_mul(host::TensorView input, host::TensorView out) {
///     const auto rows = host::rows("input", input);
///     silu_and_mul_rows({rows.part(0, 2), rows.part(1, 2)}, {host::rows("out", out)});
///   }
/// \endcode
/// The file of the functor includes this header, and so does everything that a row map is made of: the host part gets
/// `host::RowMap`, the compile for the CPU the loop over rows, NVRTC and nvcc the kernel.
///
/// Go one layer down where an op needs more: `device::row_map` (row_map.cuh), `host::cpu::row_map` (cpu/row_map.h),
/// `host::Rows` (rows.h), `Kernel` (variant.h) and `Deferred` (deferred.h) are all that it uses.

#include <sgl_kernel/functor.h>

#if defined(__CUDACC__)

#include <sgl_kernel/row_map.cuh>

#else

#include <sgl_kernel/impl/row_op.h>
#include <sgl_kernel/rows.h>
#include <sgl_kernel/variant.h>

#include <cstddef>
#include <cstdint>

namespace host {

/// \brief Calls `launch(params)` for parts of rows that together are all of them: a kernel counts items in 32 bits, so
/// a launch takes as many columns, and then rows, as that allows.
template <int kOperands, typename Launch>
void for_each_part(const Rows (&operands)[kOperands], const RowPlan& plan, const Launch& launch) {
  if (plan.count == 0 || plan.columns == 0) return;
  constexpr std::int64_t kMaxItems = std::int64_t{1} << 30;
  const auto items_per_row = div_ceil(plan.columns, plan.elements);
  const auto columns_at_a_time = items_per_row < kMaxItems ? plan.columns : kMaxItems / 2 * plan.elements;
  const auto rows_at_a_time = items_per_row < kMaxItems ? kMaxItems / items_per_row : 1;
  for (std::int64_t column = 0; column < plan.columns; column += columns_at_a_time) {
    for (std::int64_t row = 0; row < plan.count; row += rows_at_a_time) {
      const auto columns = plan.columns - column < columns_at_a_time ? plan.columns - column : columns_at_a_time;
      const auto count = plan.count - row < rows_at_a_time ? plan.count - row : rows_at_a_time;
      const auto items = static_cast<std::uint64_t>(div_ceil(columns, plan.elements));
      sgl::RowMapParams<kOperands> params = {
          .operands = {},
          .num_items = static_cast<unsigned>(items * static_cast<std::uint64_t>(count)),
          .items_per_row = static_cast<unsigned>(items),
          .inverse = items == 1 ? 0 : ~std::uint64_t{0} / items + 1,
          .tail = static_cast<unsigned>(columns % plan.elements),
      };
      for (int i = 0; i < kOperands; ++i) {
        params.operands[i] = operands[i].operand();
        params.operands[i].data = pointer::offset(
            params.operands[i].data, row * params.operands[i].stride, column * operands[i].element_bytes());
      }
      launch(params);
    }
  }
}

/// \brief An op that computes each element of its outputs from the same element of its inputs. A global variable.
///
/// \tparam F the functor, in a named namespace: takes a float of each input, and returns a float, or
///   `sgl::Values<kOutputs>`. It may have members; each call passes its own, and they are copied to the device.
/// \tparam kInputs one to four.
/// \tparam kOutputs at least one.
template <typename F, int kInputs, int kOutputs = 1>
struct RowMap {
  static_assert(kInputs >= 1 && kInputs <= 4, "RowMap: one to four inputs");
  static_assert(
      details::kMapsRows<F, kOutputs, details::IndicesUpTo<kInputs>>,
      "RowMap: the functor needs float operator()(float, ...) const, with a float for each of kInputs inputs; for "
      "several outputs it returns sgl::Values<kOutputs>");

 public:
  /// \param file the file of the functor, relative to the family's csrc; a literal.
  explicit constexpr RowMap(const char* file) noexcept
      : m_kernel(file, "device::row_map"), m_on_cpu(file, "host::cpu::row_map") {}

  /// \brief Computes the outputs. On CUDA it launches on the current stream of their device, and returns at once.
  ///
  /// `match_rows` has the rules for the operands. Inputs of 16 bits are computed in float, and rounded once.
  /// \param f may be left out if it has no fields.
  /// \throws TensorMatchError, ValueError as `match_rows`.
  template <int kGivenInputs, int kGivenOutputs>
  void operator()(
      const Rows (&inputs)[kGivenInputs], const Rows (&outputs)[kGivenOutputs],
      const F& f = details::without_fields<F>(), DebugInfo location = {}) {
    static_assert(__is_trivially_copyable(F), "RowMap: the functor must be trivially copyable");
    static_assert(
        kGivenInputs == kInputs, "RowMap: the first braces must hold as many inputs as kInputs, its second argument");
    static_assert(
        kGivenOutputs == kOutputs,
        "RowMap: the second braces must hold as many outputs as kOutputs, its third argument, 1 by default");
    const auto all = [&]<std::size_t... I, std::size_t... J>(
                         details::Indices<I...>, details::Indices<J...>) -> Operands {
      return {{inputs[I]..., outputs[J]...}};
    }(details::IndicesUpTo<kInputs>{}, details::IndicesUpTo<kOutputs>{});
    const auto plan = match_rows(all.rows, kInputs, kOutputs, sgl::details::is_one_type<F>(), true, location);
    if (plan.count == 0 || plan.columns == 0) return;
    const auto input_dtype = inputs[0].tensor.dtype();
    const auto output_dtype = outputs[0].tensor.dtype();
    const auto device = outputs[0].tensor.device();
    if (device.device_type == kDLCPU) {
      cpu::RowJob<kOperands> job = {{}, plan.count, plan.columns};
      for (int i = 0; i < kOperands; ++i) job.operands[i] = all.rows[i].operand();
      return m_on_cpu(input_dtype, output_dtype, job, f);
    }
    const auto kernel = m_kernel.get(
        type<F>, kInputs, kOutputs, plan.elements, plan.columns % plan.elements != 0, input_dtype, output_dtype);
    for_each_part(all.rows, plan, [&](const sgl::RowMapParams<kOperands>& params) {
      constexpr std::int64_t kItemsPerBlock = sgl::kRowMapThreads * sgl::kRowMapUnroll<kInputs>;
      LaunchKernel(div_ceil(std::int64_t{params.num_items}, kItemsPerBlock), sgl::kRowMapThreads, device, 0, location)
          .enable_pdl(runtime::get_chip(device.device_id, location).has_pdl())(kernel, params, f);
    });
  }

 private:
  static constexpr int kOperands = kInputs + kOutputs;
  struct Operands {
    Rows rows[kOperands];
  };

  Kernel<sgl::RowMapParams<kOperands>, F> m_kernel;
  details::RowOpOnCpu<F, kInputs, kOutputs> m_on_cpu;
};

}  // namespace host

// A host part asks for the loop by its name, and compiles without it.
#if !defined(SGL_SEPARATE)
#include <sgl_kernel/cpu/row_map.h>
#endif

#endif
