/// \file wait_value.cpp
/// \brief The host part: the functions that Python calls, the checks, the CPU's wait, the driver's operation or a
/// kernel.

#include <sgl_kernel/driver.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/runtime.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>

#include <dlpack/dlpack.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cpu_wait.h"
#include "timeouts.h"
#include "wait_params.h"

namespace {

namespace driver = host::driver;
using host::Error;
using host::Optional;
using host::TensorView;

host::Kernel<wait_value::Wait> wait_kernel{"wait_value.cuh", "wait_value::wait"};
host::Kernel<wait_value::Write> write_kernel{"wait_value.cuh", "wait_value::write"};

/// PyTorch's interface for its current stream; set when the module is loaded. Flags in host memory need it: tvm-ffi
/// passes on no stream for a call without a CUDA tensor.
const DLPackExchangeAPI* g_exchange = nullptr;

// ---- the checks of a call ----

/// A checked call.
struct Call {
  const char* op;
  void* flag;           // its address for the processor that waits
  std::uint64_t value;  // only the lower half for a 32-bit flag
  bool is_wide;         // 64 bits
  DLDevice device;      // the device whose stream waits; the CPU: the calling thread
  host::native_stream_t stream;
};

enum class Mode { kAuto, kDriver, kKernel };

int condition_of(const char* op, const char* name) {
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(name, wait_value::kConditionNames[i]) == 0) return i;
  }
  throw Error("ValueError", op, ": condition must be 'eq', 'ge', 'and' or 'nor', got '", name, "'");
}

Mode mode_of(const char* op, const char* name) {
  if (std::strcmp(name, "auto") == 0) return Mode::kAuto;
  if (std::strcmp(name, "driver") == 0) return Mode::kDriver;
  if (std::strcmp(name, "kernel") == 0) return Mode::kKernel;
  throw Error("ValueError", op, ": mode must be 'auto', 'driver' or 'kernel', got '", name, "'");
}

/// 0 for no timeout, else nanoseconds.
std::uint64_t timeout_of(const char* op, const Optional<double>& seconds) {
  if (!seconds.has_value()) return 0;
  if (!(*seconds > 0 && *seconds < 1e9))
    throw Error("ValueError", op, ": timeout must be a positive number of seconds, got ", *seconds);
  const auto ns = static_cast<std::uint64_t>(*seconds * 1e9);
  return ns > 0 ? ns : 1;
}

std::int32_t current_device() {
  std::int32_t device_id = 0;
  return driver::api().CtxGetDevice(&device_id) == driver::kSuccess ? device_id : 0;
}

/// The driver's record of host memory; empty if this process does not use CUDA. It does not initialise CUDA: a process
/// that has only waited on the CPU can still fork.
driver::Memory host_memory_at(const void* address) {
  constexpr int kInvalidContext = 201;
  const auto query = driver::loaded_pointer_query();
  if (query == nullptr) return {};
  int type = 0;
  const int attribute = driver::kPointerMemoryType;
  void* values[] = {&type};
  const auto status = query(1, &attribute, values, address);
  if (status != kInvalidContext && (status != driver::kSuccess || type == 0)) return {};
  // A thread that has not used CUDA yet has no context, and without one the driver reports no device address.
  const host::runtime::DeviceGuard guard(current_device());
  return driver::memory_at(address);
}

host::native_stream_t stream_of(const char* op, DLDevice device) {
  void* stream = host::LaunchKernel::resolve_device(device);  // that of `tvm_ffi.use_raw_stream`
  if (stream != nullptr) return static_cast<host::native_stream_t>(stream);
  if (g_exchange == nullptr || g_exchange->current_work_stream(device.device_type, device.device_id, &stream) != 0)
    throw Error("RuntimeError", op, ": this PyTorch does not report its current stream: use a flag on the device");
  return static_cast<host::native_stream_t>(stream);
}

/// A device by its name in PyTorch: "cpu", "cuda" for the current one, "cuda:1".
Optional<DLDevice> device_of(const char* op, const Optional<const char*>& name) {
  if (!name.has_value()) return {};
  if (std::strcmp(*name, "cpu") == 0) return DLDevice{kDLCPU, 0};
  if (std::strcmp(*name, "cuda") == 0) return DLDevice{kDLCUDA, current_device()};
  if (std::strncmp(*name, "cuda:", 5) == 0) {
    char* end = nullptr;
    const auto index = std::strtol(*name + 5, &end, 10);
    if (end != *name + 5 && *end == '\0' && index >= 0 && index < INT32_MAX)
      return DLDevice{kDLCUDA, static_cast<std::int32_t>(index)};
  }
  throw Error("ValueError", op, ": device must be 'cpu', 'cuda' or 'cuda:' and a number, got '", *name, "'");
}

