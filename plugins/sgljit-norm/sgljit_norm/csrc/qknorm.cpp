/// \file qknorm.cpp
/// \brief The host part of RMSNorm over each head of q and k: the functions that Python calls, and the choice of a
/// kernel.

#include <sgl_kernel/export.h>

#include "qknorm.h"

namespace {

QKNormKernel qknorm_kernel{"qknorm.cuh", "norm_kernels::qknorm"};

void run_qknorm(const QKNormArgs& args) {
  if (args.is_empty()) return;
  if (args.device.device_type == kDLCPU) return qknorm_on_cpu(args);
  const auto params = params_of(args);
  const auto rows = rows_of(args, params);
  // The kernel's own limits: it counts rows in 32 bits, and the inverse of one head would be 2^64.
  const bool is_countable = rows.num_rows <= (std::int64_t{1} << 31) && rows.num_rows > args.num_tokens;
  if (!rows.fits_registers() || !is_countable) return run_any_size(args, params, rows);
  rows.in_registers(qknorm_kernel.get(rows.size, rows.load_bytes, args.plus_one, args.dtype), params);
}

/// x / sqrt(mean(x^2) + eps) * weight for each head x of q with q_weight and of k with k_weight, in place; on CUDA on
/// the current stream of their device.
void fused_inplace_qknorm(
    host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight, double eps,
    std::int64_t head_dim) {
  run_qknorm(match_qknorm("fused_inplace_qknorm", q, k, q_weight, k_weight, eps, head_dim, false));
}

/// fused_inplace_qknorm with 1 + weight.
void gemma_fused_inplace_qknorm(
    host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight, double eps,
    std::int64_t head_dim) {
  run_qknorm(match_qknorm("gemma_fused_inplace_qknorm", q, k, q_weight, k_weight, eps, head_dim, true));
}

}  // namespace

SGL_EXPORT(fused_inplace_qknorm, (fused_inplace_qknorm))
SGL_EXPORT(gemma_fused_inplace_qknorm, (gemma_fused_inplace_qknorm))
