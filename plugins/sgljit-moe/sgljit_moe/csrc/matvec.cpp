/// \file matvec.cpp
/// \brief The host part of `expert_matvec`.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>
#include <sgl_kernel/variant.h>

#include "matvec.h"

namespace {

using namespace host;

/// A warp for each row, of which a matrix has thousands, each read once. Long rows get as many as hold them.
struct WarpOfRow {
  constexpr sgl::RowLayout operator()(unsigned vectors, sgl::RowWork, long long, const runtime::Chip&) const {
    constexpr unsigned kWarp = 32, kBlock = 128, kMostHeld = 16;
    unsigned threads = 1;
    while (threads < (vectors < kWarp ? vectors : vectors / kMostHeld) || (threads < kWarp && threads < vectors))
      threads *= 2;
    return {threads, threads > kBlock ? threads : kBlock, false};
  }
};

RowProgram<moe::Matvec, 1, WarpOfRow> matvec{"matvec.h"};
RowProgram<moe::BiasedMatvec, 1, WarpOfRow> biased_matvec{"matvec.h"};
Kernel<moe::Columns> sum_columns{"matvec.cuh", "moe::sum_columns"};
Deferred<void(const moe::Columns&, std::int64_t, DLDataType, DLDataType)> sum_columns_on_cpu{
    "sum_cpu.cpp", "moe::sum_columns_on_cpu"};

/// Rows of which each goes with `n` neighbouring rows of the others.
Rows for_neighbours(const Rows& rows, std::int64_t n) {
  auto result = rows;
  if (n == 1) return result;
  result.count *= n;
  result.block = n;
  result.block_stride = rows.count > 1 ? rows.stride : 0;
  result.stride = 0;
  return result;
}

/// The rows of a bias, whose elements are values: for each element of an index those of an expert.
Rows bias_of(const TensorView& bias, const Rows& x, const TensorView& weight) {
  const auto result = heads("bias", bias, 1).typed_as(x);
  for (const int i : {0, 1}) {
    if (bias.size(i) != weight.size(i))
      result.raise({}, {"Size mismatch for dimension ", i, ": expected ", weight.size(i), " but got ", bias.size(i)});
  }
  if (!host::operator==(bias.device(), weight.device()))
    result.raise({}, {"Device mismatch: expected ", weight.device(), " but got ", bias.device()});
  return result;
}

/// The columns of matrices as rows, those of an expert for each element of an index.
Rows columns_of(const TensorView& weight, const TensorView& expert_ids) {
  Rows result = {"weight", weight, weight.data_ptr(), weight.size(0), weight.size(1), weight.stride(0), false};
  result.inner = weight.size(2);
  result.inner_stride = weight.stride(2);
  return indexed(result, "expert_ids", expert_ids);
}

void by_columns(
    const Rows& x, const TensorView& weight, const TensorView& expert_ids, const Optional<TensorView>& bias,
    const Rows& output) {
  const auto columns = columns_of(weight, expert_ids).typed_as(x);
  SymbolicSize num_rows{"rows"}, size{"size"}, elements{"elements"};
  SymbolicDevice device;
  num_rows.set_value(x.count);
  TensorMatcher({-1, size}).with_strides({-1, 1}).with_device<kDLCUDA, kDLCPU>(device).verify(x.tensor, "x");
  TensorMatcher({-1, elements, size}).with_strides({-1, 1, -1}).with_device(device).verify(weight, "weight");
  TensorMatcher({num_rows}).verify(expert_ids, "expert_ids");
  TensorMatcher({num_rows, elements}).with_strides({-1, 1}).with_device(device).verify(output.tensor, "output");
  match_index(columns);
  const auto more = bias ? bias_of(*bias, x, weight) : x;
  const auto refuse_shared = [&](const MemoryRows& memory, const char* name, const TensorView& tensor) {
    if (rows_meet(output.memory(), memory)) [[unlikely]]
      throw Error(
          "ValueError", "output shares memory with ", name, ": output is ", output.tensor, ", ", name, " is ", tensor);
  };
  refuse_shared(x.memory(), "x", x.tensor);
  refuse_shared(columns.memory(), "weight", weight);
  if (bias) refuse_shared(more.memory(), "bias", *bias);
  refuse_shared(rows("expert_ids", expert_ids).memory(), "expert_ids", expert_ids);
  if (rows_overlap(output.memory())) [[unlikely]]
    throw Error("ValueError", "rows of output share memory with each other: output is ", output.tensor);
  if (output.count == 0 || output.columns == 0) return;
  const auto bytes = x.element_bytes();
  const bool is_repeated = x.block_stride != 0;
  const auto of_columns =
      widest_word(columns.data, columns.stride * bytes, columns.inner_stride * bytes, columns.columns * bytes);
  moe::Columns params = {
      .x = x.data,
      .x_stride = (is_repeated ? x.block_stride : x.stride) * bytes,
      .weight = columns.data,
      .expert_stride = columns.stride * bytes,
      .column_stride = columns.inner_stride * bytes,
      .ids = expert_ids.data_ptr(),
      .output = output.data,
      .output_stride = output.stride * bytes,
      .num_columns = columns.inner,
      .num_elements = columns.columns,
      .vectors = columns.columns * bytes / of_columns,
      .tiles = 0,
      .repeats = is_repeated ? static_cast<unsigned>(x.block) : 1,
      .bias = bias ? more.data : nullptr,
      .bias_stride = more.stride * bytes,
  };
  if (device.unwrap().device_type == kDLCPU)
    return sum_columns_on_cpu(params, output.count, weight.dtype(), expert_ids.dtype());
  params.tiles = static_cast<unsigned>(div_ceil(params.vectors, moe::kTile));
  LaunchKernel(output.count * params.tiles, moe::kColumnsThreads, device.unwrap())
      .enable_pdl(runtime::has_pdl(device.unwrap().device_id))(
          sum_columns.get(of_columns / bytes, bias.has_value(), is_repeated, weight.dtype(), expert_ids.dtype()),
          params);
}

void expert_matvec(
    TensorView x, TensorView weight, TensorView expert_ids, TensorView output, Optional<TensorView> bias) {
  auto of_x = rows("x", x).floats();
  if (x.ndim() != 2) of_x.raise({}, {"Dimension mismatch: expected 2 but got ", x.ndim()});
  auto of_ids = expert_ids.dl_tensor();
  auto num_ids = expert_ids.numel();
  if (expert_ids.ndim() > 1) {
    const auto all = rows("expert_ids", expert_ids);
    if (expert_ids.ndim() > 2) all.raise({}, {"Dimension mismatch: expected 1 or 2 but got ", expert_ids.ndim()});
    if (expert_ids.size(0) != x.size(0))
      all.raise({}, {"Size mismatch for dimension 0: expected ", x.size(0), " but got ", expert_ids.size(0)});
    if (!expert_ids.is_contiguous())
      all.raise(
          {}, {"Stride mismatch: expected rows side by side, at a stride of ", all.columns, ", but got ",
               expert_ids.stride(0)});
    of_x = for_neighbours(of_x, expert_ids.size(1));
    of_ids.ndim = 1;
    of_ids.shape = &num_ids;
    of_ids.strides = nullptr;  // side by side
  }
  const TensorView ids(&of_ids);
  const auto of_output = rows("output", output).typed_as(of_x);
  if (weight.ndim() == 3 && weight.stride(2) != 1 && weight.size(2) > 1 &&
      (weight.stride(1) == 1 || weight.size(1) == 1))
    return by_columns(of_x, weight, ids, bias, of_output);
  const auto matrices = indexed(heads("weight", weight).typed_as(of_x), "expert_ids", ids);
  const auto result = heads("output", output, 1);
  if (!bias) {
    using F = moe::Matvec;
    return matvec({}, F::x = repeated(of_x), F::weight = matrices, F::output = result);
  }
  using F = moe::BiasedMatvec;
  biased_matvec(
      {}, F::x = repeated(of_x), F::weight = matrices,
      F::bias = indexed(bias_of(*bias, of_x, weight), "expert_ids", ids), F::output = result);
}

}  // namespace

SGL_EXPORT(expert_matvec, (expert_matvec))
