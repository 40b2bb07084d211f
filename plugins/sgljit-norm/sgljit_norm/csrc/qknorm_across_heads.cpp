/// \file qknorm_across_heads.cpp
/// \brief The host part of RMSNorm over all heads of q, and of k: the functions that Python calls, and the choice of a
/// kernel.

#include <sgl_kernel/export.h>

#include "qknorm.h"

namespace {

QKNormKernel qknorm_across_heads_kernel{"qknorm.cuh", "norm_kernels::qknorm_across_heads"};

void run_qknorm_across_heads(const QKNormArgs& args) {
  if (args.is_empty()) return;
  if (args.device.device_type == kDLCPU) return qknorm_on_cpu(args);
  const auto params = params_of(args);
  const auto rows = rows_of(args, params);
  const auto q_bytes = args.q.head_dim * rows.element_bytes;
  const auto k_bytes = args.k.head_dim * rows.element_bytes;
  const bool is_one_empty = q_bytes == 0 || k_bytes == 0;
  const bool fit = rows.load_bytes >= 16 && q_bytes + k_bytes <= norm_kernels::kMaxRowBytes;
  if (!fit || is_one_empty || args.num_tokens > kMaxBlocks) return run_any_size(args, params, rows);
  const auto threads = norm_kernels::layout_of_both(q_bytes, k_bytes, rows.load_bytes).block_threads;
  host::LaunchKernel(args.num_tokens, threads, args.device)
      .enable_pdl(rows.pdl)(
          qknorm_across_heads_kernel.get(args.q.head_dim, args.k.head_dim, rows.load_bytes, args.dtype), params);
}

/// fused_inplace_qknorm with all heads of a token as one x.
void fused_inplace_qknorm_across_heads(
    host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight, double eps) {
  run_qknorm_across_heads(
      match_qknorm_across_heads("fused_inplace_qknorm_across_heads", q, k, q_weight, k_weight, eps));
}

}  // namespace

SGL_EXPORT(fused_inplace_qknorm_across_heads, (fused_inplace_qknorm_across_heads))
