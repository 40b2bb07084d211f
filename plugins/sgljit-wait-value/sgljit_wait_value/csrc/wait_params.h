#pragma once

/// \file wait_params.h
/// \brief The parameters of the kernels of wait_value.cuh, and the conditions.
///
/// Compiled by the host compiler and by NVRTC: the includer must define the fixed-width integers.

#include <sgl_kernel/signature.h>

namespace wait_value {

// Conditions, with the numbers of the driver's stream memory operations.
inline constexpr int kGreaterOrEqual = 0;  ///< flag - value >= 0, also after the number wraps around
inline constexpr int kEqual = 1;           ///< flag == value
inline constexpr int kAnd = 2;             ///< flag & value: some bit of value is set
inline constexpr int kNor = 3;             ///< ~(flag | value): some bit that is clear in value is clear

/// Whether the condition holds. The kernel, the CPU and the driver agree.
template <typename T>
constexpr bool is_met(int condition, T flag, T value) {
  switch (condition) {
    case kEqual:
      return flag == value;
    case kAnd:
      return (flag & value) != 0;
    case kNor:
      return static_cast<T>(~(flag | value)) != 0;
    default:
      if constexpr (sizeof(T) == 4) return static_cast<int32_t>(flag - value) >= 0;
      else return static_cast<int64_t>(flag - value) >= 0;
  }
}

/// A wait that timed out, in pinned host memory.
struct TimeoutReport {
  enum State : uint32_t { kFree, kTaken, kFilled };
  uint32_t state;  ///< the device claims and fills the report, then the host frees it
  uint64_t flag;   ///< its address
  uint64_t value;
  uint64_t seen;
  uint64_t timeout_ns;
};

/// The reports of one device. A wait that finds no free report is only counted.
struct TimeoutReports {
  static constexpr int kCount = 16;
  uint32_t given_up;    ///< the number of timed-out waits so far; written last, only by the device
  uint32_t unreported;  ///< the number of those that found no free report; written only by the device
  TimeoutReport reports[kCount];
};

struct Wait {
  const void* flag;
  uint64_t value;
  uint64_t timeout_ns;      // 0: no timeout
  TimeoutReports* reports;  // null without a timeout
  int condition;
  bool is_wide;  // 64 bits
  SGL_FIELDS(flag, value, timeout_ns, reports, condition, is_wide)
};

struct Write {
  void* flag;
  uint64_t value;
  bool is_wide;
  SGL_FIELDS(flag, value, is_wide)
};

}  // namespace wait_value
