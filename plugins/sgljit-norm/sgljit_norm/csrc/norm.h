#pragma once

#include "norm_args.h"
#include "norm_launch.h"

/// \file norm.h
/// \brief The common code of the host parts of rmsnorm and layernorm.

/// \brief The kernels' parameters of a call.
inline norm_kernels::NormParams params_of(const NormArgs& args) {
  const std::int64_t element_bytes = args.dtype.bits / 8;
  return {
      .input = args.input,
      .weight = args.weight,
      .bias = args.bias,
      .out = args.out,
      .input_stride = args.input_stride * element_bytes,
      .out_stride = args.out_stride * element_bytes,
      .num_tokens = args.num_tokens,
      .hidden_size = args.hidden_size,
      .eps = static_cast<float>(args.eps),
  };
}

/// \brief Its rows.
inline RowsLaunch rows_of(const NormArgs& args, const norm_kernels::NormParams& params) {
  return {args.device, args.dtype, args.num_tokens,     args.hidden_size, 1, params.input, params.weight,
          params.bias, params.out, params.input_stride, params.out_stride};
}
