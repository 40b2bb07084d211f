/// \file elements.cu
/// \brief What one thread does with elements: casts, mathematics, vectors, tiles; test_device_elements.py compares.

#include <sgl_kernel/tensor.h>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/tile.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/utils.cuh>
#include <sgl_kernel/vec.cuh>

namespace {

// ---- casts ----

template <typename To, typename From>
__global__ void cast_kernel(To* out, const From* in, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = device::cast<To>(in[i]);
}

template <typename To, typename From>
void run_cast(host::TensorView out, host::TensorView in, int64_t n) {
  host::LaunchKernel(host::div_ceil(n, 256), 256, in.device())(
      cast_kernel<To, From>, static_cast<To*>(out.data_ptr()), static_cast<const From*>(in.data_ptr()), n);
}

template <typename To, typename From>
void cast(host::TensorView out, host::TensorView in, int64_t pack) {
  using namespace host;
  auto N = SymbolicSize{"elements"};
  auto device = SymbolicDevice{};
  TensorMatcher({N}).with_device<kDLCUDA>(device).with_dtype<To>().verify(out);
  TensorMatcher({N}).with_dtype<From>().with_device(device).verify(in);
  if (pack == 1) return run_cast<To, From>(out, in, N.unwrap());
  RuntimeCheck(pack == 2 && N.unwrap() % 2 == 0, "packs of ", pack, " in ", N.unwrap());
  run_cast<packed_t<To>, packed_t<From>>(out, in, N.unwrap() / 2);
}

/// Packs of four exist for fp32 and fp8.
template <typename To, typename From>
void cast4(host::TensorView out, host::TensorView in) {
  run_cast<packed_t<packed_t<To>>, packed_t<packed_t<From>>>(out, in, in.numel() / 4);
}

// ---- mathematics ----

template <typename T>
__global__ void math_kernel(T* out, const T* a, const T* b, int64_t n) {
  using namespace device;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[0 * n + i] = math::max(a[i], b[i]);
  out[1 * n + i] = math::min(a[i], b[i]);
  out[2 * n + i] = math::abs(a[i]);
  if constexpr (!details::is_integer<T>) {
    out[3 * n + i] = math::sqrt(a[i]);
    out[4 * n + i] = math::rsqrt(a[i]);
    out[5 * n + i] = math::exp(a[i]);
    out[6 * n + i] = math::sin(a[i]);
    out[7 * n + i] = math::cos(a[i]);
  }
}

template <typename T>
void math(host::TensorView out, host::TensorView a, host::TensorView b) {
  using namespace host;
  auto N = SymbolicSize{"elements"};
  auto device = SymbolicDevice{};
  TensorMatcher({N}).with_device<kDLCUDA>(device).with_dtype<T>().verify(a).verify(b);
  TensorMatcher({8, N}).with_dtype<T>().with_device(device).verify(out);
  LaunchKernel(div_ceil(N.unwrap(), 256), 256, device.unwrap())(
      math_kernel<T>, static_cast<T*>(out.data_ptr()), static_cast<const T*>(a.data_ptr()),
      static_cast<const T*>(b.data_ptr()), N.unwrap());
}

// ---- vectors ----

/// out = in, but element 0 of each vector is replaced by `mark` and a last vector is filled with it.
template <typename T, size_t N>
__global__ void vector_kernel(T* out, const T* in, T mark, int64_t num_vectors) {
  using namespace device;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < num_vectors) {
    AlignedVector<T, N> v;
    v.load(in, i);
    v[0] = mark;
    v.store(out, i);
  } else if (i == num_vectors) {
    AlignedVector<T, N> v;
    v.fill(mark);
    v.store(static_cast<void*>(out), i);
  }
}

template <typename T, size_t N>
void vector(host::TensorView out, host::TensorView in) {
  static_assert(sizeof(device::AlignedVector<T, N>) == sizeof(T) * N);
  static_assert(alignof(device::AlignedVector<T, N>) == sizeof(T) * N);
  const auto num_vectors = in.numel() / static_cast<int64_t>(N);
  T mark;
  for (size_t i = 0; i < sizeof(T); ++i) reinterpret_cast<unsigned char*>(&mark)[i] = 0x11;
  host::LaunchKernel(host::div_ceil(num_vectors + 1, 128), 128, in.device())(
      vector_kernel<T, N>, static_cast<T*>(out.data_ptr()), static_cast<const T*>(in.data_ptr()), mark, num_vectors);
}

// ---- tiles ----

/// Copy with each kind of group, so that the three rows of `out` equal `in`.
__global__ void tile_kernel(float* out, const float* in, int64_t n) {
  using namespace device;
  using vec_t = AlignedVector<float, 4>;
  const int64_t count = n / 4;
  const auto cta = tile::Memory<vec_t>::cta();
  for (int64_t i = 0; cta.in_bound(count, i); ++i) cta.store(out, cta.load(in, i), i);
  if (threadIdx.x < 32) {
    const auto warp = tile::Memory<vec_t>::warp();
    for (int64_t i = 0; warp.in_bound(count, i); ++i) warp.store(out + n, warp.load(in, i), i);
  }
  if (threadIdx.x == 0) {
    const auto thread = tile::Memory<vec_t>::thread();
    for (int64_t i = 0; thread.in_bound(count, i); ++i) thread.store(out + 2 * n, thread.load(in, i), i);
  }
}

