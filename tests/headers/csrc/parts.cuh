/// \file parts.cuh
/// \brief Kernels without a row program, of the parts of one: a row in registers, and reductions by lanes, by a block
/// and by a cluster. parts.cu launches them; NVRTC compiles them too.

#include <sgl_kernel/cluster.cuh>
#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/math.cuh>
#include <sgl_kernel/row.cuh>

namespace parts {

// example: row
/// A softmax in one pass: the largest element so far, and the sum of exp(element - largest).
struct Online {
  struct State {
    float largest, sum;
  };
  SGL_DEVICE static State identity() {
    return {-3.402823466e38f, 0.0f};
  }
  SGL_DEVICE static State of(float element, int64_t) {
    return {element, 1.0f};
  }
  SGL_DEVICE static State merge(State a, State b) {
    const float largest = device::math::max(a.largest, b.largest);
    return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
  }
};

template <uint32_t kColumns, uint32_t kThreads>  // such as 4096 and 256; each block has a row
__global__ void softmax(bf16_t* out, const bf16_t* in) {
  using namespace device;
  __shared__ Online::State smem[kWarpThreads];
  const Stripes<kColumns, 8, kThreads> row{threadIdx.x};  // in vectors of 8
  const int64_t first = int64_t{blockIdx.x} * kColumns;
  const auto x = row.load(in + first);
  const auto own = row.reduce(Online{}, x);  // of the elements of this thread
  const auto all = cta::all_reduce<kThreads>(own, smem, Online::identity(), Online::merge);
  row.store(out + first, sgl::map([=](float v) { return expf(v - all.largest) / all.sum; }, x));
}
// end

/// Heads, each of which `kThreads` lanes share: x / |x|, the sum of the squares and the largest element.
template <uint32_t kColumns, uint32_t kElements, uint32_t kThreads>
__global__ void unit_heads(float* out, float* totals, const bf16_t* in, int64_t heads) {
  using namespace device;
  const int64_t number = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kThreads;
  const int64_t head = number < heads ? number : heads - 1;  // all lanes of a warp take part in a reduction
  const Stripes<kColumns, kElements, kThreads> row{threadIdx.x % kThreads};
  const auto x = row.load(in + head * kColumns);
  const auto squares = row.keep(sgl::map([](float v) { return v * v; }, x));
  const auto add = [](float a, float b) { return a + b; };
  const auto larger = [](float a, float b) { return math::max(a, b); };
  const float sum = warp::all_reduce<kThreads>(row.sum([](float v) { return v; }, squares), add);
  const auto again = row.in_memory(in + head * kColumns);
  const float largest = warp::all_reduce<kThreads>(row.max([](float v) { return v; }, again), larger);
  if (number >= heads) return;
  row.store(out + head * kColumns, sgl::map([=](float v) { return v * math::rsqrt(sum); }, x));
  if (row.thread == 0) totals[2 * head] = sum, totals[2 * head + 1] = largest;
}

/// The largest element and its first column.
struct First {
  struct State {
    float largest;
    int column;
    int looked_at;
  };
  SGL_DEVICE static State identity() {
    return {-device::math::inf, 1 << 30, 0};
  }
  SGL_DEVICE static State of(float element, int64_t column) {
    return {element, static_cast<int>(column), 1};
  }
  SGL_DEVICE static State merge(State a, State b) {
    const bool is_a = a.largest > b.largest || (a.largest == b.largest && a.column < b.column);
    return {is_a ? a.largest : b.largest, is_a ? a.column : b.column, a.looked_at + b.looked_at};
  }
};

/// A row for each cluster, in vectors of eight. Every thread writes its result; the row is copied by way of shared
/// memory.
template <uint32_t kColumns, uint32_t kThreads, uint32_t kBlocks>
__global__ void first_largest(int* out, bf16_t* copy, const bf16_t* in) {
#if SGL_ARCH_HOPPER_OR_GREATER
  using namespace device;
  __shared__ First::State smem[kWarpThreads], of_block;
  alignas(16) __shared__ bf16_t parked[kColumns];
  const uint32_t rank = blockIdx.x % kBlocks, thread = rank * kThreads + threadIdx.x;
  const Stripes<kColumns, 8, kBlocks * kThreads> row{thread};
  const int64_t number = blockIdx.x / kBlocks;
  const auto x = row.load(in + number * kColumns);
  auto state = cta::all_reduce<kThreads>(row.reduce(First{}, x), smem, First::identity(), First::merge);
  cluster::all_reduce<kBlocks>(state, &of_block, First::merge);
  const int64_t place = (number * kBlocks * kThreads + thread) * 2;
  out[place] = state.column;
  out[place + 1] = state.looked_at;
  row.store(parked, x);
  row.store(copy + number * kColumns, row.in_memory(parked));  // what each thread stored itself
  ptx::cluster_sync();                                         // other blocks read `of_block`
#endif
}

struct Triple {
  int a, b, c;
};

/// What each lane gets from another, of types that shuffle and of structs.
__global__ void exchange(float* out, uint32_t distance) {
  using namespace device;
  const auto lane = static_cast<int>(threadIdx.x);
  const auto triple = warp::exchange(Triple{lane, 2 * lane, 3 * lane}, distance);
  out[lane] = static_cast<float>(triple.a + 100 * triple.b + 10000 * triple.c);
  out[32 + lane] = warp::exchange(0.5f * static_cast<float>(lane), distance);
  out[64 + lane] = cast<float>(warp::exchange(cast<fp16_t>(0.5f * static_cast<float>(lane)), distance));
  out[96 + lane] = static_cast<float>(warp::exchange(0.25 * lane, distance));
}

}  // namespace parts
