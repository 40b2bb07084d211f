#pragma once

#include <sgl_kernel/arch.cuh>
#include <sgl_kernel/ptx.cuh>

#include "wait_params.h"

/// \file wait_value.cuh
/// \brief Kernels of one thread that wait for a flag and write one. Compiles under NVRTC.
///
/// The flag may be in device memory or in pinned host memory. What its writer wrote before it is visible to what comes
/// behind the wait in the stream.

namespace wait_value {

/// \brief Poll until the condition holds, or the time is up. `T` is `uint32_t` or `uint64_t`.
template <int kCondition, typename T>
__global__ void __launch_bounds__(1, 1) wait(const __grid_constant__ Wait params) {
  constexpr uint32_t kNap = 32;  // ns; a look itself takes half a microsecond
  const auto flag = static_cast<const T*>(params.flag);
  const auto value = static_cast<T>(params.value);
  const uint64_t start = params.timeout_ns == 0 ? 0 : device::ptx::global_timer();
  while (true) {
    const T seen = device::ptx::load_acquire_system(flag);
    if (is_met<kCondition>(seen, value)) return;
    if (params.timeout_ns != 0 && device::ptx::global_timer() - start >= params.timeout_ns) {
      auto& report = *params.report;
      if (atomicExch_system(&report.is_taken, 1u) == 0) {
        report.flag = reinterpret_cast<uint64_t>(params.flag);
        report.value = params.value;
        report.seen = seen;
        report.timeout_ns = params.timeout_ns;
      }
      __threadfence_system();
      atomicAdd_system(&report.count, 1u);
      return;
    }
    __nanosleep(kNap);
  }
}

/// \brief Write after everything that came before in the stream.
template <typename T>
__global__ void __launch_bounds__(1, 1) write(const __grid_constant__ Write params) {
  device::ptx::store_release_system(static_cast<T*>(params.flag), static_cast<T>(params.value));
}

}  // namespace wait_value
