#pragma once

#include <sgl_kernel/deferred.h>

#include "norm_launch.h"
#include "qknorm_args.h"

/// \file qknorm.h
/// \brief The common code of the host parts that normalise q and k.

inline host::Deferred<void(const QKNormArgs&)> qknorm_on_cpu{"qknorm_cpu.cpp", "qknorm_on_cpu"};
using QKNormKernel = host::Kernel<norm_kernels::QKNormParams>;
inline QKNormKernel qknorm_any_size_kernel{"qknorm.cuh", "norm_kernels::qknorm_any_size"};

inline norm_kernels::Heads heads_of(const HeadsArgs& args, std::int64_t element_bytes) {
  return {args.data,      args.weight,  args.token_stride * element_bytes, args.head_stride * element_bytes,
          args.num_heads, args.head_dim};
}

/// \brief The kernels' parameters of a call.
inline norm_kernels::QKNormParams params_of(const QKNormArgs& args) {
  const auto heads = static_cast<std::uint64_t>(args.q.num_heads + args.k.num_heads);
  return {
      .q = heads_of(args.q, args.dtype.bits / 8),
      .k = heads_of(args.k, args.dtype.bits / 8),
      .num_tokens = args.num_tokens,
      .inverse_heads = ~std::uint64_t{0} / heads + 1,
      .eps = static_cast<float>(args.eps),
  };
}

/// \brief The rows of q and of k; `size` is that of the longer one.
inline RowsLaunch rows_of(const QKNormArgs& args, const norm_kernels::QKNormParams& params) {
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

/// \brief The kernel for heads of any size, one head after the other.
inline void run_any_size(const QKNormArgs& args, const norm_kernels::QKNormParams& params, const RowsLaunch& rows) {
  rows.any_size(qknorm_any_size_kernel.get(rows.elements(), args.plus_one, args.dtype), params);
}
