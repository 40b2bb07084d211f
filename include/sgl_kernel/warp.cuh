#pragma once

#include <sgl_kernel/math.cuh>

/// \file warp.cuh
/// \brief Reductions over the lanes of a warp, or over groups of its lanes.
///
/// Every lane of `active_mask` calls, with the same mask and at the same place, and every one of these lanes gets the
/// result. No synchronisation is needed before or after; no memory is used.
/// \code
///   warp::reduce_sum(lane)             // lanes hold 0..31: every lane gets 496
///   warp::reduce_sum(lane, 0x0000000f) // lanes 0..3: 0 + 1 + 2 + 3 = 6
///   warp::reduce_sum<int, 8>(lane)     // four groups of 8: 28, 92, 156, 220
/// \endcode
/// Cost: five shuffles with all lanes (log2 of the group), else one shuffle for each active lane of the group.
/// Compiles under NVRTC.

namespace device::warp {

using device::kFullMask;

namespace details {

template <typename T>
concept Shuffleable = requires(T value) { __shfl_xor_sync(kFullMask, value, 1); };

}  // namespace details

/// \brief The value of the lane whose number differs by the bits of `distance`: of the neighbour in a pair for 1.
///
/// All lanes of the warp call. `T` is a number that shuffles, or a struct of whole words of 32 bits.
template <typename T>
[[nodiscard]] SGL_DEVICE T exchange(const T& value, uint32_t distance) {
  if constexpr (sizeof(T) <= sizeof(uint32_t) && details::Shuffleable<T>) {
    return __shfl_xor_sync(kFullMask, value, static_cast<int>(distance));
  } else {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0, "warp::exchange takes fp16, bf16, or whole words of 32 bits");
    uint32_t words[sizeof(T) / sizeof(uint32_t)];
    memcpy(words, &value, sizeof(value));
#pragma unroll
    for (uint32_t& word : words) word = __shfl_xor_sync(kFullMask, word, static_cast<int>(distance));
    T result;
    memcpy(&result, words, sizeof(result));
    return result;
  }
}

/// \brief `op` over all lanes of the warp, or over each group of `kThreads` neighbours: every lane gets the result.
///
/// All lanes of the warp call. Lanes get the same bits if op(a, b) has those of op(b, a): a * b + c * d may not, as the
/// compiler rounds one product only. \param op associative and commutative, of what `exchange` takes.
template <uint32_t kThreads = kWarpThreads, typename T, typename Op>
[[nodiscard]] SGL_DEVICE T all_reduce(T value, Op op) {
  static_assert(
      kThreads >= 1 && kThreads <= kWarpThreads && (kThreads & (kThreads - 1)) == 0,
      "warp reductions: the group size must be a power of two of at most 32 lanes");
#pragma unroll
  for (uint32_t distance = kThreads / 2; distance > 0; distance /= 2) value = op(value, exchange(value, distance));
  return value;
}

namespace details {

template <uint32_t kThreads, typename T, typename Op>
SGL_DEVICE T reduce(T value, uint32_t active_mask, Op op) {
  static_assert(
      Shuffleable<T>, "warp reductions take a type that shuffles: 32- or 64-bit numbers, fp16, bf16 and their pairs");
  if (active_mask == kFullMask) return all_reduce<kThreads>(value, op);
  // A butterfly would read inactive lanes. Visit the group's lanes one by one instead, in the same order for each lane,
  // so that all get the same bits.
  uint32_t members = active_mask;
  if constexpr (kThreads < kWarpThreads) {
    const uint32_t lane = threadIdx.x % kWarpThreads;
    members &= ((1u << kThreads) - 1u) << (lane / kThreads * kThreads);
  }
  uint32_t rest = members;
  T result = __shfl_sync(members, value, __ffs(static_cast<int>(rest)) - 1);
  for (rest &= rest - 1; rest != 0; rest &= rest - 1)
    result = op(result, __shfl_sync(members, value, __ffs(static_cast<int>(rest)) - 1));
  return result;
}

}  // namespace details

/// \brief The sum over the active lanes, or over each group of `kThreads` neighbouring lanes.
template <typename T, uint32_t kThreads = kWarpThreads>
SGL_DEVICE T reduce_sum(T value, uint32_t active_mask = kFullMask) {
  return details::reduce<kThreads>(value, active_mask, [](T a, T b) -> T { return a + b; });
}

/// \brief The largest value of the active lanes, or of each group of `kThreads` neighbouring lanes.
template <typename T, uint32_t kThreads = kWarpThreads>
SGL_DEVICE T reduce_max(T value, uint32_t active_mask = kFullMask) {
  return details::reduce<kThreads>(value, active_mask, [](T a, T b) -> T { return math::max(a, b); });
}

/// \brief The smallest value of the active lanes, or of each group of `kThreads` neighbouring lanes.
template <typename T, uint32_t kThreads = kWarpThreads>
SGL_DEVICE T reduce_min(T value, uint32_t active_mask = kFullMask) {
  return details::reduce<kThreads>(value, active_mask, [](T a, T b) -> T { return math::min(a, b); });
}

}  // namespace device::warp
