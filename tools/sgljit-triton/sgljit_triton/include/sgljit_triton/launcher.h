#pragma once

#include <sgl_kernel/error.h>
#include <sgl_kernel/launch.h>
#include <sgl_kernel/message.h>
#include <sgl_kernel/variant.h>

#include <dlpack/dlpack.h>
#include <sys/auxv.h>
#include <tvm/ffi/c_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// \file launcher.h
/// \brief Launches of kernels that Triton compiled: `launch(binding, grid x, y, z, arguments...)`.
///
/// A binding is a kernel with its constants. What the arguments of a launch specialise (dtypes, addresses and ints that
/// 16 divides, ints that are one) is read from the arguments of every launch and is the key of a table; so no launch
/// can reach a variant that was compiled for other arguments. A variant that is not there is asked for in Python, which
/// finds or compiles it. A hit takes no lock, allocates nothing and calls no Python.
///
/// Host only, no CUDA header, and of tvm-ffi the C ABI alone.

namespace sgljit_triton {

/// What Python says of a kernel that it has loaded on a device; `launcher.py` has the same structure.
struct Loaded {
  void* kernel;
  std::uint32_t threads;
  std::uint32_t shared;
  std::uint32_t extra;
  std::uint32_t pdl;
};

inline constexpr int kMostParameters = 64;
inline constexpr std::uint32_t kMostExtra = 8;

/// A call of tvm-ffi failed, and has stored its error for the caller.
struct Raised : std::exception {};

/// What one argument specialises, as comparable data.
struct Code {
  enum Kind : std::uint8_t { kNone, kBool, kOne, kInt32, kInt64, kFloat, kPointer };
  Kind kind;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint8_t is_aligned;

  bool operator==(const Code&) const noexcept = default;
};

/// A variant on a device.
struct Variant {
  Variant* next;
  std::uint64_t hash;
  std::int32_t device_id;
  Loaded said;
  host::LoadedKernel loaded;
  Code codes[kMostParameters];
};

/// A kernel with its constants, for the life of the process.
struct Binding {
  std::int64_t token;  // by which Python knows it
  int num_parameters;
  char name[128];
  char kinds[kMostParameters + 1];
  Variant* variants;  // the latest first; none is ever removed
};

/// What Triton calls an element type; null for one that it has not.
inline const char* type_name(const Code& code) noexcept {
  static constexpr struct {
    std::uint8_t code, bits;
    const char* name;
  } kNames[] = {
      {kDLFloat, 16, "fp16"},
      {kDLFloat, 32, "fp32"},
      {kDLFloat, 64, "fp64"},
      {kDLBfloat, 16, "bf16"},
      {kDLFloat8_e4m3fn, 8, "fp8e4nv"},
      {kDLFloat8_e5m2, 8, "fp8e5"},
      {kDLBool, 8, "u1"},
      {kDLInt, 8, "i8"},
      {kDLInt, 16, "i16"},
      {kDLInt, 32, "i32"},
      {kDLInt, 64, "i64"},
      {kDLUInt, 8, "u8"},
      {kDLUInt, 16, "u16"},
      {kDLUInt, 32, "u32"},
      {kDLUInt, 64, "u64"},
  };
  for (const auto& one : kNames) {
    if (one.code == code.type_code && one.bits == code.type_bits) return one.name;
  }
  return nullptr;
}

/// The texts of specialisation.py.
inline void append_code(host::Message& text, const Code& code) {
  switch (code.kind) {
    case Code::kNone:
      text << "=None";
      return;
    case Code::kOne:
      text << "=1";
      return;
    case Code::kBool:
      text << "u1";
      return;
    case Code::kFloat:
      text << "fp32";
      return;
    case Code::kInt32:
      text << "i32";
      break;
    case Code::kInt64:
      text << "i64";
      break;
    case Code::kPointer:
      text << '*' << type_name(code);
  }
  if (code.is_aligned) text << ":16";
}

/// The arguments of one launch, as the kernel takes them.
struct Packed {
  Code codes[kMostParameters];
  std::uint64_t values[kMostParameters];
  void* addresses[kMostParameters + kMostExtra];
  int num_values = 0;
  std::uint64_t hash = 14695981039346656037u;
  DLDevice device = {kDLCPU, -1};
  bool on_cpu = false;

  void put(const void* value, std::size_t size) noexcept {
    std::memcpy(&values[num_values], value, size);
    addresses[num_values] = &values[num_values];
    ++num_values;
  }
};

[[noreturn, gnu::cold]] inline void refuse(const Binding& binding, int index, const char* expected, const char* got) {
  throw host::Error("TypeError", binding.name, ": argument ", index + 1, ": expected ", expected, ", got ", got);
}

inline void check_memory(const Binding& binding, int index, const DLTensor& tensor) {
  // Views of a tensor without memory have their offset for an address (sgl_kernel/export.h has the same bound).
  static const std::uint64_t kLowest = ::getauxval(AT_PHDR) >> 32 ? std::uint64_t{1} << 32 : 65536;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) >= kLowest) [[likely]]
    return;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return;
  }
  refuse(binding, index, "a tensor with memory", "one without any: a fake or meta tensor, or one that was freed");
}

