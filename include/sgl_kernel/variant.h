#pragma once

#include <sgl_kernel/driver.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/family.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/launch.h>
#include <sgl_kernel/runtime.h>
#include <sgl_kernel/signature.h>
#include <sgl_kernel/utils.h>

#include <dlpack/dlpack.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <typeinfo>

/// \file variant.h
/// \brief Instant variants: get a device kernel by template arguments, launch it with `LaunchKernel`.
///
/// \code
///   host::Kernel<Params> rmsnorm{"rmsnorm.cuh", "norm::rmsnorm"};  // a kernel of the family's device file
///   LaunchKernel(grid, block, device)(rmsnorm.get(4096, true, input.dtype()), params);
/// \endcode
/// Host code is compiled once, by g++ alone. At the first launch of a kernel with its arguments on a device, the core
/// makes the device code, with NVRTC or from the cache, and compares the types of its parameters with those of
/// `Kernel`, field by field (signature.h). Later launches find the kernel in a hash table: no lock, no allocation, no
/// Python. A template argument is an integer, a bool, an enum, a `DLDataType` or a `host::type<T>`.
///
/// Host only, no CUDA header; without a CUDA driver everything compiles, and the first launch reports its absence.

namespace host {

/// \brief A kernel that is loaded on a device, and read by any thread. Whoever loads it has raised its limit of dynamic
/// shared memory to what the device has.
struct LoadedKernel {
  driver::kernel_t kernel = nullptr;
  // The kernel in the device's primary context, whose launch costs the driver a third of a microsecond less. Both null
  // until a first launch there.
  driver::function_t function = nullptr;
  driver::context_t context = nullptr;
};

namespace details {

/// One template argument, as comparable data. It has no padding: equal bytes are equal arguments.
struct TemplateArg {
  enum Kind : std::uint32_t { kInt, kUInt, kBool, kEnum, kDType, kType };
  Kind kind;
  std::uint32_t type_size;  // of the name, 0 if there is none
  const char* type;         // the name of a type, or of an enum's
  std::int64_t value;

  bool operator==(const TemplateArg& other) const noexcept {
    return kind == other.kind && value == other.value && type_size == other.type_size &&
           (type == other.type || std::memcmp(type, other.type, type_size) == 0);
  }
};

struct Spelling {
  const char* text;
  std::size_t size;
};

/// The name of a type as the compiler spells it, cut out of this function's own name, which ends in a bracket.
template <typename T>
constexpr Spelling type_spelling() noexcept {
  const char* text = __PRETTY_FUNCTION__;
  std::size_t begin = 0;
  while (!(text[begin] == 'T' && text[begin + 1] == ' ' && text[begin + 2] == '=')) ++begin;
  begin += 4;
  return {text + begin, sizeof(__PRETTY_FUNCTION__) - 2 - begin};
}

/// Whether another compile can name the type: it is not in an unnamed namespace or a function, and no lambda.
constexpr bool is_nameable(Spelling spelling) noexcept {
  // As compilers spell the opposite: {anonymous}, (anonymous namespace), <unnamed struct>, <lambda()>, f()::Local.
  for (const char* part : {"{", "(anonymous", "(unnamed", "(lambda", "<unnamed", "<lambda", ")::"}) {
    for (std::size_t i = 0; i < spelling.size; ++i) {
      std::size_t same = 0;
      while (part[same] != '\0' && i + same < spelling.size && spelling.text[i + same] == part[same]) ++same;
      if (part[same] == '\0') return false;
    }
  }
  return true;
}

constexpr std::uint64_t fnv1a(const char* text, std::size_t size) noexcept {
  std::uint64_t hash = 14695981039346656037u;
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(text[i])) * 1099511628211u;
  return hash;
}

}  // namespace details

/// \brief A type as a template argument: `kernel.get(host::type<swiglu::SiluAndMul>, 2)`.
template <typename T>
struct Type {};
template <typename T>
inline constexpr Type<T> type{};