void tile(host::TensorView out, host::TensorView in, int64_t threads) {
  host::LaunchKernel(1, threads, in.device())(
      tile_kernel, static_cast<float*>(out.data_ptr()), static_cast<const float*>(in.data_ptr()), in.numel());
}

// ---- untyped memory ----

__global__ void untyped_kernel(void* out, const void* in, int64_t n) {
  using namespace device;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) store_as<int16_t>(pointer::offset(out, 2, 2), load_as<int16_t>(pointer::offset(in, 4), i), i);
}

/// out[2:] = in[2:] for 16-bit elements, by way of byte offsets.
void untyped(host::TensorView out, host::TensorView in) {
  const auto n = in.numel() - 2;
  host::LaunchKernel(host::div_ceil(n, 64), 64, in.device())(untyped_kernel, out.data_ptr(), in.data_ptr(), n);
}

}  // namespace

#include <sgl_kernel/export.h>

#define EXPORT_CASTS(TO, TYPE)                         \
  SGL_EXPORT(cast_float32_##TO, (cast<TYPE, float>))   \
  SGL_EXPORT(cast_float16_##TO, (cast<TYPE, fp16_t>))  \
  SGL_EXPORT(cast_bfloat16_##TO, (cast<TYPE, bf16_t>)) \
  EXPORT_CASTS_OF_FP8(TO, TYPE)
#if SGL_HAS_FP8  // ROCm 5 has none
#define EXPORT_CASTS_OF_FP8(TO, TYPE)                  \
  SGL_EXPORT(cast_e4m3_##TO, (cast<TYPE, fp8_e4m3_t>)) \
  SGL_EXPORT(cast_e5m2_##TO, (cast<TYPE, fp8_e5m2_t>))
#else
#define EXPORT_CASTS_OF_FP8(TO, TYPE)
#endif

EXPORT_CASTS(float32, float)
EXPORT_CASTS(float16, fp16_t)
EXPORT_CASTS(bfloat16, bf16_t)
EXPORT_CASTS(int8, int8_t)
EXPORT_CASTS(uint8, uint8_t)
SGL_EXPORT(cast_int8_float32, (cast<float, int8_t>))
SGL_EXPORT(cast_uint8_float32, (cast<float, uint8_t>))
SGL_EXPORT(math_float32, (math<float>))
SGL_EXPORT(math_float64, (math<double>))
SGL_EXPORT(math_float16, (math<fp16_t>))
SGL_EXPORT(math_bfloat16, (math<bf16_t>))
SGL_EXPORT(math_int32, (math<int32_t>))
SGL_EXPORT(math_int64, (math<int64_t>))

#define EXPORT_VECTORS(NAME, TYPE)                 \
  SGL_EXPORT(vector_##NAME##_1, (vector<TYPE, 1>)) \
  SGL_EXPORT(vector_##NAME##_2, (vector<TYPE, 2>)) \
  SGL_EXPORT(vector_##NAME##_max, (vector<TYPE, device::kMaxVecBytes / sizeof(TYPE)>))
EXPORT_VECTORS(uint8, uint8_t)
EXPORT_VECTORS(float16, fp16_t)
EXPORT_VECTORS(bfloat16, bf16_t)
EXPORT_VECTORS(float32, float)
EXPORT_VECTORS(int64, int64_t)
SGL_EXPORT(vector_uint8_4, (vector<uint8_t, 4>))
#if SGL_HAS_FP8
EXPORT_CASTS(e4m3, fp8_e4m3_t)
EXPORT_CASTS(e5m2, fp8_e5m2_t)
SGL_EXPORT(cast4_e4m3_float32, (cast4<float, fp8_e4m3_t>))
SGL_EXPORT(cast4_float32_e4m3, (cast4<fp8_e4m3_t, float>))
SGL_EXPORT(cast4_e5m2_float32, (cast4<float, fp8_e5m2_t>))
SGL_EXPORT(cast4_float32_e5m2, (cast4<fp8_e5m2_t, float>))
EXPORT_VECTORS(e4m3, fp8_e4m3_t)
#endif
SGL_EXPORT(vector_uint8_8, (vector<uint8_t, 8>))
SGL_EXPORT(vector_uint8_16, (vector<uint8_t, 16>))
SGL_EXPORT(vector_float16_4, (vector<fp16_t, 4>))
SGL_EXPORT(vector_float16_8, (vector<fp16_t, 8>))
SGL_EXPORT(vector_float32_4, (vector<float, 4>))
SGL_EXPORT(tile, (tile))
SGL_EXPORT(untyped, (untyped))
