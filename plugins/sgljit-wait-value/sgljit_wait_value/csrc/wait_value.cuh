#pragma once

#include <sgl_kernel/arch.cuh>
#include <sgl_kernel/ptx.cuh>

#include "wait_params.h"

/// \file wait_value.cuh
/// \brief Kernels of one thread that wait for a flag and write one. Compiles under NVRTC.
///
/// The flag may be in device memory or in pinned host memory. Work behind the wait in the stream sees everything that
/// the flag's writer wrote before it.

namespace wait_value {

/// Report that a wait has timed out; timeouts.h reads the report.
template <typename T>
SGL_DEVICE void report_timeout(const Wait& params, T seen) {
  using device::ptx::load_acquire_system, device::ptx::store_release_system;
  auto& shared = *params.reports;
  TimeoutReport* mine = nullptr;
  for (auto& report : shared.reports) {
    // Try only a report that looks free: the host may write the others.
    if (load_acquire_system(&report.state) == TimeoutReport::kFree &&
        atomicCAS(&report.state, TimeoutReport::kFree, TimeoutReport::kTaken) == TimeoutReport::kFree) {
      mine = &report;
      break;
    }
  }
  if (mine != nullptr) {
    mine->flag = reinterpret_cast<uint64_t>(params.flag);
    mine->value = params.value;
    mine->seen = sizeof(T) == 4 ? static_cast<uint64_t>(static_cast<int32_t>(seen)) : seen;
    mine->timeout_ns = params.timeout_ns;
    store_release_system(&mine->state, TimeoutReport::kFilled);
  } else {
    atomicAdd(&shared.unreported, 1u);
  }
  __threadfence_system();
  atomicAdd(&shared.given_up, 1u);
}

/// Poll until the condition holds, or the time is up.
template <typename T>
SGL_DEVICE void poll(const Wait& params) {
  constexpr int kEagerLooks = 100;  // 0.5 us each, 2 us at host memory: a write that comes soon is seen at once
  constexpr uint32_t kNap = 32;     // ns
  const auto flag = static_cast<const T*>(params.flag);
  const auto value = static_cast<T>(params.value);
  const int condition = params.condition;
  const bool has_timeout = params.timeout_ns != 0;
  const uint64_t start = has_timeout ? device::ptx::global_timer() : 0;
  T seen;
#pragma unroll 1
  for (int i = 0; i < kEagerLooks; ++i) {
    seen = device::ptx::load_acquire_system(flag);
    if (is_met(condition, seen, value)) return;
  }
  // Two loops: in a single one, the compiler would read the clock also for a wait without timeout.
  if (!has_timeout) {
    do {
      __nanosleep(kNap);
    } while (!is_met(condition, device::ptx::load_acquire_system(flag), value));
    return;
  }
  while (device::ptx::global_timer() - start < params.timeout_ns) {
    __nanosleep(kNap);
    seen = device::ptx::load_acquire_system(flag);
    if (is_met(condition, seen, value)) return;
  }
  report_timeout(params, seen);
}

/// \brief Hold the stream until the condition holds, or the time is up.
///
/// The condition and the width are parameters, so that two kernels in all, which are loaded together, hold and release
/// streams.
__global__ void __launch_bounds__(1, 1) wait(const __grid_constant__ Wait params) {
  if (params.is_wide) poll<uint64_t>(params);
  else poll<uint32_t>(params);
}

/// \brief Write the flag after all earlier work in the stream.
__global__ void __launch_bounds__(1, 1) write(const __grid_constant__ Write params) {
  if (params.is_wide) device::ptx::store_release_system(static_cast<uint64_t*>(params.flag), params.value);
  else device::ptx::store_release_system(static_cast<uint32_t*>(params.flag), static_cast<uint32_t>(params.value));
}

}  // namespace wait_value
