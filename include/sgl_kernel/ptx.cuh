#pragma once

#include <sgl_kernel/arch.cuh>

/// \file ptx.cuh
/// \brief All inline PTX, one instruction per function.
///
/// | functions                                                                              | needs |
/// |----------------------------------------------------------------------------------------|-------|
/// | `load_*`, `store_*`, `prefetch`, `global_timer`, `lane_id`, `forget`,                  |       |
/// | `shared_address`, `enable_smem_spilling`                                               |       |
/// | `mbarrier_*`, `fence_barrier_init`, `grid_*`, `cluster_*`, `load_cluster`, `elect_one` | sm_90 |
///
/// A call of a function that the target lacks fails to compile; only the `grid_*` pair does nothing there instead.
/// Compiles under NVRTC. On ROCm the cache hints are plain accesses, `grid_*` and
/// `enable_smem_spilling` do nothing, and but for `lane_id` and `forget` the rest is missing: a call fails to compile.

namespace device::ptx {

// ---- none: what the compiler knows ----

/// \brief Makes the compiler forget what it knows of a word, such as a value that it was computed from. No instruction.
SGL_DEVICE void forget(uint32_t& word) {
#if defined(USE_ROCM)
  asm volatile("" : "+v"(word));  // each thread's own: "r" is a scalar register, which the wave shares
#else
  asm volatile("" : "+r"(word));
#endif
}

// ---- the thread itself ----

/// \brief The number of this lane in its warp.
[[nodiscard]] SGL_DEVICE uint32_t lane_id() {
#if defined(USE_ROCM)
  return __lane_id() % kWarpThreads;
#else
  uint32_t id;
  asm("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
#endif
}

/// \brief Let the compiler keep what does not fit into registers in shared memory. A hint, which CUDA has from 13.0 on.
SGL_DEVICE void enable_smem_spilling() {
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ >= 13
  asm volatile(".pragma \"enable_smem_spilling\";");
#endif
}

// ---- programmatic dependent launch ----

/// \brief Wait for the kernels that this grid depends on, and see their writes.
SGL_DEVICE void grid_dependency_wait() {
#if SGL_ARCH_HOPPER_OR_GREATER && !defined(USE_ROCM)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// \brief Let the grids that depend on this one be launched.
SGL_DEVICE void grid_launch_dependents() {
#if SGL_ARCH_HOPPER_OR_GREATER && !defined(USE_ROCM)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- global memory, with a hint for the caches ----
//
// For data that is touched once: it then does not evict data that will be used again. The pointers must be to global
// memory and aligned to the word: 4, 8 or 16 bytes. The `volatile` keeps the order among these accesses.

#if defined(USE_ROCM)
#define SGL_DEFINE_CACHE_HINT(NAME_LOAD, NAME_STORE, LOAD, STORE, ...) \
  template <typename Word>                                             \
  [[nodiscard]] SGL_DEVICE Word NAME_LOAD(const Word* ptr) {           \
    return *ptr;                                                       \
  }                                                                    \
  template <typename Word>                                             \
  SGL_DEVICE void NAME_STORE(Word* ptr, const Word& value) {           \
    *ptr = value;                                                      \
  }
#else
#define SGL_DEFINE_CACHE_HINT(NAME_LOAD, NAME_STORE, LOAD, STORE, ...)                                      \
  [[nodiscard]] SGL_DEVICE uint32_t NAME_LOAD(const uint32_t* ptr) {                                        \
    uint32_t x;                                                                                             \
    asm volatile(LOAD ".b32 %0, [%1];" : "=r"(x) : "l"(ptr) : __VA_ARGS__);                                 \
    return x;                                                                                               \
  }                                                                                                         \
  [[nodiscard]] SGL_DEVICE uint2 NAME_LOAD(const uint2* ptr) {                                              \
    uint2 x;                                                                                                \
    asm volatile(LOAD ".v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(ptr) : __VA_ARGS__);           \
    return x;                                                                                               \
  }                                                                                                         \
  [[nodiscard]] SGL_DEVICE uint4 NAME_LOAD(const uint4* ptr) {                                              \
    uint4 x;                                                                                                \
    asm volatile(LOAD ".v4.b32 {%0, %1, %2, %3}, [%4];"                                                     \
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)                                               \
                 : "l"(ptr)                                                                                 \
                 : __VA_ARGS__);                                                                            \
    return x;                                                                                               \
  }                                                                                                         \
  SGL_DEVICE void NAME_STORE(uint32_t* ptr, uint32_t x) {                                                   \
    asm volatile(STORE ".b32 [%0], %1;" ::"l"(ptr), "r"(x) : "memory");                                     \
  }                                                                                                         \
  SGL_DEVICE void NAME_STORE(uint2* ptr, uint2 x) {                                                         \
    asm volatile(STORE ".v2.b32 [%0], {%1, %2};" ::"l"(ptr), "r"(x.x), "r"(x.y) : "memory");                \
  }                                                                                                         \
  SGL_DEVICE void NAME_STORE(uint4* ptr, uint4 x) {                                                         \
    asm volatile(STORE ".v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(ptr), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) \
                 : "memory");                                                                               \
  }
#endif

/// \brief Do not keep the line in L1. For data that does not change while the kernel runs (the loads take the read-only
/// path) and for stores that are not read back soon.
SGL_DEFINE_CACHE_HINT(load_no_allocate, store_no_allocate, "ld.global.nc.L1::no_allocate", "st.global.L1::no_allocate")

/// \brief Streaming: first to be evicted from L1 and L2. A load sees the stores of its own thread before it.
SGL_DEFINE_CACHE_HINT(load_streaming, store_streaming, "ld.global.cs", "st.global.cs", "memory")
#undef SGL_DEFINE_CACHE_HINT

#if !defined(USE_ROCM)

/// \brief Start moving the line into L2. The address must be one that a load may take: PTX does not say what happens at
/// another. The data need not be final: a later load sees every write before it.
SGL_DEVICE void prefetch(const void* ptr) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(ptr));
}

/// \brief Load a flag; its writer's writes before `store_release` are visible afterwards. Device-wide.
[[nodiscard]] SGL_DEVICE uint32_t load_acquire(const uint32_t* ptr) {
  uint32_t x;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(ptr) : "memory");
  return x;
}

