#pragma once

#include <sgl_kernel/compat/host.h>
#include <sgl_kernel/atomic.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/impl/norm.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/ptx.cuh>
#include <sgl_kernel/tile.cuh>
#include <sgl_kernel/type.cuh>
#include <sgl_kernel/utils.cuh>
#include <sgl_kernel/vec.cuh>
#include <sgl_kernel/warp.cuh>

#if !defined(USE_ROCM)
#include <cuda.h>
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>

/// \file compat/device.cuh
/// \brief Device code: storage and traits of element types, reductions over part of a warp, copies by a warp, barriers.

#define SGL_DEVICE_HOST SGL_HOST_DEVICE
#define SGLANG_LDG(...) __ldg(__VA_ARGS__)

inline constexpr float kFP8E4M3Max = device::math::FP8_E4M3_MAX;
#if defined(USE_ROCM)
#define __grid_constant__
inline constexpr auto kDLGPU = kDLROCM;
inline constexpr auto kDLGPUHost = kDLROCMHost;
#else
inline constexpr auto kDLGPU = kDLCUDA;
inline constexpr auto kDLGPUHost = kDLCUDAHost;
#endif

namespace device {

inline constexpr uint32_t kWarpSize = kWarpThreads;
inline constexpr float FP8_E4M3_MAX = math::FP8_E4M3_MAX;

/// \brief `N` elements that one instruction moves; a plain array.
template <typename T, std::size_t N>
struct alignas(sizeof(T) * N) AlignedStorage {
  T data[N];
};
/// \brief `N` elements without more alignment than one has.
template <typename T, std::size_t N>
struct device_vec {
  T data[N];
};
template <typename T, std::size_t N>
struct DeviceArray {
  SGL_DEVICE static constexpr std::size_t size() {
    return N;
  }
  SGL_DEVICE constexpr T& operator[](std::size_t index) {
    return m_data[index];
  }
  SGL_DEVICE constexpr const T& operator[](std::size_t index) const {
    return m_data[index];
  }
  SGL_DEVICE constexpr T* data() {
    return m_data;
  }
  SGL_DEVICE constexpr const T* data() const {
    return m_data;
  }

