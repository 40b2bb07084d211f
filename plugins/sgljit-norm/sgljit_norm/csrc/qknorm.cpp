/// \file qknorm.cpp
/// \brief The host part of RMSNorm over q and k: what Python calls, and the choice of a kernel.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>

#include "norm_launch.h"
#include "qknorm_args.h"

namespace {

host::Deferred<void(const QKNormArgs&)> qknorm_on_cpu{"qknorm_cpu.cpp", "qknorm_on_cpu"};
host::Variants qknorm_kernels{"qknorm.cuh"};

norm_kernels::Heads heads_of(const HeadsArgs& args, std::int64_t element_bytes) {
  return {args.data,      args.weight,  args.token_stride * element_bytes, args.head_stride * element_bytes,
          args.num_heads, args.head_dim};
}

norm_kernels::QKNormParams params_of(const QKNormArgs& args) {
  const auto heads = static_cast<std::uint64_t>(args.q.num_heads + args.k.num_heads);
  return {
      .q = heads_of(args.q, args.dtype.bits / 8),
      .k = heads_of(args.k, args.dtype.bits / 8),
      .num_tokens = args.num_tokens,
      .inverse_heads = ~std::uint64_t{0} / heads + 1,
      .eps = static_cast<float>(args.eps),
  };
}

/// The rows of q and of k; `size` is that of the longer ones.
RowsLaunch rows_of(const QKNormArgs& args, const norm_kernels::QKNormParams& params) {
  const auto& [q, k, num_tokens, inverse_heads, eps] = params;
  const auto size = q.head_dim > k.head_dim ? q.head_dim : k.head_dim;
  const auto other = (q.head_dim + k.head_dim - size) * (args.dtype.bits / 8);
  return {
      args.device,
      args.dtype,
      num_tokens * (q.num_heads + k.num_heads),
      size,
      1,
      q.data,
      q.weight,
      q.token_stride,
      q.head_stride,
      k.data,
      k.weight,
      k.token_stride,
      k.head_stride,
      other};
}

void run_any_size(const QKNormArgs& args, const norm_kernels::QKNormParams& params, const RowsLaunch& rows) {
  rows.any_size(
      qknorm_kernels.get("norm_kernels::qknorm_any_size", rows.elements(), args.plus_one, rows.pdl, args.dtype),
      params);
}

void run_qknorm(const QKNormArgs& args) {
  if (args.is_empty()) return;
  if (args.device.device_type == kDLCPU) return qknorm_on_cpu(args);
  const auto params = params_of(args);
  const auto rows = rows_of(args, params);
  // The kernel's own limits: it counts rows in 32 bits, and the inverse of one head would be 2^64.
  const bool is_countable = rows.num_rows <= (std::int64_t{1} << 31) && rows.num_rows > args.num_tokens;
  if (!rows.fits_registers() || !is_countable) return run_any_size(args, params, rows);
  rows.in_registers(
      qknorm_kernels.get("norm_kernels::qknorm", rows.size, rows.load_bytes, args.plus_one, rows.pdl, args.dtype),
      params);
}

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
          qknorm_kernels.get(
              "norm_kernels::qknorm_across_heads", args.q.head_dim, args.k.head_dim, rows.load_bytes, rows.pdl,
              args.dtype),
          params);
}

/// x / sqrt(mean(x^2) + eps) * weight for each head x of q with q_weight and of k with k_weight, in place; on CUDA on
/// the current stream of their device.
void fused_inplace_qknorm(
    host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight, double eps,
    std::int64_t head_dim) {
  run_qknorm(match_qknorm("fused_inplace_qknorm", q, k, q_weight, k_weight, eps, head_dim, false));
}

/// As fused_inplace_qknorm, with 1 + weight.
void gemma_fused_inplace_qknorm(
    host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight, double eps,
    std::int64_t head_dim) {
  run_qknorm(match_qknorm("gemma_fused_inplace_qknorm", q, k, q_weight, k_weight, eps, head_dim, true));
}

/// As fused_inplace_qknorm, with all heads of a token as one x.
void fused_inplace_qknorm_across_heads(
    host::TensorView q, host::TensorView k, host::TensorView q_weight, host::TensorView k_weight, double eps) {
  run_qknorm_across_heads(
      match_qknorm_across_heads("fused_inplace_qknorm_across_heads", q, k, q_weight, k_weight, eps));
}

}  // namespace

SGL_EXPORT(fused_inplace_qknorm, (fused_inplace_qknorm))
SGL_EXPORT(gemma_fused_inplace_qknorm, (gemma_fused_inplace_qknorm))
SGL_EXPORT(fused_inplace_qknorm_across_heads, (fused_inplace_qknorm_across_heads))