/// The device that waits, from the flag's memory and the caller's choice.
void match_device(Call& call, const TensorView& flag, const Optional<const char*>& device_name) {
  const auto device = device_of(call.op, device_name);
  const auto where = flag.device();
  call.flag = flag.data_ptr();
  call.stream = nullptr;
  if (where.device_type == kDLCUDA) {
    if (device.has_value() && !host::operator==(*device, where))
      throw Error(
          "ValueError", call.op, ": two devices are mixed: the flag is on ", where, ", and the device is ", *device);
    call.device = where;
    call.stream = host::LaunchKernel::resolve_device(where);
    return;
  }
  if (where.device_type != kDLCPU && where.device_type != kDLCUDAHost)
    throw Error(host::kTensorMatchError, call.op, ": the flag must be on a CUDA device or in host memory, got ", flag);
  call.device = {kDLCPU, 0};
  if (device.has_value() && device->device_type == kDLCPU) return;
  // The driver says in words that there is none, or no such device; the framework, asked for a stream, could crash.
  if (device.has_value()) static_cast<void>(host::runtime::get_cc_major(device->device_id));
  const auto memory = host_memory_at(call.flag);
  if (memory.type == 0) {
    if (!device.has_value()) return;
    throw Error(
        "ValueError", call.op, ": the flag is in pageable host memory, which ", *device,
        " cannot access: allocate it with pin_memory=True: ", flag);
  }
  call.flag = memory.device_address;
  call.device = device.value_or(DLDevice{kDLCUDA, current_device()});
  call.stream = stream_of(call.op, call.device);
}

Call match_call(const char* op, const TensorView& flag, std::int64_t value, const Optional<const char*>& device) {
  Call call{};
  call.op = op;
  call.is_wide = host::is_type<std::int64_t>(flag.dtype());
  if (!call.is_wide && !host::is_type<std::int32_t>(flag.dtype()))
    throw Error(host::kTensorMatchError, op, ": the flag must be int32 or int64, got ", flag);
  if (flag.numel() < 1) throw Error(host::kTensorMatchError, op, ": the flag is empty: ", flag);
  if (reinterpret_cast<std::uintptr_t>(flag.data_ptr()) % (call.is_wide ? 8 : 4) != 0)
    throw Error(
        host::kTensorMatchError, op, ": the flag's address must be a multiple of its size, got ", flag, " at ",
        static_cast<const void*>(flag.data_ptr()));
  if (!call.is_wide && (value < INT32_MIN || value > static_cast<std::int64_t>(UINT32_MAX)))
    throw Error("ValueError", op, ": ", value, " does not fit the 32-bit flag ", flag);
  call.value = static_cast<std::uint64_t>(value);
  match_device(call, flag, device);
  return call;
}

// ---- timeouts ----

wait_value::Timeouts g_timeouts;

/// Throw a TimeoutError if a wait on a stream has timed out since the last one.
void check_timeouts() {
  g_timeouts.check();
}

// ---- on a stream ----

/// Throw an error of the driver's operation, with the remedy if the stream is being captured.
void check_operation(const Call& call, driver::result_t status) {
  constexpr int kStreamCaptureUnsupported = 900;
  if (status == kStreamCaptureUnsupported)
    throw Error(
        "RuntimeError", call.op,
        ": this driver cannot capture stream memory operations into a graph: use mode='kernel'");
  driver::check(status);
}

bool is_capturing(const Call& call) {
  int capturing = 0;
  driver::check(driver::api().StreamIsCapturing(call.stream, &capturing));
  return capturing != 0;
}

/// Whether the driver has the operation; 64-bit ones and `nor` depend on the device.
bool has_operation(const Call& call, int condition) {
  const auto has = [&](int attribute) { return host::runtime::get_attribute(attribute, call.device.device_id) != 0; };
  const auto& api = driver::api();
  if (api.StreamWaitValue32 == nullptr || api.StreamWaitValue64 == nullptr || api.StreamWriteValue32 == nullptr ||
      api.StreamWriteValue64 == nullptr)
    return false;
  if (call.is_wide && !has(driver::kCanUse64BitStreamMemOps)) return false;
  return condition != wait_value::kNor || has(driver::kCanUseStreamWaitValueNor);
}

/// Whether to use the driver's operation. Every driver can capture the kernel into a graph.
bool use_driver(const Call& call, Mode mode, int condition, bool has_timeout) {
  if (mode == Mode::kKernel) return false;
  if (has_timeout) {
    if (mode == Mode::kAuto) return false;
    throw Error("ValueError", call.op, ": the driver's wait has no timeout: a timeout needs mode='kernel' or 'auto'");
  }
  const bool can = has_operation(call, condition);
  if (mode == Mode::kAuto) return can && !is_capturing(call);
  if (!can)
    throw Error(
        "RuntimeError", call.op, ": the driver or ", call.device, " does not have this operation for ",
        call.is_wide ? 64 : 32, "-bit flags: use mode='kernel'");
  return true;
}