/// \brief Store a flag after all earlier writes of this thread. Device-wide.
SGL_DEVICE void store_release(uint32_t* ptr, uint32_t x) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(ptr), "r"(x) : "memory");
}

/// \brief Load a flag that a CPU thread or another device may write; its earlier writes are visible afterwards.
[[nodiscard]] SGL_DEVICE uint32_t load_acquire_system(const uint32_t* ptr) {
  uint32_t x;
  asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(x) : "l"(ptr) : "memory");
  return x;
}
[[nodiscard]] SGL_DEVICE uint64_t load_acquire_system(const uint64_t* ptr) {
  uint64_t x;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(x) : "l"(ptr) : "memory");
  return x;
}

/// \brief Store a flag after all that this thread wrote or has seen, for CPU threads and other devices too.
SGL_DEVICE void store_release_system(uint32_t* ptr, uint32_t x) {
  asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(ptr), "r"(x) : "memory");
}
SGL_DEVICE void store_release_system(uint64_t* ptr, uint64_t x) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(ptr), "l"(x) : "memory");
}

/// \brief Nanoseconds of a clock that all multiprocessors share; it may advance in steps of a microsecond.
[[nodiscard]] SGL_DEVICE uint64_t global_timer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

/// \brief The address of shared memory in the form that the instructions below take.
[[nodiscard]] SGL_DEVICE uint32_t shared_address(const void* smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

#if SGL_ARCH_HOPPER_OR_GREATER

/// \brief True in one lane of the warp, which the hardware chooses; all lanes call.
[[nodiscard]] SGL_DEVICE bool elect_one() {
  uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(chosen));
  return chosen != 0;
}

// ---- barriers in shared memory ----

/// \brief Set up a barrier for `count` arrivals per phase. One thread calls it, then `fence_barrier_init()`; a barrier
/// of the block must follow before any use.
SGL_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

/// \brief Make `mbarrier_init` visible to copies that a block did not issue itself, and to the blocks of the cluster.
SGL_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// \brief Arrive once.
SGL_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// \brief Arrive once, and make the phase also wait for `bytes` of copies that end at this barrier.
SGL_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// \brief Whether the phase of this parity is complete. Phases count 0, 1, 0, ... from the first.
[[nodiscard]] SGL_DEVICE bool mbarrier_test(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

/// \brief Wait for the phase of this parity; the thread then sees the writes before its arrivals, and the bytes that it
/// counted.
SGL_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!mbarrier_test(barrier, parity)) {
  }
}

// ---- clusters ----

/// \brief This block's rank in its cluster.
[[nodiscard]] SGL_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// \brief A barrier of all threads of the cluster, which also makes their writes visible to each other.
SGL_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// \brief The address of the same shared variable in block `rank` of the cluster, for `load_cluster`.
[[nodiscard]] SGL_DEVICE uint32_t cluster_map(const void* smem, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(smem)), "r"(rank));
  return address;
}

/// \brief Load 32 bits from another block's shared memory. That block must not have ended: end with `cluster_sync`.
[[nodiscard]] SGL_DEVICE uint32_t load_cluster(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

#endif  // Hopper

#endif  // !ROCm

}  // namespace device::ptx
