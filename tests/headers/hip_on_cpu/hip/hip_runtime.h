#pragma once

/// \file hip/hip_runtime.h
/// \brief As much of HIP as the device headers use, on a CPU: the lanes of a block take turns, one after the other.
///
/// What a lane reads of the other warp of its wave, by `ds_bpermute` or in a ballot, is a value that no lane has. The
/// n-th word that a lane reads after a barrier of its warp is the n-th that the other lane shows, whenever that comes:
/// groups of lanes may be in different branches.

#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#define HIP_VERSION_MAJOR 5
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))

template <typename T, unsigned kCount>
struct HIP_vector_type;
template <typename T>
struct alignas(2 * sizeof(T)) HIP_vector_type<T, 2> {
  T x, y;
};
template <typename T>
struct alignas(4 * sizeof(T)) HIP_vector_type<T, 4> {
  T x, y, z, w;
};
using char2 = HIP_vector_type<signed char, 2>;
using uchar2 = HIP_vector_type<unsigned char, 2>;
using uint2 = HIP_vector_type<unsigned int, 2>;
using uint4 = HIP_vector_type<unsigned int, 4>;
using float2 = HIP_vector_type<float, 2>;
using float4 = HIP_vector_type<float, 4>;

namespace emulated {

inline constexpr int kOfTheOtherWarp = 0x7fdeadbe;  // NaN as a float

struct Lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  unsigned index = 0;
  std::vector<int> words;  // those that it showed since the last barrier of its warp
  bool is_done = false;
};

struct Group {
  std::size_t size = 0;
  std::size_t arrived = 0;
  std::uint64_t round = 0;
};

inline ucontext_t scheduler;
inline std::vector<std::unique_ptr<Lane>> lanes;
inline Lane* current = nullptr;
inline unsigned block_size = 0;
inline std::vector<Group> warps;
inline Group block;
inline std::function<void()> body;

inline unsigned long long progress = 0;  // counts what lanes do, to notice that all wait

/// The lane of this number, or null if it does not take part.
inline Lane* lane_at(unsigned index) {
  for (auto& lane : lanes)
    if (lane->index == index) return lane.get();
  return nullptr;
}
inline Group& this_warp() {
  return warps[current->index / 32];
}
inline void let_others_run() {
  swapcontext(&current->context, &scheduler);
}

/// Waits for all lanes of a group.
inline void meet(Group& group) {
  const auto round = group.round;
  if (++group.arrived == group.size) {
    group.arrived = 0;
    ++group.round;
    ++progress;
    for (auto& lane : lanes)
      if (&group == &block || lane->index / 32 == current->index / 32) lane->words.clear();
    return;
  }
  while (group.round == round) let_others_run();
  ++progress;
}

/// Runs `function` in each lane of a block for which `takes_part(index)`.
inline void run(unsigned threads, const std::function<bool(unsigned)>& takes_part, std::function<void()> function) {
  body = std::move(function);
  block_size = threads;
  lanes.clear();
  warps.assign((threads + 31) / 32, Group{});
  block = {};
  for (unsigned index = 0; index < threads; ++index) {
    if (!takes_part(index)) continue;
    auto lane = std::make_unique<Lane>();
    lane->index = index;
    getcontext(&lane->context);
    lane->context.uc_stack.ss_sp = lane->stack.data();
    lane->context.uc_stack.ss_size = lane->stack.size();
    lane->context.uc_link = &scheduler;
    makecontext(
        &lane->context,
        +[] {
          body();
          current->is_done = true;
          ++progress;
        },
        0);
    ++warps[index / 32].size;
    ++block.size;
    lanes.push_back(std::move(lane));
  }
  for (bool is_running = true; is_running;) {
    is_running = false;
    const auto before = progress;
    for (auto& lane : lanes) {
      if (lane->is_done) continue;
      current = lane.get();
      swapcontext(&scheduler, &lane->context);
      is_running = true;
    }
    if (is_running && progress == before) {
      std::puts("all lanes wait");
      std::exit(2);
    }
  }
}

struct Index {
  struct X {
    operator unsigned() const {
      return current->index;
    }
  } x;
};
struct Size {
  struct X {
    operator unsigned() const {
      return block_size;
    }
  } x;
};

}  // namespace emulated

inline constexpr emulated::Index threadIdx;
inline constexpr emulated::Size blockDim;
inline constexpr int warpSize = 64;

inline unsigned __lane_id() {
  return emulated::current->index % 64;
}
inline void __syncthreads() {
  emulated::meet(emulated::block);
}
#define __builtin_amdgcn_fence(...) static_cast<void>(0)
#define __builtin_amdgcn_wave_barrier() emulated::meet(emulated::this_warp())

/// The word of lane `address / 4` of the wave.
inline int __builtin_amdgcn_ds_bpermute(int address, int word) {
  using namespace emulated;
  const unsigned self = current->index, source = self / 64 * 64 + (static_cast<unsigned>(address) / 4) % 64;
  current->words.push_back(word);
  ++progress;
  const auto place = current->words.size() - 1;
  const Lane* lane = source / 32 == self / 32 ? lane_at(source) : nullptr;
  if (lane == nullptr) return kOfTheOtherWarp;
  while (lane->words.size() <= place) {
    if (lane->is_done) return kOfTheOtherWarp;
    let_others_run();
  }
  return lane->words[place];
}

/// The lanes of this warp, and of the other one every second.
inline unsigned long long __ballot(int predicate) {
  using namespace emulated;
  meet(this_warp());
  current->words.push_back(predicate);
  ++progress;
  const unsigned first = current->index / 64 * 64;
  unsigned long long result = 0;
  for (unsigned lane = 0; lane < 64; ++lane) {
    const Lane* other = lane_at(first + lane);
    const bool is_own = (first + lane) / 32 == current->index / 32;
    if (is_own && other != nullptr)
      while (other->words.empty()) let_others_run();
    if (is_own ? other != nullptr && other->words[0] != 0 : lane % 2 == 1) result |= 1ull << lane;
  }
  meet(this_warp());
  return result;
}

inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned wanted) {
  const auto before = *address;
  if (before == expected) *address = wanted;
  return before;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
inline double rsqrt(double x) {
  return 1 / std::sqrt(x);
}
inline float __uint_as_float(unsigned x) {
  return __builtin_bit_cast(float, x);
}
/// Out of range anything may come out, as in HIP.
inline int __float2int_rn(float x) {
  return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int>(std::nearbyint(x)) : 12345;
}
