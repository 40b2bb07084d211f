/// \file fused_add_rmsnorm.cpp
/// \brief The host part of RMSNorm after a residual addition: the functions that Python calls, and the choice of a
/// kernel.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>

#include "fused_add_args.h"
#include "norm_launch.h"

namespace {

host::Deferred<void(const FusedAddArgs&)> fused_add_rmsnorm_on_cpu{
    "fused_add_rmsnorm_cpu.cpp", "fused_add_rmsnorm_on_cpu"};
host::Kernel<norm_kernels::FusedAddParams> fused_add_rmsnorm_kernel{
    "fused_add_rmsnorm.cuh", "norm_kernels::fused_add_rmsnorm"};
host::Kernel<norm_kernels::FusedAddParams> fused_add_rmsnorm_any_size_kernel{
    "fused_add_rmsnorm.cuh", "norm_kernels::fused_add_rmsnorm_any_size"};

void run_fused_add_rmsnorm(const FusedAddArgs& args) {
  if (args.is_empty()) return;
  if (args.device.device_type == kDLCPU) return fused_add_rmsnorm_on_cpu(args);
  const std::int64_t element_bytes = args.dtype.bits / 8;
  const auto params = norm_kernels::FusedAddParams{
      .input = args.input,
      .residual = args.residual,
      .weight = args.weight,
      .input_stride = args.input_stride * element_bytes,
      .residual_stride = args.residual_stride * element_bytes,
      .num_tokens = args.num_tokens,
      .hidden_size = args.hidden_size,
      .eps = static_cast<float>(args.eps),
  };
  const auto rows = RowsLaunch(
      args.device, args.dtype, args.num_tokens, args.hidden_size, 2, params.input, params.residual, params.weight,
      params.input_stride, params.residual_stride);
  if (rows.fits_registers()) {
    rows.in_registers(
        fused_add_rmsnorm_kernel.get(args.hidden_size, rows.load_bytes, args.plus_one, args.dtype), params);
  } else {
    rows.any_size(fused_add_rmsnorm_any_size_kernel.get(rows.elements(), args.plus_one, args.dtype), params);
  }
}

/// residual = input + residual, then input = residual / sqrt(mean(residual^2) + eps) * weight, row by row, from the sum
/// before it is rounded; on CUDA on the current stream of its device.
void fused_add_rmsnorm(host::TensorView input, host::TensorView residual, host::TensorView weight, double eps) {
  run_fused_add_rmsnorm(match_fused_add("fused_add_rmsnorm", input, residual, weight, eps, false));
}

/// fused_add_rmsnorm with 1 + weight.
void gemma_fused_add_rmsnorm(host::TensorView input, host::TensorView residual, host::TensorView weight, double eps) {
  run_fused_add_rmsnorm(match_fused_add("gemma_fused_add_rmsnorm", input, residual, weight, eps, true));
}

}  // namespace

SGL_EXPORT(fused_add_rmsnorm, (fused_add_rmsnorm))
SGL_EXPORT(gemma_fused_add_rmsnorm, (gemma_fused_add_rmsnorm))
