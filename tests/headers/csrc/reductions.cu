/// \file reductions.cu
/// \brief Warp and block reductions over rows of a tensor; test_device_reductions.py knows the results.

#include <sgl_kernel/ffi.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/utils.cuh>
#include <sgl_kernel/warp.cuh>

namespace {

enum class Op { kSum, kMax, kMin };

template <Op kOp, uint32_t kThreads, typename T>
SGL_DEVICE T warp_reduce(T value, uint32_t mask) {
  using namespace device;
  if constexpr (kOp == Op::kSum) return warp::reduce_sum<T, kThreads>(value, mask);
  if constexpr (kOp == Op::kMax) return warp::reduce_max<T, kThreads>(value, mask);
  if constexpr (kOp == Op::kMin) return warp::reduce_min<T, kThreads>(value, mask);
}

/// One warp for each mask. Lanes outside the mask leave `out` as it is.
template <Op kOp, uint32_t kThreads, typename T>
__global__ void warp_kernel(T* out, const T* in, const uint32_t* masks, int64_t num_masks) {
  const uint32_t lane = threadIdx.x % 32;
  for (int64_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < num_masks;
       i += gridDim.x * (blockDim.x / 32)) {
    const uint32_t mask = masks[i];
    if (mask >> lane & 1) out[i * 32 + lane] = warp_reduce<kOp, kThreads>(in[i * 32 + lane], mask);
    __syncwarp();
  }
}

template <Op kOp, uint32_t kThreads, typename T>
void warp(host::TensorView out, host::TensorView in, host::TensorView masks) {
  using namespace host;
  auto N = SymbolicSize{"masks"};
  auto device = SymbolicDevice{};
  TensorMatcher({N, 32}).with_device<kDLCUDA>(device).with_dtype<T>().verify(out).verify(in);
  TensorMatcher({N}).with_dtype<int32_t>().with_device(device).verify(masks);
  const auto blocks = div_ceil(N.unwrap(), 8) < 4096 ? div_ceil(N.unwrap(), 8) : 4096;
  LaunchKernel(blocks, 256, device.unwrap())(
      warp_kernel<kOp, kThreads, T>, static_cast<T*>(out.data_ptr()), static_cast<const T*>(in.data_ptr()),
      static_cast<const uint32_t*>(masks.data_ptr()), N.unwrap());
}

/// Every mask in [begin, begin + count) with lanes that hold 2^lane: the sum is the mask, so that a wrong lane shows.
__global__ void every_mask_kernel(uint64_t begin, uint64_t count, unsigned long long* num_wrong) {
  using namespace device;
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t num_warps = uint64_t{gridDim.x} * (blockDim.x / 32);
  unsigned long long wrong = 0;
  for (uint64_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < count; i += num_warps) {
    const auto mask = static_cast<uint32_t>(begin + i);
    if (mask >> lane & 1) {
      const int top = 31 - __clz(static_cast<int>(mask));
      const int bottom = __ffs(static_cast<int>(mask)) - 1;
      if (warp::reduce_sum(1u << lane, mask) != mask) ++wrong;
      if (warp::reduce_max(static_cast<int>(lane), mask) != top) ++wrong;
      if (warp::reduce_min(static_cast<int>(lane), mask) != bottom) ++wrong;
    }
    __syncwarp();
  }
  if (wrong != 0) atomicAdd(num_wrong, wrong);
}

void every_mask(int64_t begin, int64_t count, host::TensorView num_wrong) {
  using namespace host;
  auto device = SymbolicDevice{};
  TensorMatcher({1}).with_dtype<int64_t>().with_device<kDLCUDA>(device).verify(num_wrong);
  LaunchKernel(132 * 8, 256, device.unwrap())(
      every_mask_kernel, begin, count, static_cast<unsigned long long*>(num_wrong.data_ptr()));
}

/// One block for each row. `returned` is what warp 0 got back, `stored` what smem[0] holds after the barrier.
template <Op kOp, typename T>
__global__ void cta_kernel(T* returned, T* stored, const T* in) {
  using namespace device;
  __shared__ T smem[32];
  const T value = in[blockIdx.x * blockDim.x + threadIdx.x];
  T result;
  if constexpr (kOp == Op::kSum) result = cta::reduce_sum(value, smem);
  if constexpr (kOp == Op::kMax) result = cta::reduce_max(value, smem);
  if constexpr (kOp == Op::kMin) result = cta::reduce_min(value, smem);
  __syncthreads();
  if (threadIdx.x < 32) returned[blockIdx.x * 32 + threadIdx.x] = result;
  stored[blockIdx.x * blockDim.x + threadIdx.x] = smem[0];
}

template <Op kOp, typename T>
void cta(host::TensorView returned, host::TensorView stored, host::TensorView in) {
  using namespace host;
  auto N = SymbolicSize{"rows"};
  auto D = SymbolicSize{"threads"};
  auto device = SymbolicDevice{};
  TensorMatcher({N, D}).with_device<kDLCUDA>(device).with_dtype<T>().verify(stored).verify(in);
  TensorMatcher({N, 32}).with_dtype<T>().with_device(device).verify(returned);
  LaunchKernel(N.unwrap(), D.unwrap(), device.unwrap())(
      cta_kernel<kOp, T>, static_cast<T*>(returned.data_ptr()), static_cast<T*>(stored.data_ptr()),
      static_cast<const T*>(in.data_ptr()));
}

/// The sum and the largest of two values of each thread, as every thread gets them; kThreads as in `all_reduce`.
template <uint32_t kThreads>
__global__ void all_reduce_kernel(float* out, const float* in) {
  using namespace device;
  __shared__ float smem[2][2 * kWarpThreads];
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  float sums[] = {in[i], 2 * in[i]}, largest[] = {in[i], -in[i]};
  cta::all_reduce<kThreads>(sums, smem[0], 0.0f, [](float a, float b) { return a + b; });
  cta::all_reduce<kThreads>(largest, smem[1], -math::inf, [](float a, float b) { return math::max(a, b); });
  const float values[] = {sums[0], sums[1], largest[0], largest[1]};
  for (int j = 0; j < 4; ++j) out[4 * i + j] = values[j];
}

/// `in` is [rows, threads], `out` [rows, threads, 4]; one block for each row.
void all_reduce(host::TensorView out, host::TensorView in, bool is_fixed) {
  const auto threads = in.size(1);
  const host::LaunchKernel launch(in.size(0), threads, in.device());
  auto* to = static_cast<float*>(out.data_ptr());
  const auto* from = static_cast<const float*>(in.data_ptr());
  if (!is_fixed) return launch(all_reduce_kernel<0>, to, from);
  if (threads == 32) return launch(all_reduce_kernel<32>, to, from);
  if (threads == 256) return launch(all_reduce_kernel<256>, to, from);
  if (threads == 288) return launch(all_reduce_kernel<288>, to, from);
  host::RuntimeCheck(threads == 1024, "no kernel is made for ", threads, " threads");
  launch(all_reduce_kernel<1024>, to, from);
}

/// The bounds of the forms with three arguments.
__global__ void cta_bounds_kernel(float* out, const float* in, float bound) {
  __shared__ float smem[32];
  device::cta::reduce_max(in[threadIdx.x], smem, bound);
  __syncthreads();
  if (threadIdx.x == 0) out[0] = smem[0];
  __syncthreads();
  device::cta::reduce_min(in[threadIdx.x], smem, bound);
  __syncthreads();
  if (threadIdx.x == 0) out[1] = smem[0];
}

void cta_bounds(host::TensorView out, host::TensorView in, float bound) {
  host::LaunchKernel(1, in.size(0), in.device())(
      cta_bounds_kernel, static_cast<float*>(out.data_ptr()), static_cast<const float*>(in.data_ptr()), bound);
}

}  // namespace

#include <sgl_kernel/export.h>

#define EXPORT_WARP(NAME, OP, TYPE)                      \
  SGL_EXPORT(warp_##NAME##_32, (warp<Op::OP, 32, TYPE>)) \
  SGL_EXPORT(warp_##NAME##_8, (warp<Op::OP, 8, TYPE>))   \
  SGL_EXPORT(cta_##NAME, (cta<Op::OP, TYPE>))
#define EXPORT_TYPE(NAME, TYPE)       \
  EXPORT_WARP(sum_##NAME, kSum, TYPE) \
  EXPORT_WARP(max_##NAME, kMax, TYPE) \
  EXPORT_WARP(min_##NAME, kMin, TYPE)

EXPORT_TYPE(float32, float)
EXPORT_TYPE(float64, double)
EXPORT_TYPE(float16, fp16_t)
EXPORT_TYPE(bfloat16, bf16_t)
EXPORT_TYPE(int32, int32_t)
EXPORT_TYPE(int64, int64_t)
SGL_EXPORT(every_mask, (every_mask))
SGL_EXPORT(all_reduce, (all_reduce))
SGL_EXPORT(cta_bounds, (cta_bounds))
