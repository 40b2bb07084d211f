/// \file quant.cpp
/// \brief The host part of quantisation: the functions that Python calls, the checks, and the choice of kernels.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/variant.h>

#include "quant_args.h"
#include "quant_params.h"

namespace {

using namespace quant;

host::Deferred<void(const Args&)> quantize_on_cpu{"quant_cpu.cpp", "quantize_on_cpu"};
using Kernel = host::Kernel<Params>;
Kernel quantize_small_kernel{"quant.cuh", "quant::quantize_small"};
Kernel set_smallest_scale_kernel{"quant.cuh", "quant::set_smallest_scale"};
Kernel raise_scale_kernel{"quant.cuh", "quant::raise_scale"};
Kernel quantize_kernel{"quant.cuh", "quant::quantize"};
Kernel quantize_rows_kernel{"quant.cuh", "quant::quantize_rows"};
Kernel quantize_long_rows_kernel{"quant.cuh", "quant::quantize_long_rows"};

constexpr std::int64_t kMaxBlocks = 0x7fffffff;  // of a grid
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kThreadsPerSm = 2048;
constexpr std::int64_t kMaxClusterBlocks = 8;

std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// The number of threads, at least one, rounded up to whole warps.
std::int64_t in_warps(std::int64_t threads) {
  return threads < kWarp ? kWarp : host::div_ceil(threads, kWarp) * kWarp;
}

/// A call on CUDA: the parameters, and the number of elements in a unit.
struct CudaCall {
  Params params;
  DLDataType dtype;
  DLDevice device;
  std::int64_t elements;
  std::int64_t units;  ///< of a row
  bool pdl;

