/// \file waves.cpp
/// \brief The device headers' reductions and shuffles on waves of 64 lanes, against loops. Prints what is wrong.

#include <hip/hip_runtime.h>

#include <sgl_kernel/atomic.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/impl/norm.cuh>
#include <sgl_kernel/row.cuh>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <random>

namespace {

int num_wrong = 0;

template <typename T>
void expect(const char* what, unsigned lane, T got, T expected) {
  if (std::memcmp(&got, &expected, sizeof(T)) == 0) return;
  if (++num_wrong <= 20)
    std::printf("%s, lane %u: %g, expected %g\n", what, lane, static_cast<double>(got), static_cast<double>(expected));
}

const auto all = [](unsigned) { return true; };
unsigned me() {
  return emulated::current->index;
}
int value_of(unsigned lane) {
  return static_cast<int>(lane * lane % 97) - 20;
}

/// Both warps of a wave, and then the second alone.
template <uint32_t kThreads, typename T>
void reduces(const char* what) {
  using namespace device;
  for (unsigned from : {0u, 32u}) {
    emulated::run(
        64, [=](unsigned lane) { return lane >= from; },
        [=] {
          T sum{}, most = static_cast<T>(-1000), least = static_cast<T>(1000);
          const unsigned first = me() / kThreads * kThreads;
          for (unsigned lane = first; lane < first + kThreads; ++lane) {
            sum = static_cast<T>(sum + static_cast<T>(value_of(lane)));
            most = std::max<T>(most, static_cast<T>(value_of(lane)));
            least = std::min<T>(least, static_cast<T>(value_of(lane)));
          }
          const auto mine = static_cast<T>(value_of(me()));
          expect(what, me(), warp::reduce_sum<T, kThreads>(mine), sum);
          expect(what, me(), warp::reduce_max<T, kThreads>(mine), most);
          expect(what, me(), warp::reduce_min<T, kThreads>(mine), least);
        });
  }
}

/// Each warp of a wave with a mask of its own; the other lanes do not call.
void masks() {
  using namespace device;
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const uint32_t of[] = {static_cast<uint32_t>(random()), round % 3 == 0 ? 0 : static_cast<uint32_t>(random())};
    emulated::run(
        64, [=](unsigned lane) { return (of[lane / 32] >> lane % 32 & 1) != 0; },
        [=] {
          const uint32_t mask = of[me() / 32];
          expect("sum of 2^lane", me(), warp::reduce_sum(1u << me() % 32, mask), mask);
          expect(
              "max of lanes", me(), warp::reduce_max(static_cast<int>(me() % 32), mask), 31 - std::countl_zero(mask));
          expect("min of lanes", me(), warp::reduce_min(static_cast<int>(me() % 32), mask), std::countr_zero(mask));
          uint32_t eighth = 0;
          for (unsigned lane = me() % 32 / 8 * 8, end = lane + 8; lane < end; ++lane) eighth |= mask & 1u << lane;
          expect("sum of an eighth", me(), warp::reduce_sum<uint32_t, 8>(1u << me() % 32, mask), eighth);
          expect("active mask", me(), __activemask(), mask);
          expect("ballot", me(), __ballot_sync(mask, me() % 3 == 0), [=] {
            uint32_t result = 0;
            for (unsigned lane = 0; lane < 32; ++lane)
              if ((me() / 32 * 32 + lane) % 3 == 0) result |= mask & 1u << lane;
            return result;
          }());
          expect("any", me(), __any_sync(mask, 0), 0);
          expect("all", me(), __all_sync(mask, 1), 1);
        });
  }
}

/// CUDA's rules for shuffles, in its own words: of the source lane and its segment.
template <typename T>
void shuffles() {
  for (int width : {32, 16, 8, 2})
    for (unsigned which = 0; which < 32; ++which)
      emulated::run(64, all, [=] {
        const int lane = static_cast<int>(me() % 32), given = static_cast<int>(which);
        const auto of = [](int of_warp) { return static_cast<T>(value_of(me() / 32 * 32 + of_warp)); };
        const int segment = lane / width;
        const T mine = of(lane);
        expect("shfl", me(), __shfl_sync(device::kFullMask, mine, given, width), of(segment * width + given % width));
        const int up = lane - given, down = lane + given, other = lane ^ given;
        expect(
            "up", me(), __shfl_up_sync(device::kFullMask, mine, which, width), up >= segment * width ? of(up) : mine);
        expect(
            "down", me(), __shfl_down_sync(device::kFullMask, mine, which, width),
            down < (segment + 1) * width ? of(down) : mine);
        expect(
            "xor", me(), __shfl_xor_sync(device::kFullMask, mine, given, width),
            other < (segment + 1) * width ? of(other) : mine);
      });
}

