/// \file layernorm.cpp
/// \brief The host part of layer normalisation: the functions that Python calls, and the choice of a kernel.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>

#include "norm.h"

namespace {

host::Deferred<void(const NormArgs&)> layernorm_on_cpu{"layernorm_cpu.cpp", "layernorm_on_cpu"};
host::Kernel<norm_kernels::NormParams> layernorm_kernel{"layernorm.cuh", "norm_kernels::layernorm"};
host::Kernel<norm_kernels::NormParams> layernorm_any_size_kernel{"layernorm.cuh", "norm_kernels::layernorm_any_size"};

/// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias for each row x of `input` [..., hidden], into the
/// same row of `out`, which defaults to `input`; on CUDA on the current stream of its device.
void layernorm(
    host::TensorView input, host::TensorView weight, host::Optional<host::TensorView> bias,
    host::Optional<host::TensorView> out, double eps) {
  const auto args = match_norm("layernorm", input, weight, bias, out.value_or(input), eps, false);
  if (args.is_empty()) return;
  if (args.device.device_type == kDLCPU) return layernorm_on_cpu(args);
  const auto params = params_of(args);
  const auto rows = rows_of(args, params);
  const bool has_bias = args.bias != nullptr;
  if (rows.fits_registers()) {
    rows.in_registers(layernorm_kernel.get(args.hidden_size, rows.load_bytes, has_bias, args.dtype), params);
  } else {
    rows.any_size(layernorm_any_size_kernel.get(rows.elements(), has_bias, args.dtype), params);
  }
}

}  // namespace

SGL_EXPORT(layernorm, (layernorm))
