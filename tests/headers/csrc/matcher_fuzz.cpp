/// \file matcher_fuzz.cpp
/// \brief Runs TensorMatcher on cases written as rows of integers; test_matcher_fuzz.py writes them and knows the
/// rules.

#include <sgl_kernel/tensor.h>

#include <cstdint>
#include <utility>

namespace {

using namespace host;
using details::SizeRef;

constexpr int kMaxRank = 8;

/// Reads the integers of one case in order.
struct Reader {
  const std::int64_t* next;
  std::int64_t integer() {
    return *next++;
  }
};

struct Case {
  SymbolicSize sizes[3];
  SymbolicDType dtype;
  SymbolicDevice device;
};

struct Tensor {
  std::int64_t shape[kMaxRank];
  std::int64_t strides[kMaxRank];
  DLTensor view;

  explicit Tensor(Reader& in) {
    view.data = nullptr;
    view.byte_offset = 0;
    view.ndim = static_cast<std::int32_t>(in.integer());
    for (auto& size : shape) size = in.integer();
    for (auto& stride : strides) stride = in.integer();
    view.shape = shape;
    view.strides = in.integer() != 0 ? strides : nullptr;
    view.dtype.code = static_cast<std::uint8_t>(in.integer());
    view.dtype.bits = static_cast<std::uint8_t>(in.integer());
    view.dtype.lanes = static_cast<std::uint16_t>(in.integer());
    view.device.device_type = static_cast<DLDeviceType>(in.integer());
    view.device.device_id = static_cast<std::int32_t>(in.integer());
  }
};

SizeRef read_size(Reader& in, Case& symbols) {
  const auto which = in.integer();
  const auto literal = in.integer();
  if (which > 0) return symbols.sizes[which - 1];
  return literal;
}

template <typename F>
void with_rank(std::int64_t rank, const SizeRef (&s)[kMaxRank], F&& f) {
  switch (rank) {
    case 0:
      return f(std::initializer_list<SizeRef>{});
    case 1:
      return f({s[0]});
    case 2:
      return f({s[0], s[1]});
    case 3:
      return f({s[0], s[1], s[2]});
    case 4:
      return f({s[0], s[1], s[2], s[3]});
    default:
      return f({s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]});
  }
}

TensorMatcher&& choose_dtype(TensorMatcher&& m, std::int64_t mode, SymbolicDType& symbol) {
  constexpr DLDataType kInt32 = {kDLInt, 32, 1};
  constexpr DLDataType kHalf = {kDLFloat, 16, 1};
  switch (mode) {
    case 0:
      return std::move(m);
    case 1:
      return std::move(m).with_dtype<float>();
    case 2:
      return std::move(m).with_dtype<std::int32_t, std::int64_t>();
    case 3:
      return std::move(m).with_dtype(symbol);
    case 4:
      return std::move(m).with_dtype<float, __half>(symbol);
    case 5:
      return std::move(m).with_dtype(kInt32);
    default:
      return std::move(m).with_dtype<float, __half>(kHalf);
  }
}

TensorMatcher&& choose_device(TensorMatcher&& m, std::int64_t mode, SymbolicDevice& symbol) {
  switch (mode) {
    case 0:
      return std::move(m);
    case 1:
      return std::move(m).with_device<kDLCUDA>();
    case 2:
      return std::move(m).with_device<kDLCUDA, kDLCPU>();
    case 3:
      return std::move(m).with_device(symbol);
    case 4:
      return std::move(m).with_device<kDLCUDA, kDLCPU>(symbol);
    default:
      return std::move(m).with_device(DLDevice{kDLCUDA, 1});
  }
}

/// How many of the case's tensors were accepted. The first matcher checks two of them, the second the third.
std::int64_t accepted(Reader& in, Case& symbols) {
  std::int64_t count = 0;
  try {
    for (int pattern = 0; pattern < 2; ++pattern) {
      const auto rank = in.integer();
      const auto has_strides = in.integer();
      const auto dtype_mode = in.integer();
      const auto device_mode = in.integer();
      const SizeRef shape[kMaxRank] = {read_size(in, symbols), read_size(in, symbols), read_size(in, symbols),
                                       read_size(in, symbols), read_size(in, symbols), read_size(in, symbols),
                                       read_size(in, symbols), read_size(in, symbols)};
      const SizeRef strides[kMaxRank] = {read_size(in, symbols), read_size(in, symbols), read_size(in, symbols),
                                         read_size(in, symbols), read_size(in, symbols), read_size(in, symbols),
                                         read_size(in, symbols), read_size(in, symbols)};
      const Tensor tensors[2] = {Tensor(in), Tensor(in)};
      with_rank(rank, shape, [&](std::initializer_list<SizeRef> sizes) {
        with_rank(rank, strides, [&](std::initializer_list<SizeRef> steps) {
          auto matcher = TensorMatcher(sizes);
          if (has_strides != 0) static_cast<void>(std::move(matcher).with_strides(steps));
          auto&& ready =
              choose_device(choose_dtype(std::move(matcher), dtype_mode, symbols.dtype), device_mode, symbols.device);
          for (const auto& tensor : tensors) {
            static_cast<void>(std::move(ready).verify(&tensor.view));
            ++count;
          }
        });
      });
    }
  } catch (const Error& error) {
    RuntimeCheck(error.kind() == kTensorMatchError, "another error: ", error.what());
  }
  return count;
}

/// One row of `cases` is one case, and one row of `results` says how many tensors were accepted and, for each of the
/// three sizes, whether it has a value and which.
void run(TensorView cases, TensorView results) {
  auto N = SymbolicSize{"cases"};
  TensorMatcher({N, -1}).with_dtype<std::int64_t>().with_device<kDLCPU>().verify(cases);
  TensorMatcher({N, 7}).with_dtype<std::int64_t>().with_device<kDLCPU>().verify(results);
  for (auto i : irange(N.unwrap())) {
    Reader in{static_cast<const std::int64_t*>(cases.data_ptr()) + i * cases.size(1)};
    auto* out = static_cast<std::int64_t*>(results.data_ptr()) + i * 7;
    Case symbols;
    *out++ = accepted(in, symbols);
    for (const auto& size : symbols.sizes) {
      *out++ = size.has_value();
      *out++ = size.has_value() ? size.unwrap() : 0;
    }
  }
}

}  // namespace

#include <sgl_kernel/export.h>

SGL_EXPORT(run, (run))