namespace details {

template <typename T>
constexpr TemplateArg type_argument(Type<T>) noexcept {
  constexpr auto kName = type_spelling<T>();
  static_assert(
      is_nameable(kName),
      "a kernel's type argument must have a name: no lambda, no unnamed namespace, no function around it");
  return {
      TemplateArg::kType, static_cast<std::uint32_t>(kName.size), kName.text,
      static_cast<std::int64_t>(fnv1a(kName.text, kName.size))};
}

template <typename T>
TemplateArg template_argument(const T& value) noexcept {
  if constexpr (requires { type_argument(value); }) {
    return type_argument(value);
  } else if constexpr (traits::is_same<T, bool>) {
    return {TemplateArg::kBool, 0, nullptr, value};
  } else if constexpr (traits::is_same<T, DLDataType>) {
    return {TemplateArg::kDType, 0, nullptr, value.code | value.bits << 8 | value.lanes << 16};
  } else if constexpr (__is_enum(T)) {
    constexpr auto kName = type_spelling<T>();
    return {TemplateArg::kEnum, static_cast<std::uint32_t>(kName.size), kName.text, static_cast<std::int64_t>(value)};
  } else {
    static_assert(
        traits::integral<T>,
        "a kernel's template argument must be an integer, a bool, an enum, a DLDataType or a host::type<T>");
    return {
        traits::is_signed<T> ? TemplateArg::kInt : TemplateArg::kUInt, 0, nullptr, static_cast<std::int64_t>(value)};
  }
}

[[gnu::cold]] SGL_INLINE void append_to(Message& message, const TemplateArg& argument);

/// A variant that is loaded on a device. Made once, by the core.
struct LoadedVariant : LoadedKernel {
  static constexpr std::size_t kMaxArgs = 12;

  std::uint64_t hash;
  std::int32_t device_id;
  std::uint32_t num_args;
  TemplateArg args[kMaxArgs];
};

struct Variants;

}  // namespace details

struct Variant;

[[gnu::cold]] SGL_INLINE void append_to(Message& message, const Variant& variant);

/// \brief A kernel with its template arguments; a small value.
struct Variant {
 public:
  /// \brief The kernel on a device, from the table or made by the core. Thread-safe.
  [[nodiscard]] SGL_INLINE details::LoadedVariant& on(std::int32_t device_id) const;

  /// \brief Prints as the C++ expression that names the kernel: `rmsnorm_cta<4096, true, bf16_t>`.
  friend void append_to(Message& message, const Variant& variant);

  template <typename... Args>
  explicit Variant(details::Variants& table, const Args&... args) noexcept
      : m_table(&table), m_num_args(sizeof...(Args)), m_args{details::template_argument(args)...} {
    static_assert(sizeof...(Args) <= details::LoadedVariant::kMaxArgs, "a variant takes at most 12 template arguments");
    m_set_hash();
  }

  /// \brief The same for arguments whose number is not known to the compiler. `write` writes them, at most 12, to the
  /// address that it gets, and returns their number.
  template <typename Write>
  static Variant of(details::Variants& table, const Write& write) noexcept {
    Variant result;
    result.m_table = &table;
    result.m_num_args = write(result.m_args);
    result.m_set_hash();
    return result;
  }

 private:
  Variant() noexcept = default;

  void m_set_hash() noexcept {
    std::uint64_t hash = 14695981039346656037u;
    for (std::uint32_t i = 0; i < m_num_args; ++i)
      hash = (hash ^ static_cast<std::uint64_t>(m_args[i].value)) * 1099511628211u;
    m_hash = hash ^ hash >> 29;  // the table uses the low bits
  }

  friend struct details::Variants;

  SGL_INLINE bool m_is(const details::LoadedVariant& kernel, std::int32_t device_id) const noexcept;

  details::Variants* m_table;
  std::uint64_t m_hash;
  std::uint32_t m_num_args;
  details::TemplateArg m_args[details::LoadedVariant::kMaxArgs];
};

/// \brief A variant of a kernel with these parameters.
template <typename... Params>
struct VariantOf : Variant {
  using Variant::Variant;
};

