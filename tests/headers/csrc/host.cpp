/// \file host.cpp
/// \brief Functions that the tests of the host headers call from Python.

#include <sgl_kernel/ffi.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/signature.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <pthread.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace {

using host::Optional;
using host::TensorView;

// ---- arguments and results ----

enum class Mode : std::uint8_t { kFirst, kSecond };

int add(int a, int b) {
  return a + b;
}
template <int kBy>
std::int64_t scale(std::int64_t x) {
  return x * kBy;
}
struct Methods {
  static double half(double x) {
    return x / 2;
  }
};
bool negate(bool x) {
  return !x;
}
std::int8_t narrow(std::int8_t x) {
  return x;
}
std::uint64_t wide(std::uint64_t x) {
  return x;
}
float single(float x) {
  return x;
}
std::int64_t mode(Mode x) {
  return x == Mode::kSecond ? 2 : 1;
}
std::int64_t text_length(const char* text) {
  std::int64_t length = 0;
  while (text[length] != '\0') ++length;
  return length;
}
std::int64_t numel(TensorView x) {
  return x.numel();
}
std::int64_t numel_by_reference(const TensorView& x) {
  return x.numel();
}
std::int64_t numel_or(Optional<TensorView> x, std::int64_t otherwise) {
  return x.has_value() ? x->numel() : otherwise;
}
double scale_or_one(Optional<double> x) {
  return x.value_or(1.0);
}
std::int64_t device_index(DLDevice device) {
  return device.device_type * 100 + device.device_id;
}
std::int64_t dtype_code(DLDataType dtype) {
  return dtype.code * 100 + dtype.bits;
}
bool is_null(void* pointer) {
  return pointer == nullptr;
}
std::int64_t address(TensorView x) {
  return reinterpret_cast<std::int64_t>(x.data_ptr());
}
void nothing() {}

/// Seven arguments in two parameters.
template <int kCount>
struct Side {
  TensorView parts[kCount];
  Optional<double> scale;
  SGL_FIELDS(parts, scale)
};
struct Options {
  struct Size {
    std::int8_t rows;
    int columns;
    SGL_FIELDS(rows, columns)
  };
  Mode mode = Mode::kSecond;
  Size size = {};
  SGL_FIELDS(mode, size)
};
double grouped(const Side<2>& side, int between, Options options) {
  const auto digits = side.parts[0].numel() * 10 + side.parts[1].numel();
  const auto size = options.size.rows * 10 + options.size.columns;
  return static_cast<double>(digits * 10000 + between * 1000 + mode(options.mode) * 100 + size) *
         side.scale.value_or(1);
}
int args(int result) {
  return result;
}

// ---- tensors that C++ makes ----

host::Tensor make(std::int64_t rows, TensorView like) {
  auto out = host::ffi::allocate({rows, 2}, like.dtype(), like.device());
  if (host::is_type<float>(like.dtype())) {
    for (auto i : host::irange(rows * 2)) static_cast<float*>(out.data_ptr())[i] = static_cast<float>(i);
  }
  return out;
}
host::Tensor make_like(TensorView like) {
  return host::ffi::allocate_like(like);
}
int live_blobs = 0;
host::Tensor blob(std::int64_t n) {
  auto* data = new float[static_cast<std::size_t>(n)];
  for (auto i : host::irange(n)) data[i] = static_cast<float>(i) / 2;
  ++live_blobs;
  const std::int64_t shape[] = {n / 2, 2};
  return host::ffi::from_blob(data, {shape, 2}, host::dtype_of<float>::value, {kDLCPU, 0}, [](void* memory) {
    delete[] static_cast<float*>(memory);
    --live_blobs;
  });
}
int count_blobs() {
  return live_blobs;
}
host::Tensor no_tensor() {
  return {};
}

// ---- errors ----

void check(bool condition, const char* text, std::int64_t number) {
  host::RuntimeCheck(condition, text, " and ", number);
}
void check_silent(bool condition) {
  host::RuntimeCheck(condition || false);  // a lone name in parentheses would declare a variable
}
void check_elsewhere(bool condition, host::DebugInfo location = {}) {
  host::RuntimeCheck(location, condition, "as seen by the caller");
}
void check_from_afar(bool condition) {
  check_elsewhere(condition);  // check_from_afar
}
void panic_here(std::int64_t number) {
  host::Panic("number ", number);
}
void throw_kind(std::int64_t which) {
  static constexpr const char* kKinds[] = {"ValueError", "TypeError", "KeyError", "IndexError", "NoSuchKindError"};
  throw host::Error(kKinds[which], "kind number ", which);
}
void throw_standard() {
  throw std::runtime_error("a standard exception");
}
void throw_other() {
  throw 42;
}
void print_many(const char* text) {
  host::Message message;
  message << text << ' ' << true << ' ' << std::int8_t{-5} << ' ' << std::uint64_t{18446744073709551615u} << ' ' << 0.1f
          << ' ' << 0.1 << ' ' << 1e300 << ' ' << -0.0 << ' ' << Mode::kSecond << ' ' << std::string("string") << ' '
          << host::ShapeView{} << ' ' << DLDataType{kDLBfloat, 16, 1} << ' ' << DLDataType{kDLFloat, 16, 4} << ' '
          << DLDataType{kDLBool, 8, 1} << ' ' << DLDataType{kDLFloat8_e4m3fn, 8, 1} << ' ' << DLDataType{99, 8, 1}
          << ' ' << DLDevice{kDLCUDA, 3} << ' ' << DLDevice{kDLCPU, 0} << ' '
          << DLDevice{static_cast<DLDeviceType>(99), 1} << ' ' << nullptr << ' ' << static_cast<const char*>(nullptr);
  throw host::Error("ValueError", message.c_str());
}

