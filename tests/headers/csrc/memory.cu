/// \file memory.cu
/// \brief Atomics under contention, cache hints, barriers, clusters, dependent launch; test_device_memory.py.

#include <sgl_kernel/tensor.h>
#include <sgl_kernel/atomic.cuh>
#include <sgl_kernel/ptx.cuh>
#include <sgl_kernel/runtime.cuh>
#include <sgl_kernel/utils.cuh>

namespace {

// ---- atomics ----

/// Every element of `in` goes into `out[i % slots]` of the three rows: sum, max, min.
template <typename T, bool kShared>
__global__ void atomic_kernel(T* out, const T* in, int64_t n, int slots) {
  using namespace device;
  __shared__ T shared[3 * 8];
  T* target = out;
  if constexpr (kShared) {
    if (threadIdx.x < 3 * slots) shared[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    target = shared;
  }
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const auto slot = i % slots;
    atomic::add(target + slot, in[i]);
    atomic::max(target + slots + slot, in[i]);
    atomic::min(target + 2 * slots + slot, in[i]);
  }
  if constexpr (kShared) {
    __syncthreads();
    if (threadIdx.x < 3 * slots) out[threadIdx.x] = shared[threadIdx.x];
  }
}

template <typename T>
void atomics(host::TensorView out, host::TensorView in, bool shared) {
  using namespace host;
  auto S = SymbolicSize{"slots"};
  auto N = SymbolicSize{"elements"};
  auto device = SymbolicDevice{};
  TensorMatcher({3, S}).with_device<kDLCUDA>(device).with_dtype<T>().verify(out);
  TensorMatcher({N}).with_dtype<T>().with_device(device).verify(in);
  RuntimeCheck(S.unwrap() <= 8, "at most 8 slots");
  LaunchKernel(shared ? 1 : 264, 512, device.unwrap())(
      shared ? atomic_kernel<T, true> : atomic_kernel<T, false>, static_cast<T*>(out.data_ptr()),
      static_cast<const T*>(in.data_ptr()), N.unwrap(), static_cast<int>(S.unwrap()));
}

/// One thread, one update after the other: `old` gets the values before.
template <typename T>
__global__ void atomic_old_kernel(T* out, T* old, const T* in, int64_t n) {
  using namespace device;
  for (int64_t i = 0; i < n; ++i) {
    old[i] = atomic::add(out, in[i]);
    old[n + i] = atomic::max(out + 1, in[i]);
    old[2 * n + i] = atomic::min(out + 2, in[i]);
  }
}

template <typename T>
void atomic_old(host::TensorView out, host::TensorView old, host::TensorView in) {
  host::LaunchKernel(1, 1, in.device())(
      atomic_old_kernel<T>, static_cast<T*>(out.data_ptr()), static_cast<T*>(old.data_ptr()),
      static_cast<const T*>(in.data_ptr()), in.numel());
}

// ---- cache hints ----

template <typename Word, bool kStreaming>
__global__ void hint_kernel(Word* out, const Word* in, int64_t n) {
  using namespace device;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    if constexpr (kStreaming) {
      ptx::store_streaming(out + i, ptx::load_streaming(in + i));
    } else {
      ptx::store_no_allocate(out + i, ptx::load_no_allocate(in + i));
    }
  }
}

template <typename Word, bool kStreaming>
void hint(host::TensorView out, host::TensorView in) {
  const auto n = in.numel() * static_cast<int64_t>(host::dtype_bytes(in.dtype())) / static_cast<int64_t>(sizeof(Word));
  host::LaunchKernel(64, 128, in.device())(
      hint_kernel<Word, kStreaming>, static_cast<Word*>(out.data_ptr()), static_cast<const Word*>(in.data_ptr()), n);
}

