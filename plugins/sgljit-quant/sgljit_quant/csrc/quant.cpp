/// \file quant.cpp
/// \brief The host part of quantisation: the functions that Python calls, the checks, and the choice of kernels.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/variant.h>

#include "quant.h"

namespace {

using namespace host;
using quant::kBlockThreads, quant::kMaxThreads, quant::kMaxUnits;

Deferred<float(const sgl::RowOperand&, std::int64_t, std::int64_t, DLDataType)> scale_on_cpu{
    "quant_cpu.cpp", "quant::scale_on_cpu"};
Kernel<quant::Params> quantize_small{"quant.cuh", "quant::quantize_small"};
Kernel<quant::Params> set_smallest_scale{"quant.cuh", "quant::set_smallest_scale"};
Kernel<quant::Params> raise_scale{"quant.cuh", "quant::raise_scale"};
Kernel<quant::Params> quantize{"quant.cuh", "quant::quantize"};
RowMap<quant::PerTensor, 1> by_inverse{"quant.h"};
RowProgram<quant::PerToken> by_row{"quant.h"};
RowProgram<quant::PerGroup> by_group{"quant.h"};

/// Checks the rules that the row operations leave to the ops: one shape for input and output, the output's dtype, and
/// the scales.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if the scales share memory or are not aligned.
void check(const char* op, const Rows& input, const Rows& output_q, const TensorView& scales, bool per_row) {
  const auto& x = input.tensor;
  const auto& q = output_q.tensor;
  const auto rank = x.ndim();
  const auto refuse = [&](const auto&... rule) { throw Error(kTensorMatchError, op, ": ", rule...); };
  const auto begins_as_input = [&](const TensorView& tensor, std::int32_t num_dims) {
    if (tensor.ndim() < num_dims) return false;
    for (std::int32_t i = 0; i < tensor.ndim(); ++i) {
      if (tensor.size(i) != (i < num_dims ? x.size(i) : 1)) return false;
    }
    return true;
  };
  if (!is_type<__nv_fp8_e4m3>(q.dtype())) [[unlikely]]
    refuse("output_q must be float8_e4m3fn, got ", q.dtype(), ": ", q);
  if (q.ndim() != rank || !begins_as_input(q, rank)) [[unlikely]]
    refuse("output_q must have the shape of input: output_q is ", q, ", input is ", x);
  if (!is_type<float>(scales.dtype())) [[unlikely]]
    refuse("output_s must be float32, got ", scales.dtype(), ": ", scales);
  if (!host::operator==(scales.device(), x.device())) [[unlikely]]
    refuse("output_s must be on the device of input, ", x.device(), ", got ", scales.device(), ": ", scales);
  if (!scales.is_contiguous()) [[unlikely]]
    refuse("output_s must be contiguous: ", scales);
  if (widest_word(scales.data_ptr()) < std::int64_t{sizeof(float)}) [[unlikely]]
    throw Error("ValueError", op, ": output_s: its address is not a multiple of its element size, 4 bytes: ", scales);
  if (!per_row && scales.numel() != 1) [[unlikely]]
    refuse("output_s must have one element: ", scales);
  if (per_row && (scales.ndim() > rank || !begins_as_input(scales, rank - 1))) [[unlikely]]
    refuse(
        "output_s must have one element for each row of input, and the shape of input, with a last dimension of 1 or "
        "without it: output_s is ",
        scales, ", input is ", x);
  const MemoryRows written(scales.data_ptr(), scales.numel() * std::int64_t{sizeof(float)});
  for (const auto* rows : {&input, &output_q}) {
    if (rows_meet(written, rows->memory())) [[unlikely]]
      throw Error(
          "ValueError", op, ": output_s shares memory with ", rows->name, ": input is ", x, ", output_q is ", q,
          ", output_s is ", scales);
  }
}

/// The number of threads, one to `most`, rounded up to whole warps.
std::int64_t in_warps(std::int64_t threads, std::int64_t most) {
  return threads < 32 ? 32 : threads < most ? div_ceil(threads, 32) * 32 : most;
}

void per_tensor_on_cuda(
    const Rows (&operands)[2], const RowPlan& plan, float* scale, bool is_static, DebugInfo location) {
  constexpr std::int64_t kMaxClusterBlocks = 8;
  const auto device = operands[0].tensor.device();
  const auto dtype = operands[0].tensor.dtype();
  const bool pdl = runtime::has_pdl(device.device_id);
  const std::int64_t sm_count = runtime::get_sm_count(device.device_id);
  const bool has_tail = plan.columns % plan.elements != 0;
  const auto units = plan.count * div_ceil(plan.columns, plan.elements);
  const auto launch = [&](std::int64_t blocks, std::int64_t threads, const VariantOf<quant::Params>& kernel,
                          const quant::Params& params, std::int64_t cluster = 1) {
    LaunchKernel(blocks, threads, device, 0, location).enable_cluster(cluster).enable_pdl(pdl)(kernel, params);
  };
  const auto max_blocks = pdl ? kMaxClusterBlocks : 1;  // clusters need sm_90, too
  if (!is_static && plan.count == 1 && units > 0 && units <= max_blocks * kMaxThreads * kMaxUnits) {
    constexpr std::int64_t kThreads = 512;  // enough; a barrier of 1024 takes longer
    std::int64_t blocks = 1;
    while (blocks < max_blocks && blocks * kThreads < units) blocks *= 2;
    const auto threads = in_warps(div_ceil(units, blocks), kMaxThreads);
    return for_each_part(operands, plan, [&](const sgl::RowMapParams<2>& rows) {
      launch(blocks, threads, quantize_small.get(plan.elements, has_tail, blocks > 1, dtype), {rows, scale}, blocks);
    });
  }
  struct Grid {
    std::int64_t blocks, threads;
  };
  // A block for each chunk: some items of one row for each of its threads.
  const auto grid_of = [](const sgl::RowMapParams<2>& rows, std::int64_t units_of_thread) {
    const auto threads = in_warps(div_ceil(std::int64_t{rows.items_per_row}, units_of_thread), kBlockThreads);
    const auto chunks_of_row = div_ceil(std::int64_t{rows.items_per_row}, threads * units_of_thread);
    return Grid{rows.num_items / rows.items_per_row * chunks_of_row, threads};
  };
  if (!is_static) {
    constexpr std::int64_t kBlocksPerSm = 8;
    launch(1, 1, set_smallest_scale.get(), {{}, scale});
    for_each_part(operands, plan, [&](const sgl::RowMapParams<2>& rows) {
      const auto [blocks, threads] = grid_of(rows, kMaxUnits);
      const auto most = sm_count * kBlocksPerSm;
      launch(blocks < most ? blocks : most, threads, raise_scale.get(plan.elements, has_tail, dtype), {rows, scale});
    });
  }
  // If one unit for each thread does not fill a quarter of the device, more would leave multiprocessors without work.
  constexpr std::int64_t kThreadsPerSm = 2048;
  const std::int64_t units_of_thread = units <= sm_count * (kThreadsPerSm / 4) ? 1 : kMaxUnits;
  for_each_part(operands, plan, [&](const sgl::RowMapParams<2>& rows) {
    const auto [blocks, threads] = grid_of(rows, units_of_thread);
    launch(blocks, threads, quantize.get(plan.elements, has_tail, units_of_thread, dtype), {rows, scale});
  });
}

/// q = x * (1 / scale) in e4m3, saturating, with one given or computed scale; on CUDA on the current stream.
void per_tensor_quant_fp8(TensorView input, TensorView output_q, TensorView output_s, bool is_static) {
  const DebugInfo location;
  // A row extends until input or output has a gap.
  const auto row_dims = dense_dims(input) < dense_dims(output_q) ? dense_dims(input) : dense_dims(output_q);
  const auto rank = input.ndim() < output_q.ndim() ? input.ndim() : output_q.ndim();
  const auto dims = row_dims > 0 || rank == 0 ? row_dims : 1;
  const Rows operands[] = {rows("input", input, dims), rows("output_q", output_q, dims)};
  check("per_tensor_quant_fp8", operands[0], operands[1], output_s, false);
  const auto plan = match_rows(operands, 1, 1, false, true, location);
  auto* scale = static_cast<float*>(output_s.data_ptr());
  if (input.device().device_type != kDLCPU) return per_tensor_on_cuda(operands, plan, scale, is_static, location);
  if (!is_static) *scale = scale_on_cpu(operands[0].operand(), operands[0].count, operands[0].columns, input.dtype());
  by_inverse({operands[0]}, {operands[1]}, {1 / *scale}, location);
}

/// The same with one computed scale for each row.
void per_token_quant_fp8(TensorView input, TensorView output_q, TensorView output_s) {
  if (input.ndim() == 0)
    throw Error(kTensorMatchError, "per_token_quant_fp8: input must have at least one dimension: ", input);
  using F = quant::PerToken;
  const auto x = rows("input", input).floats();
  const auto q = rows("output_q", output_q);
  check("per_token_quant_fp8", x, q, output_s, true);
  const Rows scales = {"output_s", output_s, output_s.data_ptr(), x.count, 1, 1, false};
  by_row({}, F::x = x, F::q = q, F::scale = scales);
}

/// The same with one computed scale for each group of `group_size` elements of a row.
void per_token_group_quant_fp8(
    TensorView input, TensorView output_q, TensorView output_s, std::int64_t group_size, double eps, bool scale_ue8m0) {
  using F = quant::PerGroup;
  if (!(eps >= 0)) [[unlikely]]
    throw Error("ValueError", "per_token_group_quant_fp8: eps must be at least 0, got ", eps);
  const auto x = rows("input", input).floats();
  const auto groups = in_groups(x, group_size);
  const auto q = in_groups(fp8_rows(x, "output_q", output_q), group_size);
  by_group(
      {static_cast<float>(eps), scale_ue8m0}, F::x = groups, F::q = q,
      F::scale = of_groups(scales("output_s", output_s)));
}

}  // namespace

SGL_EXPORT(per_tensor_quant_fp8, (per_tensor_quant_fp8))
SGL_EXPORT(per_token_quant_fp8, (per_token_quant_fp8))
SGL_EXPORT(per_token_group_quant_fp8, (per_token_group_quant_fp8))