inline void pack_tensor(const Binding& binding, int index, const DLTensor& tensor, Packed& packed, Code& code) {
  check_memory(binding, index, tensor);
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
  code.kind = Code::kPointer;
  code.type_code = tensor.dtype.code;
  code.type_bits = tensor.dtype.bits;
  code.is_aligned = binding.kinds[index] == 's' && address % 16 == 0;
  if (tensor.dtype.lanes != 1 || type_name(code) == nullptr) [[unlikely]]
    refuse(binding, index, "a tensor of a dtype that Triton has", "another");
  packed.put(&address, 8);
  const auto type = tensor.device.device_type;
  if (type == kDLCPU) {
    packed.on_cpu = true;
  } else if (type == kDLCUDA || type == kDLCUDAManaged) {
    if (packed.device.device_id >= 0 && packed.device.device_id != tensor.device.device_id) [[unlikely]]
      throw host::Error("ValueError", binding.name, ": the tensors of a launch are on several devices");
    packed.device = {kDLCUDA, tensor.device.device_id};
  } else if (type != kDLCUDAHost) {
    refuse(binding, index, "a tensor on a CUDA device or the CPU", "one elsewhere");
  }
}

inline void pack(const Binding& binding, int index, const TVMFFIAny& any, Packed& packed) {
  Code code = {};
  const char kind = binding.kinds[index];
  switch (any.type_index) {
    case kTVMFFIDLTensorPtr:
      pack_tensor(binding, index, *static_cast<const DLTensor*>(any.v_ptr), packed, code);
      break;
    case kTVMFFITensor:  // the DLTensor follows the object's header
      pack_tensor(binding, index, *reinterpret_cast<const DLTensor*>(any.v_obj + 1), packed, code);
      break;
    case kTVMFFIInt: {
      const std::int64_t value = any.v_int64;
      if (value == 1 && kind != 'n') {
        code.kind = Code::kOne;
        break;
      }
      const bool is_narrow = static_cast<std::int32_t>(value) == value;
      code.kind = is_narrow ? Code::kInt32 : Code::kInt64;
      code.is_aligned = kind == 's' && value % 16 == 0;
      packed.put(&value, is_narrow ? 4 : 8);  // little endian
      break;
    }
    case kTVMFFIBool: {
      const std::uint8_t value = any.v_int64 != 0;
      code.kind = Code::kBool;
      packed.put(&value, 1);
      break;
    }
    case kTVMFFIFloat: {
      const auto value = static_cast<float>(any.v_float64);
      code.kind = Code::kFloat;
      packed.put(&value, 4);
      break;
    }
    case kTVMFFINone:
      code.kind = Code::kNone;
      break;
    default:
      refuse(binding, index, "a tensor, int64, float, bool or None", "something else");
  }
  packed.codes[index] = code;
  packed.hash = (packed.hash ^ __builtin_bit_cast(std::uint32_t, code)) * 1099511628211u;
}

inline Variant* find(const Binding& binding, const Packed& packed) noexcept {
  Variant* one = __atomic_load_n(&binding.variants, __ATOMIC_ACQUIRE);
  const auto bytes = sizeof(Code) * static_cast<std::size_t>(binding.num_parameters);
  while (one != nullptr && (one->hash != packed.hash || one->device_id != packed.device.device_id ||
                            std::memcmp(one->codes, packed.codes, bytes) != 0))
    one = one->next;
  return one;
}

/// A variant by what its arguments specialise, such as "*fp32:16 i32", which is the question to Python, too.
[[gnu::cold, gnu::noinline]] inline host::Message described(const Binding& binding, const Code* codes) {
  host::Message text;
  for (int i = 0; i < binding.num_parameters; ++i) {
    if (i > 0) text << ' ';
    append_code(text, codes[i]);
  }
  return text;
}

