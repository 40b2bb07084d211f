#pragma once

#include <sgl_kernel/arch.cuh>

/// \file compat/tile.cuh
/// \brief `tile::Memory`: a group of threads moves an array, one element per thread at a time. For kernels that are
/// ported from SGLang.
///
/// \code
///   using vec_t = AlignedVector<bf16_t, 8>;
///   const auto mem = tile::Memory<vec_t>::cta();  // 256 threads
///   for (int i = 0; mem.in_bound(count, i); ++i)  // thread t moves elements t, 256 + t, 512 + t, ...
///     mem.store(output, mem.load(input, i), i);
/// \endcode
/// Neighbouring threads touch neighbouring elements, so accesses coalesce. Each thread has its own element, so no
/// synchronisation is needed. Compiles under NVRTC.

namespace device::tile {

/// \brief One thread's place in a group that moves elements of type `T`, such as an `AlignedVector`.
template <typename T>
struct Memory {
 public:
  /// \brief Thread `tid` of `tsize`.
  SGL_DEVICE constexpr Memory(uint32_t tid, uint32_t tsize) : m_tid(tid), m_tsize(tsize) {}

  /// \brief A thread on its own.
  [[nodiscard]] SGL_DEVICE static constexpr Memory thread() {
    return {0, 1};
  }
  /// \brief The lanes of a warp, or groups of `warp_threads` lanes.
  [[nodiscard]] SGL_DEVICE static Memory warp(uint32_t warp_threads = kWarpThreads) {
    return {threadIdx.x % warp_threads, warp_threads};
  }
  /// \brief The threads of a one-dimensional block.
  [[nodiscard]] SGL_DEVICE static Memory cta(uint32_t cta_threads = blockDim.x) {
    return {threadIdx.x, cta_threads};
  }

  /// \brief This thread's element of tile number `tile`.
  [[nodiscard]] SGL_DEVICE T load(const void* ptr, int64_t tile = 0) const {
    return static_cast<const T*>(ptr)[m_index(tile)];
  }
  /// \brief Write this thread's element of tile number `tile`.
  SGL_DEVICE void store(void* ptr, const T& value, int64_t tile = 0) const {
    static_cast<T*>(ptr)[m_index(tile)] = value;
  }
  /// \brief Whether this thread's element of tile number `tile` is among the first `element_count`.
  [[nodiscard]] SGL_DEVICE bool in_bound(int64_t element_count, int64_t tile = 0) const {
    return m_index(tile) < element_count;
  }

 private:
  SGL_DEVICE int64_t m_index(int64_t tile) const {
    return m_tid + tile * m_tsize;
  }

  uint32_t m_tid;
  uint32_t m_tsize;
};

}  // namespace device::tile
