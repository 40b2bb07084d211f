/// \file gather_rows.cuh
/// \brief A kernel in the style of SGLang 0.5.23: rows of a table by their indices, with a scale for each.

#include <sgl_kernel/tensor.h>  // TensorMatcher, SymbolicSize, SymbolicDevice
#include <sgl_kernel/utils.h>   // CHECK_HOST, div_ceil

#include <sgl_kernel/runtime.cuh>  // get_sm_count
#include <sgl_kernel/type.cuh>     // cast, packed_t
#include <sgl_kernel/utils.cuh>    // LaunchKernel, PDLWaitPrimary
#include <sgl_kernel/vec.cuh>      // AlignedVector
#include <sgl_kernel/warp.cuh>     // get_lane_id

// example: ported
namespace sglang {

struct GatherParams {
  const void* __restrict__ table;
  const int64_t* __restrict__ index;
  const float* __restrict__ scale;  // null: 1
  void* __restrict__ out;
  uint32_t num_rows;
};

template <typename T, int64_t kDim, bool kUsePDL>
__global__ void gather_rows_kernel(const __grid_constant__ GatherParams params) {
  using namespace device;
  constexpr uint32_t kVecSize = 16 / sizeof(packed_t<T>);
  using vec_t = AlignedVector<packed_t<T>, kVecSize>;
  constexpr uint32_t kVecs = kDim / (2 * kVecSize);

  const uint32_t num_warps = gridDim.x * (blockDim.x / kWarpThreads);
  PDLWaitPrimary<kUsePDL>();
  for (uint32_t row = (blockIdx.x * blockDim.x + threadIdx.x) / kWarpThreads; row < params.num_rows; row += num_warps) {
    const auto* from = pointer::offset<T>(params.table, SGLANG_LDG(params.index + row) * kDim);
    auto* to = pointer::offset<T>(params.out, row * kDim);
    const float scale = params.scale != nullptr ? params.scale[row] : 1.0f;
    for (uint32_t i = warp::get_lane_id(); i < kVecs; i += kWarpThreads) {
      vec_t vec;
      vec.load(from, i);
#pragma unroll
      for (uint32_t j = 0; j < kVecSize; ++j) {
        const auto [x, y] = cast<fp32x2_t>(vec[j]);
        vec[j] = cast<packed_t<T>>(fp32x2_t{x * scale, y * scale});
      }
      vec.store(to, i);
    }
  }
  PDLTriggerSecondary<kUsePDL>();
}

template <typename T, int64_t kDim, bool kUsePDL>
struct GatherRows {
  static constexpr auto kernel = gather_rows_kernel<T, kDim, kUsePDL>;
  static_assert(kDim * sizeof(T) % 16 == 0, "a row is a whole number of vectors");

  static void run(
      const tvm::ffi::TensorView table, const tvm::ffi::TensorView index,
      const tvm::ffi::Optional<tvm::ffi::TensorView> scale, const tvm::ffi::TensorView out) {
    using namespace host;
    auto N = SymbolicSize{"num_rows"};
    auto device = SymbolicDevice{};
    device.set_options<kDLGPU>();
    TensorMatcher({-1, kDim}).with_dtype<T>().with_device(device).ensure_alignment(16).verify(table);
    TensorMatcher({N, kDim}).with_dtype<T>().with_device(device).ensure_alignment(16).verify(out);
    TensorMatcher({N}).with_dtype<int64_t>().with_device(device).verify(index);
    if (scale.has_value()) TensorMatcher({N}).with_dtype<float>().with_device(device).verify(scale.value());
    CHECK_HOST(N.unwrap() < (int64_t{1} << 32)) << "too many rows: " << N.unwrap();

    const auto num_rows = static_cast<uint32_t>(N.unwrap());
    if (num_rows == 0) return;
    constexpr uint32_t kThreads = 128;
    const auto params = GatherParams{
        .table = table.data_ptr(),
        .index = static_cast<const int64_t*>(index.data_ptr()),
        .scale = scale.has_value() ? static_cast<const float*>(scale.value().data_ptr()) : nullptr,
        .out = out.data_ptr(),
        .num_rows = num_rows,
    };
    static const auto max_blocks =
        runtime::get_blocks_per_sm(kernel, kThreads) * runtime::get_sm_count(device.unwrap().device_id);
    const auto num_blocks = std::min(max_blocks, div_ceil(num_rows, kThreads / device::kWarpThreads));
    LaunchKernel(num_blocks, kThreads, device.unwrap()).config({.use_pdl = kUsePDL})(kernel, params);
  }
};

}  // namespace sglang
// end