namespace details {

/// The variants of one kernel.
struct Variants {
 public:
  constexpr Variants(const char* file, const char* name, const char* family, const std::type_info& signature) noexcept
      : m_file(file), m_name(name), m_family(family), m_signature(signature) {}
  Variants(const Variants&) = delete;
  Variants& operator=(const Variants&) = delete;

 private:
  friend struct host::Variant;
  friend void host::append_to(Message& message, const Variant& variant);
  using Kernel = LoadedVariant;

  /// Open addressing. It grows by replacement, and a replaced table is kept, because a reader may still be in it.
  struct Table {
    std::size_t mask;
    std::size_t used;
    Kernel* slots[];
  };

  SGL_INLINE Kernel* find(const Variant& variant, std::int32_t device_id) const noexcept;

  /// Ask the core for the kernel. No lock is held: the core may take a second, and call back into other modules.
  [[gnu::cold]] SGL_INLINE Kernel& make(const Variant& variant, std::int32_t device_id);

  [[gnu::cold]] SGL_INLINE Kernel& insert(const Variant& variant, Kernel* kernel);

  /// A table of twice the size with the same kernels; null if there is no memory.
  SGL_INLINE static Table* grow(const Table* old);

  SGL_INLINE static void place(Table& table, Kernel* kernel) noexcept;

  const char* m_file;
  const char* m_name;
  const char* m_family;
  const std::type_info& m_signature;
  Table* m_table = nullptr;
  ::pthread_mutex_t m_mutex = PTHREAD_MUTEX_INITIALIZER;
};

}  // namespace details

/// \brief A kernel of a device file and the types of its parameters, declared once, as a global variable of the host
/// part: `host::Kernel<scaling::Params, int> scale{"scaling.cuh", "scaling::scale"};`.
///
/// A kernel that is compiled from other parameters is refused when it is loaded, with the field that differs.
/// \tparam Params trivially copyable. A struct names its fields, see signature.h.
template <typename... Params>
struct Kernel : private details::Variants {
  static_assert((__is_trivially_copyable(Params) && ...), "Kernel: a parameter must be trivially copyable");

 public:
  /// \param file the device file, relative to the family's csrc; a literal.
  /// \param name the kernel's name in it, with its namespace; a literal.
  constexpr Kernel(const char* file, const char* name, const char* family = SGL_FAMILY) noexcept
      : Variants(file, name, family, typeid(sgl::signature<sgl::described<void(Params...)>>)) {}

  /// \brief The variant for these template arguments. Touches no GPU.
  template <typename... Args>
  [[nodiscard]] VariantOf<Params...> get(const Args&... args) noexcept {
    return VariantOf<Params...>(*this, args...);
  }
};

/// \brief Launch a kernel that is loaded on the device `config.device_id`, with the addresses of its arguments. Nothing
/// is checked: for hosts of kernels that no `Kernel` declares.
SGL_INLINE void launch_loaded(const LaunchConfig& config, DebugInfo location, LoadedKernel& loaded, void** arguments);

namespace details {

SGL_INLINE void launch(const LaunchConfig& config, DebugInfo location, const Variant& variant, void** arguments);

/// The arguments are converted here: every parameter has its kernel's type, and the driver takes the address of each.
template <typename... Params>
void launch_converted(const LaunchConfig& config, DebugInfo location, const Variant& variant, Params... params) {
  void* arguments[sizeof...(Params) + 1] = {const_cast<void*>(static_cast<const void*>(&params))..., nullptr};
  launch(config, location, variant, arguments);
}

/// Whether a parameter can be made from an argument without loss: an int is a long long, no long long is an int.
template <typename Arg, typename Param>
concept ConvertsTo = requires(const Arg& arg) { Param{arg}; };

}  // namespace details

