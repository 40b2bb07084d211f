/// \file names.cuh
/// \brief What the names of compat/ do on a GPU, in the way that SGLang's kernels use them.

#include <sgl_kernel/tensor.h>

#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/impl/norm.cuh>
#include <sgl_kernel/mbarrier.cuh>
#include <sgl_kernel/runtime.cuh>
#include <sgl_kernel/tile.cuh>
#include <sgl_kernel/warp.cuh>

namespace sglang {

__global__ void lanes_kernel(const float* x, float* out) {
  using namespace device;
  const uint32_t lane = warp::get_lane_id();
  const float value = x[lane];
  const float results[] = {
      warp::reduce_sum<8>(value),
      warp::reduce_sum<32, 8>(value),
      warp::reduce_max<1, 8>(value),
      warp::inclusive_sum(value),
      warp::inclusive_sum<32, 32, 1>(value),
      warp::inclusive_max<8>(value, lane % 8),
      warp::broadcast<8>(value, 3),
      static_cast<float>(__popc(__ballot_sync(warp::kFullMask, warp::elect_one_lane()))),
  };
  for (uint32_t i = 0; i < sizeof(results) / sizeof(float); ++i) out[i * 32 + lane] = results[i];
}

void lanes(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  host::LaunchKernel(1, 32, x.device())(
      lanes_kernel, static_cast<const float*>(x.data_ptr()), static_cast<float*>(out.data_ptr()));
}

template <typename T>
__global__ void pairs_kernel(const T* x, T* out) {
  using namespace device;
  const auto pair = x[threadIdx.x];
  const auto sum = warp::reduce<ReductionOp::SUM>(pair);
  const auto most = warp::reduce<ReductionOp::MAX, 32>(pair);
  if (threadIdx.x == 0) out[0] = sum;
  if (threadIdx.x == 0) out[1] = DTypeTrait<T>::max(most, pair);
  if (threadIdx.x == 0) out[2] = DTypeTrait<T>::add(unpack(pair)[0] == unpack(most)[0] ? pair : most, pair);
}

template <typename T>
void pairs(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  host::LaunchKernel(1, 32, x.device())(
      pairs_kernel<T>, static_cast<const T*>(x.data_ptr()), static_cast<T*>(out.data_ptr()));
}

template <int64_t kBytes, int64_t kMost>
__global__ void copy_kernel(const void* x, void* out) {
  device::warp::store_bytes<kBytes, kMost>(out, device::warp::load_bytes<kBytes, kMost>(x));
}

template <int64_t kBytes, int64_t kMost>
void copy(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  host::LaunchKernel(1, 32, x.device())(copy_kernel<kBytes, kMost>, x.data_ptr(), out.data_ptr());
}

__global__ void divide_kernel(const uint32_t* n, uint32_t* out, uint32_t size, device::math::fast_mod_div_u32_t by) {
  for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
    const auto [quotient, rest] = device::math::div(n[i], by);
    out[2 * i] = quotient;
    out[2 * i + 1] = rest;
  }
}

void divide(tvm::ffi::TensorView n, tvm::ffi::TensorView out, int64_t by) {
  host::LaunchKernel(1, 256, n.device())(
      divide_kernel, static_cast<const uint32_t*>(n.data_ptr()), static_cast<uint32_t*>(out.data_ptr()),
      static_cast<uint32_t>(n.size(0)), device::math::fast_mod_div_u32_t(static_cast<uint32_t>(by)));
}

/// Twice in a row, with no barrier between, as ports may.
template <int64_t kDim>
__global__ void norm_kernel(const void* x, void* out, float eps) {
  using namespace device;
  using vec_t = norm::StorageType<bf16_t, kDim>;
  __shared__ float smem[norm::kSmemBufferSize];
  const auto memory = tile::Memory<vec_t>::cta();
  vec_t ones;
  ones.fill(bf16x2_t{1.0f, 1.0f});
  auto row = memory.load(pointer::offset<bf16_t>(x, blockIdx.x * kDim));
  for (int i = 0; i < 2; ++i) row = norm::apply_norm_cta<kDim>(row, ones, eps, smem);
  memory.store(pointer::offset<bf16_t>(out, blockIdx.x * kDim), row);
}

template <int64_t kDim>
void norm_twice(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  host::LaunchKernel(x.size(0), host::norm::get_cta_threads<bf16_t, kDim>(), x.device())(
      norm_kernel<kDim>, x.data_ptr(), out.data_ptr(), 0.0f);
}

template <int kThreads>
__global__ void block_sum_kernel(const float* x, float* out) {
  __shared__ float smem[32];
  out[threadIdx.x] = device::cta::reduce_sum<kThreads>(x[threadIdx.x], smem);
}

template <int kThreads>
void block_sum(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
  host::LaunchKernel(1, kThreads, x.device())
      .config({.cluster_dim = dim3(1)})
      .launch(block_sum_kernel<kThreads>, static_cast<const float*>(x.data_ptr()), static_cast<float*>(out.data_ptr()));
}

/// One thread arrives and waits, twice: the parity of a barrier begins with 0.
__global__ void barrier_kernel(uint32_t* out) {
  __shared__ uint64_t barrier;
  device::ptx::mbar_init(&barrier, 1);
  for (uint32_t phase = 0; phase < 2; ++phase) {
    device::ptx::mbar_arrive(&barrier);
    device::ptx::mbar_wait_parity(&barrier, phase);
    ++*out;
  }
}

void barrier(tvm::ffi::TensorView out) {
  host::LaunchKernel(1, 1, out.device())(barrier_kernel, static_cast<uint32_t*>(out.data_ptr()));
}

int64_t pinned(tvm::ffi::TensorView x) {
  return reinterpret_cast<int64_t>(host::runtime::get_device_accessible_ptr(x));
}

int64_t times(int64_t calls) {
  int64_t count = 0;
  for (int64_t i = 0; i < calls; ++i) host::runtime::init_per_device(static_cast<int>(i % 2), [&] { ++count; });
  return count;
}

int64_t facts(int64_t which) {
  const int values[] = {
      host::runtime::get_sm_version(0), static_cast<int>(host::runtime::get_max_smem_per_block(0)),
      static_cast<int>(host::runtime::get_max_smem_per_block(0, false))};
  return values[which];
}

void fail() {
  CHECK_CUDA(::cudaErrorInvalidValue) << "on purpose";
}
void fail_in_the_driver() {
  host::RuntimeDeviceCheck(CUDA_ERROR_INVALID_VALUE);
}

}  // namespace sglang