  T m_data[N];
};

/// \brief Widths of accesses in bytes.
struct LoadStoreBytes {
  enum type : int64_t {
    MAX_GMEM = kMaxVecBytes,
    MAX_SMEM = 16,
    MAX_PORTABLE = 16,
    MIN_COALALESCED = 4,
    RAW_1B = 1,
    RAW_2B = 2,
    RAW_4B = 4,
    RAW_8B = 8,
    RAW_16B = 16,
    RAW_32B = 32,
  };
};

/// \brief This thread's place in its group of `kThreads` lanes.
template <uint32_t kThreads = kWarpThreads>
[[nodiscard]] SGL_DEVICE uint32_t get_lane_id() {
  static_assert(kThreads <= kWarpThreads && host::is_pow2(kThreads), "a group is a power of two of up to 32 lanes");
  return ptx::lane_id() % kThreads;
}

using ptx::enable_smem_spilling;

/// \brief Programmatic dependent launch, for a kernel that knows whether it is launched so.
template <bool kUsePDL>
SGL_DEVICE void PDLWaitPrimary() {
  if constexpr (kUsePDL) PDLWaitPrimary();
}
template <bool kUsePDL>
SGL_DEVICE void PDLTriggerSecondary() {
  if constexpr (kUsePDL) PDLTriggerSecondary();
}

/// \brief The number of columns of tensor memory to allocate for `columns`.
[[nodiscard]] SGL_HOST_DEVICE constexpr uint32_t get_tmem_cols(uint32_t columns) {
  uint32_t count = 32;
  while (count < columns && count < 512) count *= 2;
  return count;
}

namespace pointer {

/// \brief `ptr` plus the sum of `offsets`, in elements of `Element`.
template <typename Element, typename T, typename... U>
[[nodiscard]] SGL_DEVICE void* offset(T* ptr, U... offsets)
  requires(details::is_same<T, void>)
{
  return static_cast<Element*>(ptr) + (int64_t{0} + ... + static_cast<int64_t>(offsets));
}
template <typename Element, typename T, typename... U>
[[nodiscard]] SGL_DEVICE const void* offset(const T* ptr, U... offsets)
  requires(details::is_same<T, void>)
{
  return static_cast<const Element*>(ptr) + (int64_t{0} + ... + static_cast<int64_t>(offsets));
}

}  // namespace pointer

// ---- element types ----

namespace details {

template <typename T>
struct Element {
  using packed_t = void;
  using unpacked_t = T;
  static constexpr size_t kVecSize = 1;
};
template <typename T>
  requires requires { typename ::dtype_trait<T>::element_t; }
struct Element<T> {
  using packed_t = typename ::dtype_trait<T>::packed_t;
  using unpacked_t = typename ::dtype_trait<T>::element_t;
  static constexpr size_t kVecSize = ::dtype_trait<T>::kElements;
};

template <size_t kBytes>
using bits_t = conditional_t<
    kBytes == 1, uint8_t, conditional_t<kBytes == 2, uint16_t, conditional_t<kBytes == 4, uint32_t, uint64_t>>>;

}  // namespace details

/// \brief A packed value as an array of its elements.
template <typename T>
[[nodiscard]] SGL_DEVICE auto& unpack(T& value) {
  using E = details::Element<std::remove_const_t<T>>;
  using U = std::conditional_t<std::is_const_v<T>, const typename E::unpacked_t, typename E::unpacked_t>;
  static_assert(sizeof(T) == sizeof(U) * E::kVecSize, "unpack takes a number or a pack of numbers");
  return reinterpret_cast<U(&)[E::kVecSize]>(value);
}

enum class ReductionOp : uint8_t { SUM, MAX, MIN };

namespace details {

template <ReductionOp Op, typename T>
SGL_DEVICE T combine(const T& x, const T& y) {
  if constexpr (Element<T>::kVecSize > 1 && !math::details::is_half2<T>) {
    T result{};
#pragma unroll
    for (size_t i = 0; i < Element<T>::kVecSize; ++i) unpack(result)[i] = combine<Op>(unpack(x)[i], unpack(y)[i]);
    return result;
  } else if constexpr (Op == ReductionOp::SUM) {
    return static_cast<T>(x + y);
  } else if constexpr (Op == ReductionOp::MAX) {
    return math::max(x, y);
  } else {
    return math::min(x, y);
  }
}

}  // namespace details

template <ReductionOp Op, typename T>
struct ReductionTrait {
  SGL_DEVICE static T reduce(const T& x, const T& y) {
    return details::combine<Op>(x, y);
  }
};

/// \brief The sum of `M` vectors of pairs, in fp32 or in their own type.
template <bool kFP32 = true, typename Pair, size_t N, size_t M>
[[nodiscard]] SGL_DEVICE AlignedVector<Pair, N> reduce_vec(AlignedVector<Pair, N> (&vectors)[M]) {
  AlignedVector<Pair, N> result;
#pragma unroll
  for (size_t j = 0; j < N; ++j) {
    if constexpr (kFP32) {
      auto sum = cast<fp32x2_t>(vectors[0][j]);
#pragma unroll
      for (size_t i = 1; i < M; ++i) sum = details::combine<ReductionOp::SUM>(sum, cast<fp32x2_t>(vectors[i][j]));
      result[j] = cast<Pair>(sum);
    } else {
      result[j] = vectors[0][j];
#pragma unroll
      for (size_t i = 1; i < M; ++i) result[j] = details::combine<ReductionOp::SUM>(result[j], vectors[i][j]);
    }
  }
  return result;
}

// ---- mathematics ----

namespace math {

/// \brief Fast approximations in fp32.
[[nodiscard]] SGL_DEVICE float sigmoid_fast(float x) {
  return 1.0f / (1.0f + __expf(-x));
}
[[nodiscard]] SGL_DEVICE float silu_fast(float x) {
  return x * sigmoid_fast(x);
}
[[nodiscard]] SGL_DEVICE float softplus_fast(float x) {
  return x > 20.0f ? x : ::log1pf(__expf(x));  // from there on the two are the same number
}

/// \brief `a * b + sum` in fp32, rounded once.
[[nodiscard]] SGL_DEVICE float fma_f32_bf16(bf16_t a, bf16_t b, float sum) {
  return ::fmaf(cast<fp32_t>(a), cast<fp32_t>(b), sum);
}
[[nodiscard]] SGL_DEVICE float fma_f32_bf16(bf16_t a, float b, float sum) {
  return ::fmaf(cast<fp32_t>(a), b, sum);
}

/// \brief Division by a number that is known on the host, without a division on the device.
///
/// With p = ceil(log2 d), m = ceil(2^(31 + p) / d) has 32 bits, and n / d = m n / 2^(31 + p), rounded down, for each
/// n below 2^31.
struct fast_mod_div_u32_t {
 public:
  explicit constexpr fast_mod_div_u32_t(uint32_t divisor) : m_divisor(divisor) {
    if (divisor < 2) return;
    m_shift = static_cast<uint32_t>(host::log2_ceil(divisor)) - 1;
    m_factor = static_cast<uint32_t>(((uint64_t{1} << (32 + m_shift)) + divisor - 1) / divisor);
  }
  constexpr operator uint32_t() const {
    return m_divisor;
  }