/// Ask Python for a variant. No lock is held. Two threads may both add the same, which costs its memory.
[[gnu::cold, gnu::noinline]] inline Variant* make(Binding& binding, const Packed& packed) {
  const host::Message text = described(binding, packed.codes);
  static constexpr char kQuestion[] = "sgljit.triton";
  const TVMFFIByteArray name = {kQuestion, sizeof(kQuestion) - 1};
  TVMFFIObjectHandle function = nullptr;
  if (TVMFFIFunctionGetGlobal(&name, &function) != 0) throw Raised{};
  if (function == nullptr) throw host::Error("RuntimeError", binding.name, ": sgljit_triton has not loaded this");
  TVMFFIAny args[3] = {};
  args[0].type_index = args[2].type_index = kTVMFFIInt;
  args[0].v_int64 = binding.token;
  args[1].type_index = kTVMFFIRawStr;
  args[1].v_c_str = text.c_str();
  args[2].v_int64 = packed.device.device_id;
  TVMFFIAny result = {};
  const int status = TVMFFIFunctionCall(function, args, 3, &result);
  TVMFFIObjectDecRef(function);
  if (status != 0) throw Raised{};
  const auto& said = *reinterpret_cast<const Loaded*>(result.v_int64);
  if (said.extra > kMostExtra)
    throw host::Error(
        "ValueError", binding.name, '<', text.c_str(), ">: it takes ", said.extra,
        " pointers to scratch memory, and at most ", kMostExtra, " are passed");
  auto* made = new Variant{};
  made->hash = packed.hash;
  made->device_id = packed.device.device_id;
  made->said = said;
  made->loaded.kernel = made->said.kernel;
  std::memcpy(made->codes, packed.codes, sizeof(Code) * static_cast<std::size_t>(binding.num_parameters));
  made->next = __atomic_load_n(&binding.variants, __ATOMIC_RELAXED);
  while (
      !__atomic_compare_exchange_n(&binding.variants, &made->next, made, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
  return made;
}

/// Whether the launch is left to Python, as the tensors are the CPU's.
inline bool launch(Binding& binding, const TVMFFIAny* args, int num_args) {
  const int num_parameters = num_args - 3;
  if (num_parameters != binding.num_parameters) [[unlikely]]
    throw host::Error(
        "TypeError", binding.name, ": expected three numbers of the grid and ", binding.num_parameters,
        " arguments, got ", num_args, " in all");
  std::uint32_t grid[3];
  for (int i = 0; i < 3; ++i) {
    if (args[i].type_index != kTVMFFIInt) [[unlikely]]
      throw host::Error("TypeError", binding.name, ": number ", i + 1, " of the grid is no int");
    const auto most = i == 0 ? std::int64_t{INT32_MAX} : std::int64_t{65535};
    if (args[i].v_int64 < 0 || args[i].v_int64 > most) [[unlikely]]
      throw host::Error(
          "ValueError", binding.name, ": number ", i + 1, " of the grid must be from 0 to ", most, ", got ",
          args[i].v_int64);
    grid[i] = static_cast<std::uint32_t>(args[i].v_int64);
  }
  Packed packed;
  for (int i = 0; i < num_parameters; ++i) pack(binding, i, args[3 + i], packed);
  if (packed.on_cpu) {
    if (packed.device.device_id >= 0) [[unlikely]]
      throw host::Error("ValueError", binding.name, ": a tensor is on the CPU, and another on a CUDA device");
    return true;
  }
  if (packed.device.device_id < 0) [[unlikely]]
    throw host::Error("ValueError", binding.name, ": no tensor says on which device to launch");
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return false;
  Variant* variant = find(binding, packed);
  if (variant == nullptr) [[unlikely]]
    variant = make(binding, packed);
  const auto& said = variant->said;
  void* null = nullptr;
  for (std::uint32_t i = 0; i < said.extra; ++i) packed.addresses[packed.num_values + static_cast<int>(i)] = &null;
  const host::LaunchConfig config = {
      .grid = {grid[0], grid[1], grid[2]},
      .block = said.threads,
      .dynamic_smem = said.shared,
      .stream = host::LaunchKernel::resolve_device(packed.device),
      .device_id = packed.device.device_id,
      .cluster = {},
      .pdl = said.pdl != 0};
  try {
    host::launch_loaded(config, {}, variant->loaded, packed.addresses);
  } catch (const host::Error& error) {
    throw host::Error(
        error.kind(), "launch of ", binding.name, '<', described(binding, packed.codes).c_str(), ">: ", error.what());
  }
  return false;
}

/// \brief Make a binding; its handle is the first argument of `launch`.
inline std::int64_t bind(std::int64_t token, const char* name, const char* kinds) {
  auto* binding = new Binding{};
  binding->token = token;
  binding->num_parameters = static_cast<int>(std::strlen(kinds));
  if (binding->num_parameters > kMostParameters)
    throw host::Error("ValueError", name, ": it has more than ", kMostParameters, " parameters");
  std::strncpy(binding->name, name, sizeof(binding->name) - 1);
  std::strcpy(binding->kinds, kinds);
  return reinterpret_cast<std::int64_t>(binding);
}

}  // namespace sgljit_triton

/// `launch(binding, x, y, z, arguments...)` returns None, or 1 where the arguments are the CPU's. SGL_EXPORT has no
/// functions of any number of arguments.
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_launch(
    void*, const TVMFFIAny* args, std::int32_t num_args, TVMFFIAny* result) {
  try {
    if (num_args < 4 || args[0].type_index != kTVMFFIInt)
      throw host::Error("TypeError", "launch() takes a binding and the numbers of a grid first");
    if (sgljit_triton::launch(*reinterpret_cast<sgljit_triton::Binding*>(args[0].v_int64), args + 1, num_args - 1)) {
      result->type_index = kTVMFFIInt;
      result->v_int64 = 1;
    }
    return 0;
  } catch (const sgljit_triton::Raised&) {
    // the caller finds the error already
  } catch (const host::Error& error) {
    TVMFFIErrorSetRaisedFromCStr(error.kind(), error.what());
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
  }
  return -1;
}
