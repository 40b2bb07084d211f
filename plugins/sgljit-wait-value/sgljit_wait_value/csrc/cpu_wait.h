#pragma once

#include <sgl_kernel/error.h>

#include <errno.h>
#include <time.h>
#include <tvm/ffi/extra/c_env_api.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>
#include <type_traits>

#include "wait_params.h"

/// \file cpu_wait.h
/// \brief A thread waits for a flag without spinning, with any writer of the flag. Host only.
///
/// `write_on_cpu` wakes it at once. Other writers, a kernel or a plain store, do not: so it also polls by itself, after
/// naps that grow to a millisecond. A first spin of a few microseconds catches a flag that is about to change.

namespace wait_value {

/// \brief The conditions by their names in Python; the index is the condition.
inline constexpr const char* kConditionNames[] = {"ge", "eq", "and", "nor"};

namespace details {

inline std::int64_t now_ns() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

/// Sleep for at most `ns`, or until a writer announces that the word is no longer `seen`. Returns whether a signal
/// came.
inline bool nap(const std::uint32_t* word, std::uint32_t seen, std::int64_t ns) {
  const timespec time = {ns / 1'000'000'000, ns % 1'000'000'000};
#if defined(__linux__)
  return ::syscall(SYS_futex, word, FUTEX_WAIT, seen, &time, nullptr, 0) != 0 && errno == EINTR;
#else
  return ::nanosleep(&time, nullptr) != 0 && errno == EINTR;
#endif
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace details

/// \brief Return once the flag meets the condition. Throws a TimeoutError when the time (unless 0) is up. A signal
/// whose handler raises, such as Ctrl-C, ends the wait with that exception.
template <typename T>
void wait_on_cpu(const void* address, int condition, T value, std::uint64_t timeout_ns) {
  constexpr int kLooks = 200;
  constexpr std::int64_t kFirstNap = 20'000;
  constexpr std::int64_t kLongestNap = 1'000'000;
  constexpr std::int64_t kSignalsEvery = 50'000'000;  // a signal may have reached another thread
  const auto* const flag = static_cast<const T*>(address);
  T seen = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
  for (int i = 0; i < kLooks && !is_met(condition, seen, value); ++i) {
    details::pause();
    seen = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
  }
  if (is_met(condition, seen, value)) return;

  const auto start = details::now_ns();
  auto asked = start;
  auto ns = kFirstNap;
  while (!is_met(condition, seen, value)) {
    const auto now = details::now_ns();
    const auto left = timeout_ns == 0 ? INT64_MAX : start + static_cast<std::int64_t>(timeout_ns) - now;
    if (left <= 0)
      throw host::Error(
          "TimeoutError", "stream_wait_value: the flag is still ",
          static_cast<std::int64_t>(static_cast<std::make_signed_t<T>>(seen)), " after ",
          static_cast<double>(timeout_ns) / 1e9, " s, and the wait was for '", kConditionNames[condition], "' ",
          static_cast<std::int64_t>(static_cast<std::make_signed_t<T>>(value)));
    // The sleep watches the lower half of a wide flag; a change of only the upper half is seen after the nap.
    const bool signal = details::nap(
        static_cast<const std::uint32_t*>(address), static_cast<std::uint32_t>(seen), ns < left ? ns : left);
    if (signal || now - asked > kSignalsEvery) {
      asked = now;
      if (TVMFFIEnvCheckSignals() != 0) throw host::Error("EnvErrorAlreadySet", "a signal's handler has raised");
    }
    ns = ns < kLongestNap / 2 ? 2 * ns : kLongestNap;
    seen = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
  }
}

/// \brief Set the flag after all earlier writes of this thread, and wake its waiters in any process.
template <typename T>
void write_on_cpu(void* address, T value) {
  __atomic_store_n(static_cast<T*>(address), value, __ATOMIC_RELEASE);
#if defined(__linux__)
  ::syscall(SYS_futex, address, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace wait_value