  template <std::unsigned_integral T>
    requires(sizeof(T) <= 4)
  [[nodiscard]] SGL_DEVICE friend uint32_t operator/(T n, const fast_mod_div_u32_t& d) {
    return d.m_divisor == 1 ? n : __umulhi(n, d.m_factor) >> d.m_shift;
  }
  template <std::unsigned_integral T>
    requires(sizeof(T) <= 4)
  [[nodiscard]] SGL_DEVICE friend uint32_t operator%(T n, const fast_mod_div_u32_t& d) {
    return n - (n / d) * d.m_divisor;
  }

 private:
  uint32_t m_divisor;
  uint32_t m_factor = 0;
  uint32_t m_shift = 0;
};

/// \brief Quotient and rest.
template <typename T>
[[nodiscard]] SGL_DEVICE uint2 div(T n, const fast_mod_div_u32_t& d) {
  return {n / d, n % d};
}

}  // namespace math

// ---- warps and blocks ----

namespace warp {

using device::get_lane_id;
using mask_t = uint32_t;
inline constexpr uint32_t kFullWidth = kWarpThreads;

#if SGL_ARCH_HOPPER_OR_GREATER
/// \brief True in one lane of the warp.
[[nodiscard]] SGL_DEVICE bool elect_one_lane() {
  return ptx::elect_one();
}
#endif

/// \brief Reduce over the lanes that differ only in the bits from `kLow` to `kHigh` of their number, the smaller and
/// the larger of the two arguments: `<8, 1>` reduces groups of 8 neighbours, `<32, 8>` lanes 8 apart.
template <ReductionOp Op, uint32_t kStart = kWarpThreads, uint32_t kFinish = 1, typename T>
[[nodiscard]] SGL_DEVICE T reduce(T value, mask_t active_mask = kFullMask) {
  static_assert(
      host::is_pow2(kStart) && host::is_pow2(kFinish) && kStart <= kFullWidth && kFinish <= kFullWidth,
      "warp::reduce takes powers of two of up to 32");
  constexpr uint32_t kWidth = kStart > kFinish ? kStart : kFinish;
  if constexpr (kStart > kFinish) {
#pragma unroll
    for (uint32_t distance = kStart / 2; distance >= kFinish; distance /= 2)
      value = device::details::combine<Op>(value, __shfl_xor_sync(active_mask, value, distance, kWidth));
  } else {
#pragma unroll
    for (uint32_t distance = kStart; distance <= kFinish / 2; distance *= 2)
      value = device::details::combine<Op>(value, __shfl_xor_sync(active_mask, value, distance, kWidth));
  }
  return value;
}

template <uint32_t kStart, uint32_t kFinish = 1, typename T>
[[nodiscard]] SGL_DEVICE T reduce_sum(T value, mask_t active_mask = kFullMask) {
  return reduce<ReductionOp::SUM, kStart, kFinish>(value, active_mask);
}
template <uint32_t kStart, uint32_t kFinish = 1, typename T>
[[nodiscard]] SGL_DEVICE T reduce_max(T value, mask_t active_mask = kFullMask) {
  return reduce<ReductionOp::MAX, kStart, kFinish>(value, active_mask);
}
template <uint32_t kStart, uint32_t kFinish = 1, typename T>
[[nodiscard]] SGL_DEVICE T reduce_min(T value, mask_t active_mask = kFullMask) {
  return reduce<ReductionOp::MIN, kStart, kFinish>(value, active_mask);
}

/// \brief A running reduction in each segment of `kWidth` lanes: with `kStart < kFinish` over the lanes up to this one,
/// else over this one and those after it. `lane` is this lane's place in its segment.
template <ReductionOp Op, uint32_t kWidth = kWarpThreads, uint32_t kStart = 1, uint32_t kFinish = kWidth, typename T>
[[nodiscard]] SGL_DEVICE T
inclusive_reduce(T value, uint32_t lane = get_lane_id<kWidth>(), mask_t active_mask = kFullMask) {
  static_assert(
      host::is_pow2(kStart) && host::is_pow2(kFinish) && kStart <= kWidth && kFinish <= kWidth && kWidth <= kFullWidth,
      "warp::inclusive_reduce takes powers of two of up to kWidth");
  if constexpr (kStart < kFinish) {
#pragma unroll
    for (uint32_t distance = kStart; distance < kFinish; distance *= 2) {
      const T other = __shfl_up_sync(active_mask, value, distance, kWidth);
      if (lane >= distance) value = device::details::combine<Op>(value, other);
    }
  } else {
#pragma unroll
    for (uint32_t distance = kFinish; distance < kStart; distance *= 2) {
      const T other = __shfl_down_sync(active_mask, value, distance, kWidth);
      if (lane < kStart - distance) value = device::details::combine<Op>(value, other);
    }
  }
  return value;
}
template <uint32_t kWidth = kWarpThreads, uint32_t kStart = 1, uint32_t kFinish = kWidth, typename T>
[[nodiscard]] SGL_DEVICE T
inclusive_sum(T value, uint32_t lane = get_lane_id<kWidth>(), mask_t active_mask = kFullMask) {
  return inclusive_reduce<ReductionOp::SUM, kWidth, kStart, kFinish>(value, lane, active_mask);
}
template <uint32_t kWidth = kWarpThreads, uint32_t kStart = 1, uint32_t kFinish = kWidth, typename T>
[[nodiscard]] SGL_DEVICE T
inclusive_max(T value, uint32_t lane = get_lane_id<kWidth>(), mask_t active_mask = kFullMask) {
  return inclusive_reduce<ReductionOp::MAX, kWidth, kStart, kFinish>(value, lane, active_mask);
}
template <uint32_t kWidth = kWarpThreads, uint32_t kStart = 1, uint32_t kFinish = kWidth, typename T>
[[nodiscard]] SGL_DEVICE T
inclusive_min(T value, uint32_t lane = get_lane_id<kWidth>(), mask_t active_mask = kFullMask) {
  return inclusive_reduce<ReductionOp::MIN, kWidth, kStart, kFinish>(value, lane, active_mask);
}

/// \brief The value of lane `source` of each segment of `kWidth` lanes.
template <uint32_t kWidth = kWarpThreads, typename T>
[[nodiscard]] SGL_DEVICE T broadcast(T value, uint32_t source, mask_t active_mask = kFullMask) {
  return __shfl_sync(active_mask, value, source, kWidth);
}

/// \brief How wide the accesses of `load_bytes` and `store_bytes` are: up to a number of bytes, or for a negative one
/// up to that number if every lane then has a whole word.
struct LoadStorePattern {
  using enum LoadStoreBytes::type;
  enum type : int64_t {
    WARP_UNIFORM_GMEM = -MAX_GMEM,
    WARP_UNIFORM_SMEM = -MAX_SMEM,
    WARP_UNIFORM_4B = -4,
    WARP_UNIFORM_8B = -8,
    WARP_UNIFORM_16B = -16,
    WARP_UNIFORM_32B = -32,
  };

