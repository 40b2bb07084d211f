/// \file timeouts.cpp
/// \brief csrc/timeouts.h without a GPU: waits that give up are played by functions.

#include <sgl_kernel/ffi.h>

#include <cstdint>

#include "timeouts.h"

namespace {

using wait_value::TimeoutReport;

wait_value::TimeoutReports g_reports[2];
wait_value::Timeouts g_timeouts;

/// What report_timeout of wait_value.cuh does up to its last step; returns the report, or -1 where none is free.
std::int64_t take_report(std::int32_t device_id, std::int64_t flag, std::int64_t value, std::int64_t seen) {
  auto& shared = *g_timeouts.of(device_id).use(&g_reports[device_id]);
  for (auto& report : shared.reports) {
    if (report.state != TimeoutReport::kFree) continue;
    report = {
        TimeoutReport::kTaken, static_cast<std::uint64_t>(flag), static_cast<std::uint64_t>(value),
        static_cast<std::uint64_t>(seen), 250'000'000};
    return &report - shared.reports;
  }
  ++shared.unreported;
  return -1;
}

/// The rest: the report, if there is one, is good, and then there is news.
void fill_report(std::int32_t device_id, std::int64_t report) {
  if (report >= 0) g_reports[device_id].reports[report].state = TimeoutReport::kFilled;
}
void ring(std::int32_t device_id) {
  ++g_reports[device_id].given_up;
}

void check() {
  g_timeouts.check();
}

}  // namespace