void blocks() {
  using namespace device;
  emulated::run(64, all, [] { expect("ballot of four", me(), __ballot_sync(0xfu, 1), 0xfu); });
  for (unsigned threads : {1u, 20u, 32u, 64u, 65u, 96u, 256u, 1000u, 1024u}) {
    int sum = 0, most = -1000;
    for (unsigned thread = 0; thread < threads; ++thread) {
      sum += value_of(thread);
      most = std::max(most, value_of(thread));
    }
    emulated::run(threads, all, [=] {
      __shared__ int smem[32];
      const int found = cta::reduce_sum(value_of(me()), smem);
      if (me() < 32) expect("sum of a block", me(), found, sum);
      __syncthreads();
      expect("sum of a block, stored", me(), smem[0], sum);
      __syncthreads();
      cta::reduce_max(value_of(me()), smem);
      __syncthreads();
      expect("max of a block", me(), smem[0], most);
      __syncthreads();
      if (threads % 32 != 0) return;
      __shared__ float sums[64];
      float values[] = {static_cast<float>(value_of(me())), 1.0f};
      cta::all_reduce(values, sums, 0.0f, [](float a, float b) { return a + b; });
      expect("all_reduce", me(), values[0], static_cast<float>(sum));
      expect("all_reduce", me(), values[1], static_cast<float>(threads));
      __syncthreads();
      struct Moments {
        int count, sum, most;
      };
      __shared__ Moments moments[32];
      const auto merge = [](Moments a, Moments b) {
        return Moments{a.count + b.count, a.sum + b.sum, std::max(a.most, b.most)};
      };
      const Moments own{1, value_of(me()), value_of(me())}, none{0, 0, -1000};
      const auto merged = cta::all_reduce(own, moments, none, merge);
      expect("all_reduce of a struct", me(), merged.count, static_cast<int>(threads));
      expect("all_reduce of a struct", me(), merged.sum, sum);
      expect("all_reduce of a struct", me(), merged.most, most);
      expect("pairs of lanes", me(), warp::exchange(own, 1).sum, value_of(me() ^ 1));
      __syncthreads();
      if (threads == 256)
        expect("row_sum", me(), norm::row_sum<256>(static_cast<float>(value_of(me())), sums), 1.0f * sum);
    });
  }
}

/// A row of 80 elements, of which each of 8 lanes has two vectors of 4 and some a third.
void rows() {
  using namespace device;
  emulated::run(64, all, [] {
    alignas(16) static bf16_t in[80], out[80];
    for (int i = 0; i < 80; ++i) in[i] = cast<bf16_t>(static_cast<float>(value_of(i)));
    const Stripes<80, 4, 8> row{me() % 8};
    const auto x = row.load(in);
    const float sum =
        warp::all_reduce<8>(row.sum([](float v) { return v; }, x), [](float a, float b) { return a + b; });
    float expected = 0;
    for (int i = 0; i < 80; ++i) expected += static_cast<float>(value_of(i));
    expect("sum of a row", me(), sum, expected);
    row.store(out, sgl::map([](float v) { return v + 1; }, row.keep(x)));
    __syncthreads();
    for (int i = 0; i < 80; ++i) expect("a stored row", me(), cast<float>(out[i]), 1.0f + value_of(i));
  });
}

/// Conversions, and 16-bit updates in both halves of a word.
void elements() {
  using namespace device;
  const float inf = math::inf, nan = std::numeric_limits<float>::quiet_NaN();
  const std::pair<float, int> narrowed[] = {{inf, 127}, {-inf, -128}, {nan, 0}, {3e9f, 127}, {2.5f, 2}, {-3.5f, -4}};
  for (const auto& [x, expected] : narrowed) expect("int8", 0, static_cast<int>(cast<int8_t>(x)), expected);
  const std::pair<uint32_t, uint32_t> rounded[] = {{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
                                                   {0x7f7fffff, 0x7f80}, {0x7f800001, 0x7fff}, {0xff800000, 0xff80}};
  for (const auto& [bits, expected] : rounded)
    expect("bf16", 0, 0u + std::bit_cast<uint16_t>(cast<bf16_t>(std::bit_cast<float>(bits))), expected);
  for (const auto& [x, y] : {std::pair{nan, 2.0f}, std::pair{2.0f, nan}}) {
    expect("max with NaN", 0, cast<float>(math::max(cast<bf16_t>(x), cast<bf16_t>(y))), 2.0f);
    expect("min with NaN", 0, cast<float>(math::min(cast<fp16_t>(x), cast<fp16_t>(y))), 2.0f);
  }
  const auto [x, y] = cast<fp32x2_t>(math::max(bf16x2_t{1.0f, -4.0f}, bf16x2_t{-2.0f, -3.0f}));
  expect("max of pairs", 0, x, 1.0f);
  expect("max of pairs", 0, y, -3.0f);
  alignas(4) bf16_t pair[] = {1.0f, 2.0f};
  expect("what was there", 0, cast<float>(atomic::add(&pair[1], bf16_t(3.0f))), 2.0f);
  expect("what was there", 0, cast<float>(atomic::max(&pair[0], bf16_t(0.5f))), 1.0f);
  expect("what was there", 0, cast<float>(atomic::min(&pair[0], bf16_t(-0.5f))), 1.0f);
  expect("lower half", 0, cast<float>(pair[0]), -0.5f);
  expect("upper half", 0, cast<float>(pair[1]), 5.0f);
}

}  // namespace

int main() {
  reduces<32, int>("32 lanes, int");
  reduces<32, double>("32 lanes, double");
  reduces<16, float>("16 lanes, float");
  reduces<4, int64_t>("4 lanes, int64");
  masks();
  shuffles<int>();
  shuffles<double>();
  shuffles<short>();
  blocks();
  rows();
  elements();
  std::printf("%d wrong\n", num_wrong);
  return num_wrong != 0;
}