  explicit CudaCall(const Args& args)
      : params{
            .input = args.input,
            .output = args.output,
            .scale = args.scale,
            .input_stride = args.input_stride * (args.dtype.bits / 8),
            .output_stride = args.output_stride,
            .num_rows = args.num_rows,
            .columns = args.columns},
        dtype(args.dtype),
        device(args.device),
        elements(kLoadBytes / (args.dtype.bits / 8)),
        pdl(host::runtime::has_pdl(args.device.device_id)) {
    const auto input = reinterpret_cast<std::uintptr_t>(args.input) | static_cast<std::uintptr_t>(params.input_stride);
    const auto output = reinterpret_cast<std::uintptr_t>(args.output) | static_cast<std::uintptr_t>(args.output_stride);
    if (input % kLoadBytes != 0 || output % static_cast<std::uintptr_t>(elements) != 0) elements = 1;
    units = host::div_ceil(args.columns, elements);
  }
};

/// One computed scale for all, in one launch: a thread for each unit, in one block or one cluster of blocks.
void quantize_small(const CudaCall& call, std::int64_t max_blocks) {
  constexpr std::int64_t kThreads = 512;  // enough; a barrier of 1024 takes longer
  std::int64_t num_blocks = 1;
  while (num_blocks < max_blocks && num_blocks * kThreads < call.units) num_blocks *= 2;
  const auto units_of_block = host::div_ceil(call.units, num_blocks);
  const auto threads = units_of_block <= kThreads ? units_of_block : smaller(units_of_block, kMaxThreads);
  host::LaunchKernel(num_blocks, in_warps(threads), call.device)
      .enable_cluster(num_blocks)
      .enable_pdl(call.pdl)(quantize_small_kernel.get(call.elements, num_blocks > 1, call.dtype), call.params);
}

void per_tensor_on_cuda(const Args& args) {
  const CudaCall call(args);
  const auto max_blocks = call.pdl ? kMaxClusterBlocks : 1;  // clusters need sm_90, too
  if (!args.is_static && args.num_rows == 1 && call.units <= max_blocks * kMaxThreads * kMaxUnits)
    return quantize_small(call, max_blocks);

  struct Grid {
    std::int64_t blocks;
    std::int64_t threads;
  };
  const auto grid_of = [&](std::int64_t units) {
    const auto threads = smaller(in_warps(host::div_ceil(call.units, units)), kBlockThreads);
    const auto blocks = args.num_rows * host::div_ceil(call.units, threads * units);
    host::RuntimeCheck(blocks <= kMaxBlocks, "per_tensor_quant_fp8: too many rows for one launch: ", args.num_rows);
    return Grid{blocks, threads};
  };
  const std::int64_t sm_count = host::runtime::get_sm_count(args.device.device_id);
  if (!args.is_static) {
    constexpr std::int64_t kBlocksPerSm = 8;
    const auto grid = grid_of(kMaxUnits);
    host::LaunchKernel(1, 1, args.device).enable_pdl(call.pdl)(set_smallest_scale_kernel.get(), call.params);
    host::LaunchKernel(smaller(grid.blocks, sm_count * kBlocksPerSm), grid.threads, args.device)
        .enable_pdl(call.pdl)(raise_scale_kernel.get(call.elements, call.dtype), call.params);
  }
  // If one unit per thread does not fill a quarter of the device, more would leave multiprocessors without work.
  const bool is_spread = args.num_rows * call.units <= sm_count * (kThreadsPerSm / 4);
  const std::int64_t units = is_spread ? 1 : kMaxUnits;
  const auto grid = grid_of(units);
  host::LaunchKernel(grid.blocks, grid.threads, args.device)
      .enable_pdl(call.pdl)(quantize_kernel.get(call.elements, units, !args.is_static, call.dtype), call.params);
}

void per_token_on_cuda(const Args& args) {
  const CudaCall call(args);
  const auto launch = [&](std::int64_t num_blocks, std::int64_t threads, const host::VariantOf<Params>& kernel) {
    host::LaunchKernel(num_blocks, threads, args.device).enable_pdl(call.pdl)(kernel, call.params);
  };
  const auto rows_kernel = [&](std::int64_t units, std::int64_t row_threads) {
    return quantize_rows_kernel.get(call.elements, units, row_threads, call.dtype);
  };
  // With up to four units per lane a row stays within a warp, or a part of one, and needs no barrier.
  constexpr std::int64_t kThreads = 128;
  std::int64_t row_threads = 8;
  while (row_threads < kWarp && row_threads < call.units) row_threads *= 2;
  std::int64_t units = 1;
  while (units * row_threads < call.units) units *= 2;
  const auto num_blocks = host::div_ceil(args.num_rows, kThreads / row_threads);
  if (units <= kMaxUnits && num_blocks <= kMaxBlocks)
    return launch(num_blocks, kThreads, rows_kernel(units, row_threads));

  // Each thread takes more of a longer row, so that a multiprocessor holds several blocks.
  units = call.units <= 256 ? 1 : call.units <= 2048 ? 2 : kMaxUnits;
  const auto threads = in_warps(host::div_ceil(call.units, units));
  if (threads <= kMaxThreads && args.num_rows <= kMaxBlocks)
    return launch(args.num_rows, threads, rows_kernel(units, 0));
  launch(
      smaller(args.num_rows, kMaxBlocks), smaller(threads, kMaxThreads),
      quantize_long_rows_kernel.get(call.elements, call.dtype));
}

/// q = x * (1 / scale) in e4m3, saturating, with one given or computed scale; on CUDA on the current stream.
void per_tensor_quant_fp8(
    host::TensorView input, host::TensorView output_q, host::TensorView output_s, bool is_static) {
  const auto args = match({"per_tensor_quant_fp8", input, output_q, output_s}, is_static, false);
  if (args.device.device_type == kDLCPU) return quantize_on_cpu(args);
  per_tensor_on_cuda(args);
}

/// The same with one computed scale for each row.
void per_token_quant_fp8(host::TensorView input, host::TensorView output_q, host::TensorView output_s) {
  const auto args = match({"per_token_quant_fp8", input, output_q, output_s}, false, true);
  if (args.device.device_type == kDLCPU) return quantize_on_cpu(args);
  if (args.num_rows > 0) per_token_on_cuda(args);
}

}  // namespace