/// Block 0 writes `data` and raises the flag; the others wait for it and copy what they see.
template <typename Flag, bool kSystem>
__global__ void flag_kernel(int* out, int* data, Flag* flag, int n) {
  using namespace device;
  constexpr auto kRaised = static_cast<Flag>(Flag{1} << (sizeof(Flag) * 8 - 1));
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) data[i] = i * 3 + 1;
    __syncthreads();
    if (threadIdx.x != 0) return;
    if constexpr (kSystem) {
      ptx::store_release_system(flag, kRaised);
    } else {
      ptx::store_release(flag, kRaised);
    }
  } else {
    for (int i = threadIdx.x; i < n; i += blockDim.x) ptx::prefetch(data + i);  // too early: must do no harm
    if (threadIdx.x == 0) {
      const auto look = [&] {
        if constexpr (kSystem) return ptx::load_acquire_system(flag);
        else return ptx::load_acquire(flag);
      };
      while (look() != kRaised) {
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
      out[(blockIdx.x - 1) * n + i] = static_cast<volatile int*>(data)[i];
  }
}

template <typename Flag, bool kSystem>
void flag(host::TensorView out, host::TensorView data, host::TensorView flag) {
  host::LaunchKernel(1 + out.size(0), 128, out.device())(
      flag_kernel<Flag, kSystem>, static_cast<int*>(out.data_ptr()), static_cast<int*>(data.data_ptr()),
      static_cast<Flag*>(flag.data_ptr()), static_cast<int>(data.numel()));
}

// ---- barriers ----

/// All threads arrive at a barrier that counts them; the last value of a phase is seen by everyone after it.
__global__ void mbarrier_kernel(int* out, int phases) {
#if SGL_ARCH_HOPPER_OR_GREATER
  using namespace device;
  __shared__ uint64_t barrier;
  __shared__ int sum;
  if (threadIdx.x == 0) {
    sum = 0;
    ptx::mbarrier_init(&barrier, blockDim.x);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  for (int phase = 0; phase < phases; ++phase) {
    atomicAdd(&sum, 1);
    ptx::mbarrier_arrive(&barrier);
    ptx::mbarrier_wait(&barrier, phase & 1);
    out[phase * blockDim.x + threadIdx.x] = *static_cast<volatile int*>(&sum);
    __syncthreads();
  }
#endif
}

void mbarrier(host::TensorView out) {
  host::LaunchKernel(1, out.size(1), out.device())(
      mbarrier_kernel, static_cast<int*>(out.data_ptr()), static_cast<int>(out.size(0)));
}

// ---- clusters ----

/// Each block writes its rank to shared memory and reads its neighbour's.
__global__ void cluster_kernel(int* out, int cluster_size) {
#if SGL_ARCH_HOPPER_OR_GREATER
  using namespace device;
  __shared__ uint32_t mine;
  if (threadIdx.x == 0) mine = ptx::cluster_rank() + 100 * blockIdx.x;
  ptx::cluster_sync();
  if (threadIdx.x == 0) {
    const auto neighbour = (ptx::cluster_rank() + 1) % cluster_size;
    out[2 * blockIdx.x] = static_cast<int>(ptx::cluster_rank());
    out[2 * blockIdx.x + 1] = static_cast<int>(ptx::load_cluster(ptx::cluster_map(&mine, neighbour)));
  }
  ptx::cluster_sync();
#endif
}

void cluster(host::TensorView out, int cluster_size) {
  host::LaunchKernel(out.size(0), 64, out.device())
      .enable_cluster(cluster_size)(cluster_kernel, static_cast<int*>(out.data_ptr()), cluster_size);
}

// ---- programmatic dependent launch ----

/// x = x * 3 + step, after a pause that gives a wrong overlap its chance to be seen.
__global__ void chain_kernel(int* x, int64_t n, int step) {
  using namespace device;
  PDLWaitPrimary();
  PDLTriggerSecondary();
  if (blockIdx.x % 7 == 0) __nanosleep(2000);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    x[i] = static_cast<int>(static_cast<unsigned>(x[i]) * 3u + static_cast<unsigned>(step));
}

void chain(host::TensorView x, int steps, bool pdl) {
  using namespace host;
  auto N = SymbolicSize{"elements"};
  auto device = SymbolicDevice{};
  TensorMatcher({N}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(x);
  for (auto step : irange(steps)) {
    LaunchKernel(64, 128, device.unwrap())
        .enable_pdl(pdl)(chain_kernel, static_cast<int*>(x.data_ptr()), N.unwrap(), step);
  }
}

/// When the second of two kernels started and when the first ended, by the device's clock: with PDL the second starts
/// before, and reads only after.
__global__ void first_kernel(unsigned long long* times, int* value) {
  using namespace device;
  PDLTriggerSecondary();
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  const unsigned long long begin = now;
  while (now < begin + 200000) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  *value = 42;
  times[0] = now;
}
__global__ void second_kernel(unsigned long long* times, const int* value, int* seen) {
  using namespace device;
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  times[1] = now;
  PDLWaitPrimary();
  *seen = *static_cast<const volatile int*>(value);
}

void overlap(host::TensorView times, host::TensorView values, bool pdl) {
  using namespace host;
  auto* t = static_cast<unsigned long long*>(times.data_ptr());
  auto* v = static_cast<int*>(values.data_ptr());
  LaunchKernel(1, 1, times.device())(first_kernel, t, v);
  LaunchKernel(1, 1, times.device()).enable_pdl(pdl)(second_kernel, t, v, v + 1);
}

// ---- launches ----

__global__ void fill_kernel(int* x, int n, int value) {
  const int i =
      static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * static_cast<int>(blockDim.x) +
      static_cast<int>(threadIdx.x);
  if (i < n) x[i] = value;
}

void fill(host::TensorView x, int value, int threads) {
  const auto blocks = host::div_ceil(x.numel(), threads);
  host::LaunchKernel(blocks, threads, x.device())(
      fill_kernel, static_cast<int*>(x.data_ptr()), static_cast<int>(x.numel()), value);
}
void fill_on_stream(host::TensorView x, int value) {
  const auto stream = host::LaunchKernel::resolve_device(x.device());
  host::LaunchKernel(dim3(2, 2, 2), dim3(128), stream)(
      fill_kernel, static_cast<int*>(x.data_ptr()), static_cast<int>(x.numel()), value);
}
void fill_plainly(host::TensorView x, int threads) {
  fill_kernel<<<1, threads>>>(static_cast<int*>(x.data_ptr()), static_cast<int>(x.numel()), 7);
  host::RuntimeDeviceCheck();
}

__global__ void smem_kernel(int* out, int n) {
  extern __shared__ int big[];
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) big[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) *out = big[n - 1];
}
__global__ void both_smem_kernel(int* out, int n) {
  __shared__ int small[256];
  extern __shared__ int big[];
  small[threadIdx.x] = 1;
  big[n - 1 - threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) *out = big[n - 1 - 255] + small[255];
}
void static_and_dynamic_smem(host::TensorView out, int bytes) {
  host::LaunchKernel(1, 256, out.device(), static_cast<size_t>(bytes))(
      both_smem_kernel, static_cast<int*>(out.data_ptr()), bytes / 4);
}
void dynamic_smem(host::TensorView out, int64_t bytes) {
  host::LaunchKernel(1, 256, out.device(), static_cast<size_t>(bytes))(
      smem_kernel, static_cast<int*>(out.data_ptr()), static_cast<int>(bytes / 4));
}

__global__ void crash_kernel(int* p) {
  *p = 1;
}
/// Leaves an error in the context: only for a process of its own.
void crash(host::TensorView x) {
  host::LaunchKernel(1, 1, x.device())(crash_kernel, reinterpret_cast<int*>(16));
  static_cast<void>(cudaDeviceSynchronize());
}

// ---- runtime queries ----

__global__ void unlaunched_kernel(int* out) {
  __shared__ int small[256];
  extern __shared__ int big[];
  small[threadIdx.x] = big[threadIdx.x];
  __syncthreads();
  *out = small[255 - threadIdx.x];
}
int64_t blocks_per_sm(int threads, int64_t bytes) {
  return host::runtime::get_blocks_per_sm(unlaunched_kernel, threads, static_cast<size_t>(bytes));
}

int64_t query(int64_t which, int device) {
  using namespace host::runtime;
  switch (which) {
    case 0:
      return get_sm_count(device);
    case 1:
      return get_cc_major(device);
    case 2:
      return get_cc_minor(device);
    case 3:
      return get_runtime_version();
    case 4:
      return static_cast<int64_t>(get_max_dynamic_smem(device));
    case 5:
      return get_blocks_per_sm(fill_kernel, 1024);
    default:
      return static_cast<int64_t>(get_available_dynamic_smem_per_block(smem_kernel, 2, 256));
  }
}

}  // namespace

#include <sgl_kernel/export.h>

#define EXPORT_ATOMICS(NAME, TYPE)            \
  SGL_EXPORT(atomics_##NAME, (atomics<TYPE>)) \
  SGL_EXPORT(atomic_old_##NAME, (atomic_old<TYPE>))
EXPORT_ATOMICS(float32, float)
EXPORT_ATOMICS(float64, double)
EXPORT_ATOMICS(float16, fp16_t)
EXPORT_ATOMICS(bfloat16, bf16_t)
EXPORT_ATOMICS(int32, int32_t)
EXPORT_ATOMICS(int64, int64_t)
SGL_EXPORT(streaming_4, (hint<uint32_t, true>))
SGL_EXPORT(streaming_8, (hint<uint2, true>))
SGL_EXPORT(streaming_16, (hint<uint4, true>))
SGL_EXPORT(no_allocate_4, (hint<uint32_t, false>))
SGL_EXPORT(no_allocate_8, (hint<uint2, false>))
SGL_EXPORT(no_allocate_16, (hint<uint4, false>))
SGL_EXPORT(flag, (flag<uint32_t, false>))
SGL_EXPORT(flag_system_32, (flag<uint32_t, true>))
SGL_EXPORT(flag_system_64, (flag<uint64_t, true>))
SGL_EXPORT(mbarrier, (mbarrier))
SGL_EXPORT(cluster, (cluster))
SGL_EXPORT(chain, (chain))
SGL_EXPORT(overlap, (overlap))
SGL_EXPORT(fill, (fill))
SGL_EXPORT(fill_on_stream, (fill_on_stream))
SGL_EXPORT(fill_plainly, (fill_plainly))
SGL_EXPORT(dynamic_smem, (dynamic_smem))
SGL_EXPORT(static_and_dynamic_smem, (static_and_dynamic_smem))
SGL_EXPORT(crash, (crash))
SGL_EXPORT(blocks_per_sm, (blocks_per_sm))
SGL_EXPORT(query, (query))