/// Launch a kernel of one thread. Loading a kernel waits for the whole device, held streams included. So the kernel
/// that releases a stream is loaded before any stream is held.
template <typename Params>
void launch(const Call& call, host::Kernel<Params>& kernel, const Params& params) {
  (void)wait_kernel.get().on(call.device.device_id);
  (void)write_kernel.get().on(call.device.device_id);
  host::LaunchKernel(1, 1, call.stream)(kernel.get(), params);
}

void wait_on_stream(const Call& call, int condition, Mode mode, std::uint64_t timeout_ns) {
  check_timeouts();
  const host::runtime::DeviceGuard guard(call.device.device_id);
  if (use_driver(call, mode, condition, timeout_ns != 0)) {
    const auto& api = driver::api();
    const auto flags = static_cast<unsigned>(condition);
    return check_operation(
        call, call.is_wide
                  ? api.StreamWaitValue64(call.stream, call.flag, call.value, flags)
                  : api.StreamWaitValue32(call.stream, call.flag, static_cast<std::uint32_t>(call.value), flags));
  }
  wait_value::Wait params{call.flag, call.value, timeout_ns, nullptr, condition, call.is_wide};
  if (timeout_ns != 0) {
    auto& timeouts = g_timeouts.of(call.device.device_id);
    if (timeouts.get() == nullptr && is_capturing(call))
      throw Error(
          "RuntimeError", call.op, ": the first wait with a timeout on ", call.device,
          " allocates memory, which a capture does not allow: wait once before");
    params.reports = timeouts.make();
  }
  launch(call, wait_kernel, params);
}

void write_on_stream(const Call& call, Mode mode) {
  check_timeouts();
  const host::runtime::DeviceGuard guard(call.device.device_id);
  if (use_driver(call, mode, wait_value::kEqual, false)) {
    const auto& api = driver::api();
    return check_operation(
        call, call.is_wide ? api.StreamWriteValue64(call.stream, call.flag, call.value, 0)
                           : api.StreamWriteValue32(call.stream, call.flag, static_cast<std::uint32_t>(call.value), 0));
  }
  launch(call, write_kernel, wait_value::Write{call.flag, call.value, call.is_wide});
}

// ---- the functions that Python calls ----

void refuse_mode_on_cpu(const Call& call, Mode mode) {
  if (mode != Mode::kAuto)
    throw Error("ValueError", call.op, ": the flag is for the CPU, but modes apply to CUDA streams: leave mode='auto'");
}

/// Make the current stream of the flag's device, or the calling thread, wait until the flag meets the condition.
void stream_wait_value(
    TensorView flag, std::int64_t value, const char* condition, const char* mode, Optional<double> timeout,
    Optional<const char*> device) {
  constexpr const char* kOp = "stream_wait_value";
  const auto call = match_call(kOp, flag, value, device);
  const auto met = condition_of(kOp, condition);
  const auto way = mode_of(kOp, mode);
  const auto timeout_ns = timeout_of(kOp, timeout);
  if (call.device.device_type == kDLCUDA) return wait_on_stream(call, met, way, timeout_ns);
  refuse_mode_on_cpu(call, way);
  if (call.is_wide) wait_value::wait_on_cpu<std::uint64_t>(call.flag, met, call.value, timeout_ns);
  else wait_value::wait_on_cpu<std::uint32_t>(call.flag, met, static_cast<std::uint32_t>(call.value), timeout_ns);
}

/// Write the flag once all earlier work in the current stream is done, or at once on the CPU.
void stream_write_value(TensorView flag, std::int64_t value, const char* mode, Optional<const char*> device) {
  constexpr const char* kOp = "stream_write_value";
  const auto call = match_call(kOp, flag, value, device);
  const auto way = mode_of(kOp, mode);
  if (call.device.device_type == kDLCUDA) return write_on_stream(call, way);
  refuse_mode_on_cpu(call, way);
  if (call.is_wide) wait_value::write_on_cpu<std::uint64_t>(call.flag, call.value);
  else wait_value::write_on_cpu<std::uint32_t>(call.flag, static_cast<std::uint32_t>(call.value));
}

/// Set PyTorch's exchange interface by its address.
void use_exchange(std::int64_t address) {
  g_exchange = reinterpret_cast<const DLPackExchangeAPI*>(address);
}

}  // namespace

SGL_EXPORT(stream_wait_value, (stream_wait_value))
SGL_EXPORT(stream_write_value, (stream_write_value))
SGL_EXPORT(check_timeouts, (check_timeouts))
SGL_EXPORT(use_exchange, (use_exchange))