// ---- matching ----

template <typename... Ts>
void match_dtype(TensorView x) {
  auto dtype = host::SymbolicDType{};
  host::TensorMatcher({-1}).with_dtype<Ts...>(dtype).verify(x);
}

/// k_cache and v_cache of one layer, as a cache-transfer kernel checks them.
void match_caches(TensorView k_cache, TensorView v_cache) {
  using namespace host;
  auto D = SymbolicSize{"head dimension"};
  auto N = SymbolicSize{"kv stride"};
  auto dtype = SymbolicDType{};
  auto device = SymbolicDevice{};
  TensorMatcher({-1, D})  //
      .with_strides({N, 1})
      .with_dtype<std::int32_t, std::int64_t>(dtype)
      .with_device<kDLCUDA, kDLCPU>(device)
      .verify(k_cache, "k_cache")
      .verify(v_cache);
}
void match_long_annotation(TensorView x, const char* annotation) {
  host::SymbolicSize size{annotation};
  host::TensorMatcher({size, size}).verify(x);
}
void match_rank_8(TensorView x) {
  host::TensorMatcher({-1, -1, -1, -1, -1, -1, -1, 7}).with_strides({-1, -1, -1, -1, -1, -1, -1, -1}).verify(x);
}
void match_scalar(TensorView x) {
  host::TensorMatcher({}).with_dtype<float>().with_device<kDLCPU>().verify(x);
}
void match_device_value(TensorView x) {
  host::TensorMatcher({-1}).with_device(DLDevice{kDLCUDA, 1}).verify(x);
}
void match_dtype_value(TensorView x) {
  host::TensorMatcher({-1}).with_dtype(DLDataType{kDLInt, 32, 1}).verify(x);
}
void match_dtype_list(TensorView x) {
  host::TensorMatcher({-1}).with_dtype({DLDataType{kDLInt, 32, 1}, DLDataType{kDLInt, 64, 1}}).verify(x);
}
void match_strides_twice(TensorView x) {
  host::TensorMatcher({-1}).with_strides({1}).with_strides({1}).verify(x);
}
void match_strides_short(TensorView x) {
  host::TensorMatcher({-1, -1}).with_strides({1}).verify(x);
}
std::int64_t unwrap_unset() {
  return host::SymbolicSize{"never matched"}.unwrap();
}

/// A DLTensor that a producer of old filled in: no strides, maybe no data.
void match_without_strides(std::int64_t rows, std::int64_t columns) {
  std::int64_t shape[] = {rows, columns};
  DLTensor tensor = {nullptr, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0};
  auto N = host::SymbolicSize{"columns"};
  host::TensorMatcher({-1, N}).with_strides({N, 1}).verify(&tensor);
  host::TensorMatcher({-1, N}).verify(&tensor);
  host::TensorMatcher({-1, N}).with_dtype<double>().verify(&tensor);
}
void null_tensor() {
  host::TensorMatcher({-1}).verify(static_cast<const DLTensor*>(nullptr));
}

// ---- views ----

std::int64_t size_at(TensorView x, std::int64_t index) {
  return x.size(index);
}
std::int64_t stride_at(TensorView x, std::int64_t index) {
  return x.stride(index);
}
bool is_contiguous(TensorView x) {
  return x.is_contiguous();
}

// ---- what holds at compile time ----

constexpr int sum_of_range() {
  int sum = 0;
  for (const auto i : host::irange(2, 5)) sum += i;
  for (const auto i : host::irange(3)) sum += i;
  for (const auto i : host::irange(5, 2)) sum += 1000 * i;
  return sum;
}
static_assert(sum_of_range() == 2 + 3 + 4 + 0 + 1 + 2);
static_assert(std::is_same_v<decltype(*host::irange(0, std::int64_t{1}).begin()), std::int64_t>);
static_assert(host::div_ceil(7, 4) == 2 && host::div_ceil(8, 4) == 2 && host::div_ceil(0, 4) == 0);
static_assert(host::div_ceil(-7, 4) == -1 && host::div_ceil(7, -4) == -1 && host::div_ceil(-7, -4) == 2);
static_assert(host::div_ceil(INT64_MAX, std::int64_t{2}) == INT64_MAX / 2 + 1);
static_assert(host::div_ceil(std::size_t{9}, 4) == 3);
static_assert(host::dtype_bytes({kDLFloat, 16, 1}) == 2 && host::dtype_bytes({kDLFloat, 32, 4}) == 16);
static_assert(host::dtype_bytes({kDLFloat4_e2m1fn, 4, 1}) == 1);
static_assert(host::is_type<float>({kDLFloat, 32, 1}) && !host::is_type<float>({kDLInt, 32, 1}));
static_assert(host::is_type<bool>({kDLBool, 8, 1}) && host::is_type<std::uint8_t>({kDLUInt, 8, 1}));
static_assert(host::is_type<__nv_bfloat16>({kDLBfloat, 16, 1}));

