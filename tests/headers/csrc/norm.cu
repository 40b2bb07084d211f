/// \file norm.cu
/// \brief A small RMSNorm made of the building blocks in impl/norm.cuh.

#include <sgl_kernel/tensor.h>
#include <sgl_kernel/impl/norm.cuh>
#include <sgl_kernel/tile.cuh>
#include <sgl_kernel/utils.cuh>

namespace {

template <typename T, int64_t kDim>
__global__ void norm_kernel(T* out, const T* x, const T* weight, float eps, int64_t rows) {
  using namespace device;
  using vec_t = norm::StorageType<T, kDim>;
  if constexpr (host::norm::should_use_cta<T, kDim>()) {
    __shared__ float smem[norm::kSmemBufferSize];
    const auto mem = tile::Memory<vec_t>::cta();
    const int64_t row = int64_t{blockIdx.x} * kDim;
    mem.store(out + row, norm::apply_rmsnorm_cta<kDim>(mem.load(x + row), mem.load(weight), eps, smem));
  } else {
    const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const auto mem = tile::Memory<vec_t>::warp();
    mem.store(out + row * kDim, norm::apply_rmsnorm_warp<kDim>(mem.load(x + row * kDim), mem.load(weight), eps));
  }
}

template <typename T, int64_t kDim>
void rmsnorm(host::TensorView out, host::TensorView x, host::TensorView weight, float eps) {
  using namespace host;
  static_assert(norm::is_config_supported<T, kDim>());
  auto N = SymbolicSize{"rows"};
  auto device = SymbolicDevice{};
  TensorMatcher({N, kDim}).with_device<kDLCUDA>(device).with_dtype<T>().verify(out).verify(x);
  TensorMatcher({kDim}).with_dtype<T>().with_device(device).verify(weight);
  uint32_t threads = 128;
  auto blocks = div_ceil(N.unwrap(), 4);
  if constexpr (norm::should_use_cta<T, kDim>()) {
    threads = norm::get_cta_threads<T, kDim>();
    blocks = N.unwrap();
  }
  LaunchKernel(blocks, threads, device.unwrap())(
      norm_kernel<T, kDim>, static_cast<T*>(out.data_ptr()), static_cast<const T*>(x.data_ptr()),
      static_cast<const T*>(weight.data_ptr()), eps, N.unwrap());
}

static_assert(!host::norm::is_config_supported<float, 128>() && !host::norm::is_config_supported<fp16_t, 96>());
static_assert(host::norm::get_cta_threads<bf16_t, 8192>() == 1024);
static_assert(
    sizeof(device::norm::StorageType<bf16_t, 64>) == 4 && sizeof(device::norm::StorageType<bf16_t, 4096>) == 16);

}  // namespace

#include <sgl_kernel/export.h>

#define EXPORT_NORM(DIM)                                    \
  SGL_EXPORT(rmsnorm_float16_##DIM, (rmsnorm<fp16_t, DIM>)) \
  SGL_EXPORT(rmsnorm_bfloat16_##DIM, (rmsnorm<bf16_t, DIM>))
EXPORT_NORM(64)
EXPORT_NORM(128)
EXPORT_NORM(256)
EXPORT_NORM(512)
EXPORT_NORM(768)
EXPORT_NORM(4096)
EXPORT_NORM(8192)
