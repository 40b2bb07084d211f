/// \file rmsnorm.cu
/// \brief RMSNorm on CUDA: what Python calls, and how the kernels of rmsnorm.cuh are launched.

#include <sgl_kernel/launch.cuh>

#include "rmsnorm.cuh"
#include "rmsnorm_args.h"

/// \brief One variant.
/// \tparam kHiddenSize the hidden size it is compiled for; 0: any.
/// \tparam kUsePDL launch with programmatic dependent launch (sm_90 and later).
/// \tparam T `fp16_t`, `bf16_t` or `fp32_t`.
template <int64_t kHiddenSize, bool kUsePDL, typename T>
struct RMSNormKernel {
 public:
  /// \brief y = x / sqrt(mean(x^2) + eps) * weight for each row x of `input` [tokens, hidden], into the same row of
  /// `out`, on the current stream of their device.
  static void run(host::TensorView input, host::TensorView weight, host::TensorView out, double eps) {
    const auto args = match_rmsnorm<kDLCUDA>(input, weight, out, eps);
    host::RuntimeCheck(
        host::is_type<T>(args.dtype) && (kHiddenSize == 0 || kHiddenSize == args.hidden_size),
        "this module is compiled for hidden size ", kHiddenSize, " and ", host::dtype_of<T>::value, ", not for ",
        input);
    if (args.is_empty()) return;

    const auto params = rmsnorm::Params{
        .input = args.input,
        .weight = args.weight,
        .out = args.out,
        .input_stride = static_cast<int64_t>(args.input_stride * sizeof(T)),
        .out_stride = static_cast<int64_t>(args.out_stride * sizeof(T)),
        .num_tokens = args.num_tokens,
        .hidden_size = args.hidden_size,
        .eps = static_cast<float>(args.eps),
    };
    if (!s_in_whole_loads(params)) return s_launch_any_size<1>(params, args.device);
    if constexpr (kHiddenSize == 0) {
      s_launch_any_size<rmsnorm::kLoadBytes / sizeof(T)>(params, args.device);
    } else {
      using Rows = rmsnorm::Layout<T, kHiddenSize>;
      const auto num_blocks = host::div_ceil(params.num_tokens, Rows::kRowsPerBlock);
      host::LaunchKernel(num_blocks, Rows::kBlockThreads, args.device)
          .enable_pdl(kUsePDL)(rmsnorm::kernel<kHiddenSize, kUsePDL, T>, params);
    }
  }

 private:
  static bool s_in_whole_loads(const rmsnorm::Params& params) {
    const auto bits = reinterpret_cast<std::uintptr_t>(params.input) | reinterpret_cast<std::uintptr_t>(params.weight) |
                      reinterpret_cast<std::uintptr_t>(params.out) | params.input_stride | params.out_stride |
                      params.hidden_size * sizeof(T);
    return bits % rmsnorm::kLoadBytes == 0;
  }

  template <uint32_t kElements>
  static void s_launch_any_size(const rmsnorm::Params& params, DLDevice device) {
    constexpr int64_t kMaxBlocks = 0x7fffffff;  // of a grid
    constexpr int64_t kMaxWarps = 32;           // of a block
    const auto num_warps = host::div_ceil(params.hidden_size / kElements, device::kWarpThreads);
    const auto num_threads = (num_warps < kMaxWarps ? num_warps : kMaxWarps) * device::kWarpThreads;
    const auto num_blocks = params.num_tokens < kMaxBlocks ? params.num_tokens : kMaxBlocks;
    host::LaunchKernel(num_blocks, num_threads, device)
        .enable_pdl(kUsePDL)(rmsnorm::kernel_any_size<kElements, kUsePDL, T>, params);
  }
};
