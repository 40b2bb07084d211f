#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/error.h>
#include <sgl_kernel/message.h>

#include <pthread.h>

#include <cstdint>
#include <cstring>

#include "wait_params.h"

/// \file timeouts.h
/// \brief Waits on streams that gave up: each has a report of its own, which the host collects. Host only.

namespace wait_value {

/// \brief The reports of one device. They are not shared between devices: two of them, or a device and the CPU, may
/// have no atomic operations on host memory in common. So each word has one writer at a time; see `TimeoutReports`.
struct DeviceTimeouts {
 public:
  /// \brief Where the device's kernels report; null before its first wait with a timeout.
  TimeoutReports* get() const {
    return __atomic_load_n(&m_shared, __ATOMIC_ACQUIRE);
  }
  /// \brief As `get`, and makes them. The device is current.
  TimeoutReports* make() {
    auto* found = get();
    if (found != nullptr) return found;
    namespace driver = host::driver;
    void* memory = nullptr;
    driver::check(driver::api().MemHostAlloc(&memory, sizeof(TimeoutReports), driver::kHostAllocPortable));
    // Where two threads race, one of the two is never used: it is less than a page, once.
    return use(static_cast<TimeoutReports*>(std::memset(memory, 0, sizeof(TimeoutReports))));
  }
  /// \brief Take `made`, of zeros, unless there are some; returns those that are taken.
  TimeoutReports* use(TimeoutReports* made) {
    TimeoutReports* found = nullptr;
    return __atomic_compare_exchange_n(&m_shared, &found, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ? made
                                                                                                           : found;
  }
  /// \brief Whether a wait has given up since the last `collect`; a look at a word of host memory.
  bool has_news() const {
    const auto* found = get();
    return found != nullptr &&
           __atomic_load_n(&found->given_up, __ATOMIC_ACQUIRE) != __atomic_load_n(&m_seen, __ATOMIC_RELAXED);
  }
  /// \brief Append every report to `text`, and free it. Returns how many waits there were, with those that found no
  /// free report. One thread at a time.
  std::uint32_t collect(host::Message& text) {
    auto& shared = *get();
    // Read before the reports: what gives up after this is news once more, and then may have been collected already.
    __atomic_store_n(&m_seen, __atomic_load_n(&shared.given_up, __ATOMIC_ACQUIRE), __ATOMIC_RELAXED);
    std::uint32_t count = 0;
    for (auto& report : shared.reports) {
      if (__atomic_load_n(&report.state, __ATOMIC_ACQUIRE) != TimeoutReport::kFilled) continue;
      text << (text.size() == 0 ? "" : "; ") << "after " << static_cast<double>(report.timeout_ns) / 1e9
           << " s, at the flag at " << reinterpret_cast<const void*>(report.flag) << ", which was "
           << static_cast<std::int64_t>(report.seen) << " and not as waited for with "
           << static_cast<std::int64_t>(report.value);
      __atomic_store_n(&report.state, TimeoutReport::kFree, __ATOMIC_RELEASE);
      ++count;
    }
    const auto unreported = __atomic_load_n(&shared.unreported, __ATOMIC_ACQUIRE);
    if (unreported != m_unreported) text << "; and " << unreported - m_unreported << " more";
    count += unreported - m_unreported;
    m_unreported = unreported;
    return count;
  }

 private:
  TimeoutReports* m_shared = nullptr;
  std::uint32_t m_seen = 0;        // of shared->given_up
  std::uint32_t m_unreported = 0;  // of shared->unreported
};

/// \brief Those of all devices.
struct Timeouts {
 public:
  static constexpr std::int32_t kMaxDevices = 64;

  DeviceTimeouts& of(std::int32_t device_id) {
    host::RuntimeCheck(device_id < kMaxDevices, "a timeout on device ", device_id, ": there are at most ", kMaxDevices);
    return m_devices[device_id];
  }
  /// \brief Throw a TimeoutError if waits have given up since anybody was last told.
  void check() {
    for (auto& device : m_devices) {
      if (device.has_news()) [[unlikely]]
        return m_report();
    }
  }

 private:
  [[gnu::cold, gnu::noinline]] void m_report() {
    host::Message text;
    std::uint32_t count = 0;
    ::pthread_mutex_lock(&m_mutex);
    for (auto& device : m_devices) {
      if (device.has_news()) count += device.collect(text);
    }
    ::pthread_mutex_unlock(&m_mutex);
    if (count == 0) return;  // another thread has told
    throw host::Error(
        "TimeoutError", "stream_wait_value: ", count, count == 1 ? " wait" : " waits",
        " on a stream gave up, and what came behind ran without ", count == 1 ? "it: " : "them: ", text.c_str());
  }

  DeviceTimeouts m_devices[kMaxDevices];
  ::pthread_mutex_t m_mutex = PTHREAD_MUTEX_INITIALIZER;
};

}  // namespace wait_value
