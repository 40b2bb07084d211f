/// \file examples.cpp
/// \brief The host examples of docs/headers.md, between `// example:` and `// end`; test_docs.py compares and runs
/// them.

#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/ffi.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/signature.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

namespace {

std::int64_t utils() {
  // example: utils
  std::int64_t sum = 0;
  for (const auto i : host::irange(2, 5)) sum += i;         // 2 + 3 + 4 = 9
  host::RuntimeCheck(sum == 9, "the sum is ", sum);         // holds: nothing happens
  const auto blocks = host::div_ceil(1000, 256);            // 4
  const auto bytes = host::dtype_bytes({kDLFloat, 16, 1});  // 2
  // end
  return sum * 100 + blocks * 10 + static_cast<std::int64_t>(bytes);
}

// example: error
void set_top_k(std::int64_t k) {
  if (k < 1) throw host::Error("ValueError", "k must be positive, got ", k);
}
// end

// example: message
struct Range {
  float low, high;
};
void append_to(host::Message& message, const Range& range) {
  message << '[' << range.low << ", " << range.high << ']';
}
void check_scale(float scale) {
  const auto allowed = Range{0.5f, 2};
  host::RuntimeCheck(scale >= allowed.low && scale <= allowed.high, "scale ", scale, " is not in ", allowed);
}
// end

}  // namespace

// example: dtype
namespace my {
struct half {
  std::uint16_t bits;
};
}  // namespace my
template <>
struct host::dtype_of<my::half> {
  static constexpr DLDataType value = {kDLFloat, 16, 1};
};
static_assert(host::is_type<my::half>({kDLFloat, 16, 1}));
// end

namespace {

// example: parallel
void reciprocals(host::TensorView x) {
  auto* data = static_cast<float*>(x.data_ptr());
  host::cpu::parallel_for(x.numel(), 1 << 14, [=](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      if (data[i] == 0) throw host::Error("ValueError", "element ", i, " is zero");
      data[i] = 1 / data[i];
    }
  });
}
// end

// example: tensor_view
std::int64_t last_row(host::TensorView x) {  // a tensor of 3 x 4
  const auto rows = x.size(0);               // 3; x.size(-1) is 4
  const auto step = x.stride(0);             // 4 elements from row to row
  return (rows - 1) * step;                  // the last row begins at element 8
}
// end

// example: tensor
std::int64_t match(host::TensorView cache, host::TensorView indices) {
  using namespace host;
  auto D = SymbolicSize{"head dimension"};
  auto dtype = SymbolicDType{};
  auto device = SymbolicDevice{};
  TensorMatcher({-1, D})  // any number of rows
      .with_strides({-1, 1})
      .with_dtype<float, my::half>(dtype)
      .with_device<kDLCPU, kDLCUDA>(device)
      .verify(cache, "cache");
  TensorMatcher({D})  // as long as a row of the cache, contiguous, and on its device
      .with_dtype<std::int32_t, std::int64_t>()
      .with_device(device)
      .verify(indices, "indices");
  return D.unwrap();
}
// end

// example: ffi
host::Tensor iota(std::int64_t n, host::TensorView like) {
  auto out = host::ffi::allocate({n}, host::dtype_of<float>::value, like.device());
  for (const auto i : host::irange(n)) static_cast<float*>(out.data_ptr())[i] = static_cast<float>(i);
  return out;  // to Python: 0, 1, 2, ...
}
// end

// example: optional
double total(host::TensorView x, host::Optional<host::TensorView> weight) {
  double sum = 0;
  for (const auto i : host::irange(x.numel())) {
    const auto w = weight.has_value() ? static_cast<const float*>(weight->data_ptr())[i] : 1.0f;
    sum += static_cast<const float*>(x.data_ptr())[i] * w;
  }
  return sum;
}
// end

template <int kBy>
std::int64_t shift(std::int64_t x) {
  return x + kBy;
}

// example: fields
struct Window {
  host::TensorView ends[2];
  host::Optional<double> scale;
  SGL_FIELDS(ends, scale)
};
double width(const Window& window, bool is_closed) {  // width(first, last, scale, is_closed) in Python
  const auto count = window.ends[1].numel() - window.ends[0].numel() + is_closed;
  return static_cast<double>(count) * window.scale.value_or(1);
}
// end

}  // namespace

// example: export
#include <sgl_kernel/export.h>
SGL_EXPORT(total, (total))
SGL_EXPORT(shift, (shift<3>))
SGL_EXPORT(twice, ([](double x) { return 2 * x; }))
// end
SGL_EXPORT(width, (width))
SGL_EXPORT(utils, (utils))
SGL_EXPORT(set_top_k, (set_top_k))
SGL_EXPORT(check_scale, (check_scale))
SGL_EXPORT(reciprocals, (reciprocals))
SGL_EXPORT(last_row, (last_row))
SGL_EXPORT(match, (match))
SGL_EXPORT(iota, (iota))
