/// \file sum.cpp
/// \brief The host part of `moe_sum`.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/rows.h>
#include <sgl_kernel/variant.h>

#include "sum.h"

namespace {

using namespace host;

constexpr std::int64_t kThreads = 256;
constexpr std::int64_t kMostAtOnce = 16;  // rows of a token that a thread asks for at once

Kernel<moe::Sum> sum{"sum.cuh", "moe::sum"};
Deferred<void(const moe::Sum&, std::int64_t, DLDataType, DLDataType)> sum_on_cpu{"sum_cpu.cpp", "moe::sum_on_cpu"};

void refuse_shared(const Rows& output, const Rows& other) {
  if (rows_meet(output.memory(), other.memory())) [[unlikely]]
    throw Error(
        "ValueError", "output shares memory with ", other.name, ": output is ", output.tensor, ", ", other.name, " is ",
        other.tensor);
}

/// Narrower words, of 4 bytes at least, until each multiprocessor has a block: a thread waits for its memory as long
/// whatever it asks for.
std::size_t narrowed(std::size_t word, std::size_t bytes, std::int64_t elements, const runtime::Chip& chip) {
  const auto least = bytes < 4 ? 4 : bytes;
  while (word > least && elements * bytes < kThreads * word * chip.num_sms) word /= 2;
  return word;
}

void moe_sum(TensorView input, TensorView output, Optional<TensorView> topk_weights, double routed_scaling_factor) {
  const auto x = heads("input", input).floats();
  const auto out = rows("output", output).typed_as(x);
  const auto device = input.device();
  const auto refuse_other = [&](const Rows& rows, std::int64_t columns) {
    const auto& tensor = rows.tensor;
    if (tensor.ndim() != 2) [[unlikely]]
      rows.raise({}, {"Dimension mismatch: expected 2 but got ", tensor.ndim()});
    for (const int i : {0, 1}) {
      const auto size = i == 0 ? x.count : columns;
      if (tensor.size(i) != size) [[unlikely]]
        rows.raise({}, {"Size mismatch for dimension ", i, ": expected ", size, " but got ", tensor.size(i)});
    }
    if (!host::operator==(tensor.device(), device)) [[unlikely]]
      rows.raise({}, {"Device mismatch: expected ", device, " but got ", tensor.device()});
  };
  refuse_other(out, x.columns);
  const auto bytes = x.element_bytes();
  const auto weights = topk_weights ? values("topk_weights", *topk_weights).floats() : x;
  if (topk_weights) {
    refuse_other(weights, x.inner);
    refuse_shared(out, weights);
  }
  refuse_shared(out, x);
  if (rows_overlap(out.memory())) [[unlikely]]
    throw Error("ValueError", "rows of output share memory with each other: output is ", output);
  if (out.count == 0 || out.columns == 0) return;
  const auto stride_of = [](const Rows& rows) { return rows.count > 1 ? rows.stride * rows.element_bytes() : 0; };
  const auto inner_stride = x.inner > 1 ? x.inner_stride * bytes : 0;
  auto word = widest_word(x.data, stride_of(x), inner_stride, out.data, stride_of(out), x.columns * bytes);
  if (word < bytes || widest_word(weights.data) < weights.element_bytes()) [[unlikely]]
    throw Error("ValueError", "moe_sum: an address is not a multiple of its element size: input is ", input);
  if (device.device_type == kDLCUDA)
    word = narrowed(word, bytes, x.count * x.columns, runtime::get_chip(device.device_id));
  const auto of_weight = weights.element_bytes();
  const moe::Sum params = {
      .input = x.data,
      .token_stride = stride_of(x),
      .expert_stride = inner_stride,
      .output = out.data,
      .output_stride = stride_of(out),
      .weights = topk_weights ? weights.data : nullptr,
      .weights_stride = {weights.stride * of_weight, weights.element_stride * of_weight},
      .num_tokens = x.count,
      .vectors = x.columns * bytes / word,
      .experts = static_cast<int>(x.inner),
      .scale = static_cast<float>(routed_scaling_factor),
  };
  if (device.device_type == kDLCPU) return sum_on_cpu(params, x.columns, input.dtype(), weights.dtype);
  if (device.device_type != kDLCUDA) [[unlikely]]
    x.raise({}, {"Device mismatch: expected one of [cpu, cuda] but got ", device});
  const auto experts = x.inner <= kMostAtOnce ? static_cast<int>(x.inner) : 0;
  LaunchKernel(div_ceil(x.count * params.vectors, kThreads), kThreads, device)
      .enable_pdl(runtime::has_pdl(device.device_id))(
          sum.get(word / bytes, experts, topk_weights.has_value(), input.dtype(), weights.dtype), params);
}

}  // namespace

SGL_EXPORT(moe_sum, (moe_sum))