/// `LaunchKernel` for a variant.
template <typename... Params, typename... Args>
void launch_on(
    const LaunchConfig& config, DebugInfo location, const VariantOf<Params...>& variant, const Args&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "LaunchKernel: the kernel takes a different number of arguments");
  if constexpr (sizeof...(Params) == sizeof...(Args)) {
    static_assert(
        (details::ConvertsTo<Args, Params> && ...),
        "LaunchKernel: an argument does not convert to the kernel's parameter type, or not without loss");
    details::launch_converted<Params...>(config, location, variant, args...);
  }
}

namespace runtime {

/// \brief The number of blocks of `variant` that one multiprocessor of the device holds at a time; 0 if none fits.
/// Makes the variant if it does not exist yet.
[[nodiscard]] SGL_INLINE auto get_blocks_per_sm(
    const Variant& variant, std::int32_t block_dim, std::size_t dynamic_smem, std::int32_t device_id,
    DebugInfo location = {}) -> std::uint32_t;

/// \brief The most dynamic shared memory with which `num_blocks` blocks of `variant` still fit on a multiprocessor.
[[nodiscard]] SGL_INLINE auto get_available_dynamic_smem_per_block(
    const Variant& variant, int num_blocks, int block_size, std::int32_t device_id, DebugInfo location = {})
    -> std::size_t;

}  // namespace runtime

}  // namespace host

#if SGL_BODIES

#include <cstdlib>