std::int64_t pointer_offset(std::int64_t a, std::int64_t b) {
  char buffer[16];
  void* base = buffer;
  const void* constant = buffer;
  host::RuntimeCheck(host::pointer::offset(constant, a, b) == host::pointer::offset(base, a, b));
  return static_cast<char*>(host::pointer::offset(base, a, b)) - buffer;
}

}  // namespace

#include <sgl_kernel/export.h>

SGL_EXPORT(add, (add))
SGL_EXPORT(scale, (scale<3>))
SGL_EXPORT(half, (Methods::half))
SGL_EXPORT(negate, (negate))
SGL_EXPORT(narrow, (narrow))
SGL_EXPORT(wide, (wide))
SGL_EXPORT(single, (single))
SGL_EXPORT(mode, (mode))
SGL_EXPORT(text_length, (text_length))
SGL_EXPORT(numel, (numel))
SGL_EXPORT(numel_by_reference, (numel_by_reference))
SGL_EXPORT(numel_or, (numel_or))
SGL_EXPORT(scale_or_one, (scale_or_one))
SGL_EXPORT(device_index, (device_index))
SGL_EXPORT(dtype_code, (dtype_code))
SGL_EXPORT(is_null, (is_null))
SGL_EXPORT(address, (address))
SGL_EXPORT(args, (args))
SGL_EXPORT(nothing, (nothing))
SGL_EXPORT(grouped, (grouped));  // a semicolon may follow
SGL_EXPORT(twice, ([](int x) { return 2 * x; }))
SGL_EXPORT(make, (make))
SGL_EXPORT(make_like, (make_like))
SGL_EXPORT(blob, (blob))
SGL_EXPORT(count_blobs, (count_blobs))
SGL_EXPORT(no_tensor, (no_tensor))
SGL_EXPORT(check, (check))
SGL_EXPORT(check_silent, (check_silent))
SGL_EXPORT(check_from_afar, (check_from_afar))
SGL_EXPORT(panic_here, (panic_here))
SGL_EXPORT(throw_kind, (throw_kind))
SGL_EXPORT(throw_standard, (throw_standard))
SGL_EXPORT(throw_other, (throw_other))
SGL_EXPORT(print_many, (print_many))
SGL_EXPORT(match_dtype_any, (match_dtype<>))
SGL_EXPORT(match_dtype_float, (match_dtype<float, __half, __nv_bfloat16, __nv_fp8_e4m3>))
SGL_EXPORT(match_caches, (match_caches))
SGL_EXPORT(match_long_annotation, (match_long_annotation))
SGL_EXPORT(match_rank_8, (match_rank_8))
SGL_EXPORT(match_scalar, (match_scalar))
SGL_EXPORT(match_device_value, (match_device_value))
SGL_EXPORT(match_dtype_value, (match_dtype_value))
SGL_EXPORT(match_dtype_list, (match_dtype_list))
SGL_EXPORT(match_strides_twice, (match_strides_twice))
SGL_EXPORT(match_strides_short, (match_strides_short))
SGL_EXPORT(unwrap_unset, (unwrap_unset))
SGL_EXPORT(match_without_strides, (match_without_strides))
SGL_EXPORT(null_tensor, (null_tensor))
SGL_EXPORT(size_at, (size_at))
SGL_EXPORT(stride_at, (stride_at))
SGL_EXPORT(is_contiguous, (is_contiguous))
SGL_EXPORT(pointer_offset, (pointer_offset))

namespace {

void end_thread() {
  pthread_exit(nullptr);
}

}  // namespace

SGL_EXPORT(end_thread, (end_thread))

namespace {

/// Whether a thread that ends inside of an exported function is unwound, and the process goes on.
bool outlives_a_thread() {
  pthread_t thread;
  bool is_unwound = false;
  const auto run = [](void* flag) -> void* {
    struct Guard {
      bool& flag;
      ~Guard() {
        flag = true;
      }
    } guard{*static_cast<bool*>(flag)};
    TVMFFIAny result = {};
    __tvm_ffi_end_thread(nullptr, nullptr, 0, &result);
    return nullptr;
  };
  host::RuntimeCheck(pthread_create(&thread, nullptr, run, &is_unwound) == 0, "no thread");
  pthread_join(thread, nullptr);
  return is_unwound;
}

}  // namespace

SGL_EXPORT(outlives_a_thread, (outlives_a_thread))
