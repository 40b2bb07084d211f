/// \file examples.cu
/// \brief The device examples of docs/headers.md, between `// example:` and `// end`; test_docs.py compares and runs
/// them.

#include <sgl_kernel/tensor.h>
#include <sgl_kernel/atomic.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/impl/norm.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/ptx.cuh>
#include <sgl_kernel/runtime.cuh>
#include <sgl_kernel/tile.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/utils.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

namespace {

// example: device
__global__ void twice(float* out, const float* in, int64_t n) {
  using namespace device;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  PDLWaitPrimary();  // the kernel before this one may still be writing `in`
  if (i < n) out[i] = 2 * in[i];
  PDLTriggerSecondary();
}
// end

// example: launch
void launch_twice(host::TensorView out, host::TensorView in) {
  using namespace host;
  auto N = SymbolicSize{"elements"};
  auto device = SymbolicDevice{};
  TensorMatcher({N}).with_dtype<float>().with_device<kDLCUDA>(device).verify(out, "out").verify(in, "in");
  LaunchKernel(div_ceil(N.unwrap(), 256), 256, device.unwrap())
      .enable_pdl()(twice, static_cast<float*>(out.data_ptr()), static_cast<const float*>(in.data_ptr()), N.unwrap());
}
// end

/// One warp; every example writes what it computes.
__global__ void examples(float* out, const fp16_t* in) {
  using namespace device;
  const int lane = static_cast<int>(threadIdx.x);
  {
    // example: type
    const auto pair = cast<fp32x2_t>(fp16x2_t{1.0f, 2.0f});  // float2{1, 2}
    const auto half = cast<bf16_t>(1.0f + 1.0f / 512);       // 1: bf16 has 8 bits
    const auto byte = cast<fp8_e4m3_t>(1000.0f);             // 448, the largest
    static_assert(sizeof(packed_t<fp16_t>) == 4);            // two halves
    // end
    if (lane == 0) {
      out[0] = pair.x + pair.y;
      out[1] = cast<float>(half);
      out[2] = cast<float>(byte);
    }
  }
  {
    // example: math
    const float root = math::rsqrt(4.0f);                       // 0.5
    const auto larger = math::max(fp16_t(3.0f), fp16_t(5.0f));  // 5
    // end
    if (lane == 0) {
      out[3] = root;
      out[4] = cast<float>(larger);
    }
  }
  {
    // example: vec
    AlignedVector<fp16_t, 8> v;  // 16 bytes: one load
    v.load(in, lane);            // elements 8 * lane to 8 * lane + 7; `in` holds 0, 1, 2, ...
    const float last = v[7];     // 7 in lane 0, 15 in lane 1, ...
    // end
    out[32 + lane] = last;
  }
  {
    // example: tile
    using vec_t = AlignedVector<fp16_t, 2>;
    const auto mem = tile::Memory<vec_t>::warp();
    const int64_t count = 40;  // 40 vectors for 32 lanes
    float sum = 0;
    for (int i = 0; mem.in_bound(count, i); ++i) sum += float(mem.load(in, i)[0]);  // lane 1: 2 + 66
    // end
    out[64 + lane] = sum;
  }
  {
    // example: warp
    const int all = warp::reduce_sum(lane);            // 0 + 1 + ... + 31 = 496, in every lane
    const int group = warp::reduce_max<int, 8>(lane);  // 7 in lanes 0 to 7, 15 in 8 to 15, ...
    int three = 0;
    if (lane < 3) three = warp::reduce_sum(lane, 0b111);  // 3 in lanes 0, 1 and 2
    // end
    out[96 + lane] = static_cast<float>(all + group + three);
  }
}

__global__ void cta_example(float* out) {
  using namespace device;
  // example: cta
  __shared__ float smem[32];  // one for each warp
  cta::reduce_sum(1.0f, smem);
  __syncthreads();
  const float total = smem[0];                                  // 256 in every thread of a block of 256
  __syncthreads();                                              // before smem is used again
  const float top = cta::reduce_max(float(threadIdx.x), smem);  // 255, but only in the threads of warp 0
  // end
  if (threadIdx.x == 0) out[0] = total + top;
}

// example: atomic
__global__ void largest(float* out, const float* in, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) device::atomic::max(out, in[i]);
}
// end

__global__ void ptx_example(uint4* out, const uint4* in) {
  using namespace device;
  // example: ptx
  const uint4 word = ptx::load_no_allocate(in + threadIdx.x);  // 32 threads read 512 bytes once
  ptx::store_streaming(out + 31 - threadIdx.x, word);          // the order reversed; out of the caches first
  // end
}

// example: norm
__global__ void rmsnorm_4096(bf16_t* out, const bf16_t* x, const bf16_t* weight, float eps) {
  using namespace device;
  using vec_t = norm::StorageType<bf16_t, 4096>;  // 16 bytes a thread
  __shared__ float smem[norm::kSmemBufferSize];
  const auto mem = tile::Memory<vec_t>::cta();
  const int64_t row = int64_t{blockIdx.x} * 4096;
  mem.store(out + row, norm::apply_rmsnorm_cta<4096>(mem.load(x + row), mem.load(weight), eps, smem));
}
void launch_rmsnorm_4096(host::TensorView out, host::TensorView x, host::TensorView weight, float eps) {
  constexpr auto kThreads = host::norm::get_cta_threads<bf16_t, 4096>();  // 512
  host::LaunchKernel(x.size(0), kThreads, x.device())(
      rmsnorm_4096, static_cast<bf16_t*>(out.data_ptr()), static_cast<const bf16_t*>(x.data_ptr()),
      static_cast<const bf16_t*>(weight.data_ptr()), eps);
}
// end

int64_t runtime(DLDevice device) {
  // example: runtime
  const auto per_sm = host::runtime::get_blocks_per_sm(rmsnorm_4096, 512);  // 4 on an H200
  const auto sms = host::runtime::get_sm_count(device.device_id);           // 132 on an H200
  const auto blocks_at_a_time = per_sm * sms;
  // end
  return blocks_at_a_time;
}

void run_examples(host::TensorView out, host::TensorView in) {
  host::LaunchKernel(1, 32, in.device())(
      examples, static_cast<float*>(out.data_ptr()), static_cast<const fp16_t*>(in.data_ptr()));
}
void run_cta(host::TensorView out) {
  host::LaunchKernel(1, 256, out.device())(cta_example, static_cast<float*>(out.data_ptr()));
}
void run_atomic(host::TensorView out, host::TensorView in) {
  host::LaunchKernel(1, 256, out.device())(
      largest, static_cast<float*>(out.data_ptr()), static_cast<const float*>(in.data_ptr()),
      static_cast<int>(in.numel()));
}
void run_ptx(host::TensorView out, host::TensorView in) {
  host::LaunchKernel(1, 32, out.device())(
      ptx_example, static_cast<uint4*>(out.data_ptr()), static_cast<const uint4*>(in.data_ptr()));
}

}  // namespace

#include <sgl_kernel/export.h>

SGL_EXPORT(launch_twice, (launch_twice))
SGL_EXPORT(run_examples, (run_examples))
SGL_EXPORT(run_cta, (run_cta))
SGL_EXPORT(run_atomic, (run_atomic))
SGL_EXPORT(run_ptx, (run_ptx))
SGL_EXPORT(launch_rmsnorm_4096, (launch_rmsnorm_4096))
SGL_EXPORT(runtime, (runtime))
