/// \file rmsnorm.cpp
/// \brief The host part of RMSNorm: what Python calls, the checks, and the choice of a kernel.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/variant.h>

#include "rmsnorm_args.h"
#include "rmsnorm_layout.h"

namespace {

host::Deferred<void(const RMSNormArgs&)> rmsnorm_on_cpu{"rmsnorm_cpu.cpp", "rmsnorm_on_cpu"};
host::Variants kernels{"rmsnorm.cuh"};

/// Whether every address and every row is a whole number of 16-byte loads.
bool in_whole_loads(const norm_kernels::RMSNormParams& params, std::int64_t row_bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(params.input) | reinterpret_cast<std::uintptr_t>(params.weight) |
                    reinterpret_cast<std::uintptr_t>(params.out) | static_cast<std::uintptr_t>(params.input_stride) |
                    static_cast<std::uintptr_t>(params.out_stride) | static_cast<std::uintptr_t>(row_bytes);
  return bits % norm_kernels::kLoadBytes == 0;
}

void rmsnorm_on_cuda(const RMSNormArgs& args) {
  const std::int64_t element_bytes = args.dtype.bits / 8;
  const std::int64_t row_bytes = args.hidden_size * element_bytes;
  const auto params = norm_kernels::RMSNormParams{
      .input = args.input,
      .weight = args.weight,
      .out = args.out,
      .input_stride = args.input_stride * element_bytes,
      .out_stride = args.out_stride * element_bytes,
      .num_tokens = args.num_tokens,
      .hidden_size = args.hidden_size,
      .eps = static_cast<float>(args.eps),
  };
  const bool pdl = host::runtime::has_pdl(args.device.device_id);
  const bool whole = in_whole_loads(params, row_bytes);
  if (whole && row_bytes <= norm_kernels::kMaxRowBytes) {
    const auto layout = norm_kernels::layout_of(row_bytes);
    const auto num_blocks = host::div_ceil(params.num_tokens, layout.rows_per_block());
    host::LaunchKernel(num_blocks, layout.block_threads, args.device)
        .enable_pdl(pdl)(kernels.get("norm_kernels::rmsnorm", args.hidden_size, pdl, args.dtype), params);
  } else {
    constexpr std::int64_t kMaxBlocks = 0x7fffffff;  // of a grid
    constexpr std::int64_t kMaxThreads = 1024;       // of a block
    const std::int64_t elements = whole ? norm_kernels::kLoadBytes / element_bytes : 1;
    const auto threads = host::div_ceil(args.hidden_size / elements, 32) * 32;
    const auto num_blocks = args.num_tokens < kMaxBlocks ? args.num_tokens : kMaxBlocks;
    host::LaunchKernel(num_blocks, threads < kMaxThreads ? threads : kMaxThreads, args.device)
        .enable_pdl(pdl)(kernels.get("norm_kernels::rmsnorm_any_size", elements, pdl, args.dtype), params);
  }
}

/// y = x / sqrt(mean(x^2) + eps) * weight for each row x of `input` [tokens, hidden], into the same row of `out`, by
/// default of `input`; on CUDA on the current stream of its device.
void rmsnorm(host::TensorView input, host::TensorView weight, host::Optional<host::TensorView> out, double eps) {
  const auto args = match_rmsnorm<kDLCPU, kDLCUDA>(input, weight, out.value_or(input), eps);
  if (args.is_empty()) return;
  if (args.device.device_type == kDLCPU) return rmsnorm_on_cpu(args);
  rmsnorm_on_cuda(args);
}

}  // namespace