  template <int64_t kBytes, int64_t kMost>
  SGL_HOST_DEVICE static constexpr int64_t get_vec_bytes() {
    if constexpr (kMost >= 0) return std::gcd(kBytes, kMost);
    else if constexpr (kBytes % (4 * kWarpThreads) != 0) return std::gcd(kBytes, int64_t{4});
    else return std::gcd(kBytes / kWarpThreads, -kMost);
  }
};

namespace details {

/// A warp's copy of `kBytes` bytes, `kWord` at a time.
template <int64_t kBytes, int64_t kWord>
struct WarpCopy {
  static_assert(kBytes > 0 && kBytes % kWord == 0, "a warp copies whole words");
  using word_t = AlignedStorage<uint8_t, static_cast<size_t>(kWord)>;
  static constexpr int64_t kWords = kBytes / kWord;
  static constexpr int64_t kFullRounds = kWords / kWarpThreads;
  static constexpr int64_t kRounds = (kWords + kWarpThreads - 1) / kWarpThreads;

  struct Words : DeviceArray<word_t, static_cast<size_t>(kRounds)> {
    static constexpr int64_t kVecBytes = kWord * kRounds;
  };

  template <typename F>
  SGL_DEVICE static void for_each(F&& visit) {
    const auto memory = tile::Memory<word_t>::warp();
#pragma unroll
    for (int64_t i = 0; i < kRounds; ++i) {
      if (i < kFullRounds || memory.in_bound(kWords, i)) visit(memory, i);
    }
  }
};

}  // namespace details

/// \brief Read `kBytes` bytes, each lane its words; all lanes call.
template <
    int64_t kBytes, int64_t kMost = LoadStorePattern::MAX_GMEM,
    int64_t kWord = LoadStorePattern::get_vec_bytes<kBytes, kMost>()>
[[nodiscard]] SGL_DEVICE auto load_bytes(const void* source) {
  using Copy = details::WarpCopy<kBytes, kWord>;
  typename Copy::Words words;
  Copy::for_each([&](const auto& memory, int64_t i) { words[i] = memory.load(source, i); });
  return words;
}
/// \brief Write what `load_bytes` with the same template arguments has read.
template <
    int64_t kBytes, int64_t kMost = LoadStorePattern::MAX_GMEM,
    int64_t kWord = LoadStorePattern::get_vec_bytes<kBytes, kMost>()>
SGL_DEVICE void store_bytes(void* target, const auto& words) {
  details::WarpCopy<kBytes, kWord>::for_each([&](const auto& memory, int64_t i) { memory.store(target, words[i], i); });
}

}  // namespace warp

/// \brief The largest value of a warp, of a block (in warp 0), and in memory.
[[nodiscard]] SGL_DEVICE float warpReduceMax(float value) {
  return warp::reduce_max(value);
}
[[nodiscard]] SGL_DEVICE float blockReduceMax(float value) {
  __shared__ float smem[kWarpThreads];
  return cta::reduce_max(value, smem, 0.0f);
}
SGL_DEVICE float atomicMaxFloat(float* address, float value) {
  return atomic::max(address, value);
}

namespace cta {

/// \brief The sum over a block of `kThreads` threads, which every one of them gets. Synchronises once inside; the
/// caller does before `smem` is used again.
template <int kThreads, typename T>
[[nodiscard]] SGL_DEVICE T reduce_sum(T value, T* smem) {
  static_assert(kThreads % kWarpThreads == 0, "cta::reduce_sum takes whole warps");
  constexpr uint32_t kWarps = kThreads / kWarpThreads;
  value = warp::reduce_sum(value);
  if constexpr (kWarps > 1) {
    const uint32_t lane = threadIdx.x % kWarpThreads;
    if (lane == 0) smem[threadIdx.x / kWarpThreads] = value;
    __syncthreads();
    value = warp::reduce_sum(lane < kWarps ? smem[lane] : T{});
  }
  return value;
}

}  // namespace cta

namespace norm {

/// \brief `apply_rmsnorm_warp` by its name in SGLang.
template <int64_t kDim, typename Vec>
[[nodiscard]] SGL_DEVICE Vec apply_norm_warp(const Vec& input, const Vec& weight, float eps) {
  return apply_rmsnorm_warp<kDim>(input, weight, eps);
}
/// \brief Normalise a row that the first `num_warps` warps of the block hold; every thread calls. It synchronises
/// before it returns, so `smem` may be used at once.
template <int64_t kDim, typename Vec>
[[nodiscard]] SGL_DEVICE Vec apply_norm_cta(
    const Vec& input, const Vec& weight, float eps, float* smem, uint32_t num_warps = blockDim.x / kWarpThreads) {
  static_assert(kDim > 256, "norm: a block normalises rows of more than 256 elements, use apply_norm_warp");
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const float of_warp = warp::reduce_sum(sum_of_squares(input));
  if (lane == 0) smem[threadIdx.x / kWarpThreads] = of_warp;
  __syncthreads();
  const float sum = warp::reduce_sum(lane < num_warps ? smem[lane] : 0.0f);
  __syncthreads();
  return scale(input, weight, math::rsqrt(sum / kDim + eps));
}

}  // namespace norm

}  // namespace device