namespace host {

namespace details {

/// The names of sgl_kernel/device.cuh.
inline const char* device_type_name(DLDataType dtype) {
  struct Name {
    DLDataType dtype;
    const char* text;
  };
  static constexpr Name kNames[] = {
      {{kDLFloat, 64, 1}, "double"},
      {{kDLFloat, 32, 1}, "fp32_t"},
      {{kDLFloat, 16, 1}, "fp16_t"},
      {{kDLBfloat, 16, 1}, "bf16_t"},
      {{kDLInt, 8, 1}, "int8_t"},
      {{kDLInt, 16, 1}, "int16_t"},
      {{kDLInt, 32, 1}, "int32_t"},
      {{kDLInt, 64, 1}, "int64_t"},
      {{kDLUInt, 8, 1}, "uint8_t"},
      {{kDLUInt, 16, 1}, "uint16_t"},
      {{kDLUInt, 32, 1}, "uint32_t"},
      {{kDLUInt, 64, 1}, "uint64_t"},
      {{kDLBool, 8, 1}, "bool"},
      {{kDLFloat8_e4m3fn, 8, 1}, "fp8_e4m3_t"},
      {{kDLFloat8_e5m2, 8, 1}, "fp8_e5m2_t"},
  };
  for (const auto& name : kNames) {
    if (name.dtype == dtype) return name.text;
  }
  throw Error("ValueError", "no kernel can be specialised for dtype ", dtype);
}

SGL_INLINE void append_to(Message& message, const TemplateArg& argument) {
  const auto value = argument.value;
  switch (argument.kind) {
    case TemplateArg::kInt:
      if (value == INT64_MIN) message << "(-9223372036854775807 - 1)";  // the literal has no minus sign of its own
      else message << value;
      break;
    case TemplateArg::kUInt:  // as in Python's make_cpp_args, so that both name the same variant
      message << static_cast<std::uint64_t>(value) << (value < 0 ? "u" : "");
      break;
    case TemplateArg::kBool:
      message << (value != 0);
      break;
    case TemplateArg::kEnum:
      message << "static_cast<";
      message.append(argument.type, argument.type_size);
      message << ">(" << value << ')';
      break;
    case TemplateArg::kType:
      message.append(argument.type, argument.type_size);
      break;
    case TemplateArg::kDType:
      message << device_type_name(
          {static_cast<std::uint8_t>(value), static_cast<std::uint8_t>(value >> 8),
           static_cast<std::uint16_t>(value >> 16)});
      break;
  }
}

}  // namespace details

SGL_INLINE void append_to(Message& message, const Variant& variant) {
  message << variant.m_table->m_name;
  if (variant.m_num_args == 0) return;
  for (std::uint32_t i = 0; i < variant.m_num_args; ++i) message << (i == 0 ? "<" : ", ") << variant.m_args[i];
  message << '>';
}

SGL_INLINE bool Variant::m_is(const details::LoadedVariant& kernel, std::int32_t device_id) const noexcept {
  if (kernel.hash != m_hash || kernel.device_id != device_id || kernel.num_args != m_num_args) return false;
  static_assert(sizeof(details::TemplateArg) == 24);
  if (std::memcmp(kernel.args, m_args, m_num_args * sizeof(*m_args)) == 0) [[likely]]
    return true;
  // A name may be at another place.
  for (std::uint32_t i = 0; i < m_num_args; ++i) {
    if (!(kernel.args[i] == m_args[i])) return false;
  }
  return true;
}

SGL_INLINE details::LoadedVariant& Variant::on(std::int32_t device_id) const {
  if (auto* kernel = m_table->find(*this, device_id)) [[likely]]
    return *kernel;
  return m_table->make(*this, device_id);
}

namespace details {

SGL_INLINE Variants::Kernel* Variants::find(const Variant& variant, std::int32_t device_id) const noexcept {
  const Table* table = __atomic_load_n(&m_table, __ATOMIC_ACQUIRE);
  if (table == nullptr) return nullptr;
  for (std::size_t i = variant.m_hash & table->mask;; i = (i + 1) & table->mask) {
    Kernel* kernel = __atomic_load_n(&table->slots[i], __ATOMIC_ACQUIRE);
    if (kernel == nullptr || variant.m_is(*kernel, device_id)) return kernel;
  }
}

SGL_INLINE Variants::Kernel& Variants::make(const Variant& variant, std::int32_t device_id) {
  Message expression;
  expression << variant;
  // Before any allocation: it may throw, at every call.
  const auto address =
      ask_core("sgljit.variant", {m_family, m_file, expression.c_str(), m_signature.name()}, device_id);
  auto* kernel = new Kernel{{}, variant.m_hash, device_id, variant.m_num_args, {}};
  std::memcpy(kernel->args, variant.m_args, variant.m_num_args * sizeof(*kernel->args));
  kernel->kernel = reinterpret_cast<driver::kernel_t>(address);
  return insert(variant, kernel);
}

SGL_INLINE Variants::Kernel& Variants::insert(const Variant& variant, Kernel* kernel) {
  ::pthread_mutex_lock(&m_mutex);
  Kernel* other = find(variant, kernel->device_id);  // if another thread was first
  Table* table = m_table;
  if (other == nullptr && (table == nullptr || 2 * (table->used + 1) > table->mask + 1)) table = grow(table);
  if (other == nullptr && table != nullptr) {
    place(*table, kernel);
    __atomic_store_n(&m_table, table, __ATOMIC_RELEASE);
  }
  ::pthread_mutex_unlock(&m_mutex);
  if (other == nullptr && table != nullptr) return *kernel;
  delete kernel;
  if (other == nullptr) raise("MemoryError", {"no memory for the table of kernels: ", variant});
  return *other;
}

SGL_INLINE Variants::Table* Variants::grow(const Table* old) {
  const std::size_t size = old == nullptr ? 64 : 2 * (old->mask + 1);
  auto* table = static_cast<Table*>(std::calloc(1, sizeof(Table) + size * sizeof(Kernel*)));
  if (table == nullptr) return nullptr;
  table->mask = size - 1;
  for (std::size_t i = 0; old != nullptr && i <= old->mask; ++i) {
    if (old->slots[i] != nullptr) place(*table, old->slots[i]);
  }
  return table;
}

SGL_INLINE void Variants::place(Table& table, Kernel* kernel) noexcept {
  std::size_t i = kernel->hash & table.mask;
  while (table.slots[i] != nullptr) i = (i + 1) & table.mask;
  ++table.used;
  __atomic_store_n(&table.slots[i], kernel, __ATOMIC_RELEASE);
}

[[gnu::cold, gnu::noinline]] inline void resolve(LoadedKernel& loaded, driver::context_t primary, DebugInfo location) {
  driver::function_t function = nullptr;
  driver::check(driver::api().KernelGetFunction(&function, loaded.kernel), location);
  __atomic_store_n(&loaded.function, function, __ATOMIC_RELAXED);  // other threads store the same
  __atomic_store_n(&loaded.context, primary, __ATOMIC_RELEASE);
}

SGL_INLINE void launch(const LaunchConfig& config, DebugInfo location, const Variant& variant, void** arguments) {
  if (config.grid.is_empty()) return;
  launch_loaded(config, location, variant.on(runtime::this_device(config.device_id)), arguments);
}

}  // namespace details

SGL_INLINE void launch_loaded(const LaunchConfig& config, DebugInfo location, LoadedKernel& loaded, void** arguments) {
  const auto device_id = runtime::this_device(config.device_id);
  const std::size_t dynamic_smem = config.dynamic_smem;
  RuntimeCheck(location, dynamic_smem <= INT32_MAX, "no block has ", dynamic_smem, " bytes of shared memory");
  driver::LaunchAttribute attributes[2];
  driver::LaunchConfig native = {
      config.grid.x,
      config.grid.y,
      config.grid.z,
      config.block.x,
      config.block.y,
      config.block.z,
      static_cast<unsigned>(dynamic_smem),
      config.stream,
      attributes,
      0};
  if (config.pdl) {
    auto& attribute = attributes[native.num_attributes++];
    attribute.id = driver::LaunchAttribute::kProgrammaticStreamSerialization;
    attribute.value.serialization_allowed = 1;
  }
  const auto& cluster = config.cluster;
  if (cluster.x != 1 || cluster.y != 1 || cluster.z != 1) {
    auto& attribute = attributes[native.num_attributes++];
    attribute.id = driver::LaunchAttribute::kClusterDimension;
    attribute.value.cluster = {cluster.x, cluster.y, cluster.z};
  }
  const auto& api = driver::api();
  driver::context_t current = nullptr;
  if (api.CtxGetCurrent(&current) == driver::kSuccess && current != nullptr &&
      current == __atomic_load_n(&loaded.context, __ATOMIC_ACQUIRE)) [[likely]]
    return driver::check(api.LaunchKernelEx(&native, loaded.function, arguments, nullptr), location, &config);
  // Another context of the device, such as a green one, is kept; else the primary one is made current.
  const runtime::DeviceGuard guard(device_id, location);
  driver::check(api.LaunchKernelEx(&native, loaded.kernel, arguments, nullptr), location, &config);
  if (current == runtime::details::primary_context(device_id, location)) details::resolve(loaded, current, location);
}

namespace runtime {

SGL_INLINE auto get_blocks_per_sm(
    const Variant& variant, std::int32_t block_dim, std::size_t dynamic_smem, std::int32_t device_id,
    DebugInfo location) -> std::uint32_t {
  device_id = this_device(device_id);
  const DeviceGuard guard(device_id, location);
  const auto kernel = variant.on(device_id).kernel;
  const auto& api = driver::api();
  int limit = 0, blocks = 0;
  driver::check(api.KernelGetAttribute(&limit, driver::kMaxDynamicSharedSizeBytes, kernel, device_id), location);
  if (dynamic_smem > static_cast<std::size_t>(limit)) return 0;
  driver::check(api.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block_dim, dynamic_smem), location);
  return static_cast<std::uint32_t>(blocks);
}

SGL_INLINE auto get_available_dynamic_smem_per_block(
    const Variant& variant, int num_blocks, int block_size, std::int32_t device_id, DebugInfo location) -> std::size_t {
  device_id = this_device(device_id);
  const DeviceGuard guard(device_id, location);
  const auto kernel = variant.on(device_id).kernel;
  std::size_t bytes = 0;
  driver::check(driver::api().OccupancyAvailableDynamicSMemPerBlock(&bytes, kernel, num_blocks, block_size), location);
  return bytes;
}

}  // namespace runtime

}  // namespace host

#endif  // SGL_BODIES
