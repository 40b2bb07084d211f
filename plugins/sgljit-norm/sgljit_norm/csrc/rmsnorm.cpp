/// \file rmsnorm.cpp
/// \brief The host part of RMSNorm: the functions that Python calls, and the choice of a kernel.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>

#include "norm.h"

namespace {

host::Deferred<void(const NormArgs&)> rmsnorm_on_cpu{"rmsnorm_cpu.cpp", "rmsnorm_on_cpu"};
host::Kernel<norm_kernels::NormParams> rmsnorm_kernel{"rmsnorm.cuh", "norm_kernels::rmsnorm"};
host::Kernel<norm_kernels::NormParams> rmsnorm_any_size_kernel{"rmsnorm.cuh", "norm_kernels::rmsnorm_any_size"};

void run_rmsnorm(const NormArgs& args) {
  if (args.is_empty()) return;
  if (args.device.device_type == kDLCPU) return rmsnorm_on_cpu(args);
  const auto params = params_of(args);
  const auto rows = rows_of(args, params);
  if (rows.fits_registers()) {
    rows.in_registers(rmsnorm_kernel.get(args.hidden_size, rows.load_bytes, args.plus_one, args.dtype), params);
  } else {
    rows.any_size(rmsnorm_any_size_kernel.get(rows.elements(), args.plus_one, args.dtype), params);
  }
}

/// y = x / sqrt(mean(x^2) + eps) * weight for each row x of `input` [..., hidden], into the same row of `out`, which
/// defaults to `input`; on CUDA on the current stream of its device.
void rmsnorm(host::TensorView input, host::TensorView weight, host::Optional<host::TensorView> out, double eps) {
  run_rmsnorm(match_norm("rmsnorm", input, weight, {}, out.value_or(input), eps, false));
}

/// rmsnorm with 1 + weight.
void gemma_rmsnorm(host::TensorView input, host::TensorView weight, host::Optional<host::TensorView> out, double eps) {
  run_rmsnorm(match_norm("gemma_rmsnorm", input, weight, {}, out.value_or(input), eps, true));
}

}  // namespace

SGL_EXPORT(rmsnorm, (rmsnorm))
SGL_EXPORT(gemma_rmsnorm, (gemma_rmsnorm))
