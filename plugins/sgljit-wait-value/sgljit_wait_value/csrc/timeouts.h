#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/error.h>
#include <sgl_kernel/message.h>

#include <pthread.h>

#include <cstdint>
#include <cstring>

#include "wait_params.h"

/// \file timeouts.h
/// \brief Timeouts of waits on streams: each has a report of its own, which the host collects. Host only.

namespace wait_value {

/// \brief The reports of one device. Devices do not share them: two devices, or a device and the CPU, may have no
/// common atomic operations on host memory. So each word has one writer at a time; see `TimeoutReports`.
struct DeviceTimeouts {
 public:
  /// \brief The reports that the device's kernels write; null before its first wait with a timeout.
  TimeoutReports* get() const {
    return __atomic_load_n(&m_shared, __ATOMIC_ACQUIRE);
  }
  /// \brief `get`, which makes them if needed. The device must be current.
  TimeoutReports* make() {
    auto* found = get();
    if (found != nullptr) return found;
    namespace driver = host::driver;
    void* memory = nullptr;
    driver::check(driver::api().MemHostAlloc(&memory, sizeof(TimeoutReports), driver::kHostAllocPortable));
    // If two threads race, the reports of one are never used: less than a page, once.
    return use(static_cast<TimeoutReports*>(std::memset(memory, 0, sizeof(TimeoutReports))));
  }
  /// \brief Install `made`, which is zeroed, unless there are reports; returns the installed ones.
  TimeoutReports* use(TimeoutReports* made) {
    TimeoutReports* found = nullptr;
    return __atomic_compare_exchange_n(&m_shared, &found, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ? made
                                                                                                           : found;
  }
  /// \brief Whether a wait has timed out since the last `collect`; one read of host memory.
  bool has_news() const {
    const auto* found = get();
    return found != nullptr &&
           __atomic_load_n(&found->given_up, __ATOMIC_ACQUIRE) != __atomic_load_n(&m_seen, __ATOMIC_RELAXED);
  }
  /// \brief Append every report to `text`, and free it. Returns the number of waits, including those that found no free
  /// report. One thread at a time.
  std::uint32_t collect(host::Message& text) {
    auto& shared = *get();
    // Read before the reports: a wait that times out later counts as new again, even if this call collects it.
    __atomic_store_n(&m_seen, __atomic_load_n(&shared.given_up, __ATOMIC_ACQUIRE), __ATOMIC_RELAXED);
    std::uint32_t count = 0;
    for (auto& report : shared.reports) {
      if (__atomic_load_n(&report.state, __ATOMIC_ACQUIRE) != TimeoutReport::kFilled) continue;
      text << (text.size() == 0 ? "" : "; ") << "after " << static_cast<double>(report.timeout_ns) / 1e9
           << " s, at the flag at " << reinterpret_cast<const void*>(report.flag) << ", which was "
           << static_cast<std::int64_t>(report.seen) << ", and the wait was for "
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
  std::uint32_t m_seen = 0;        // shared->given_up at the last collect
  std::uint32_t m_unreported = 0;  // shared->unreported at the last collect
};

/// \brief The reports of all devices.
struct Timeouts {
 public:
  static constexpr std::int32_t kMaxDevices = 64;

  DeviceTimeouts& of(std::int32_t device_id) {
    host::RuntimeCheck(device_id < kMaxDevices, "a timeout on device ", device_id, ": there are at most ", kMaxDevices);
    return m_devices[device_id];
  }
  /// \brief Throw a TimeoutError if waits have timed out since the last one.
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
    if (count == 0) return;  // another thread has thrown it
    throw host::Error(
        "TimeoutError", "stream_wait_value: ", count, count == 1 ? " wait" : " waits",
        " on a stream timed out, and the stream continued without ", count == 1 ? "it: " : "them: ", text.c_str());
  }

  DeviceTimeouts m_devices[kMaxDevices];
  ::pthread_mutex_t m_mutex = PTHREAD_MUTEX_INITIALIZER;
};

}  // namespace wait_value
