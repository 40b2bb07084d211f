/// \file matvec.cpp
/// \brief The host part of `expert_matvec`.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
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
Kernel<moe::Columns> sum_columns{"matvec.cuh", "moe::sum_columns"};
Deferred<void(const moe::Columns&, std::int64_t, DLDataType, DLDataType)> sum_columns_on_cpu{
    "sum_cpu.cpp", "moe::sum_columns_on_cpu"};

/// The columns of matrices as rows, those of an expert for each element of an index.
Rows columns_of(const TensorView& weight, const TensorView& expert_ids) {
  Rows result = {"weight", weight, weight.data_ptr(), weight.size(0), weight.size(1), weight.stride(0), false};
  result.inner = weight.size(2);
  result.inner_stride = weight.stride(2);
  return indexed(result, "expert_ids", expert_ids);
}

void by_columns(const Rows& x, const TensorView& weight, const TensorView& expert_ids, const Rows& output) {
  const auto columns = columns_of(weight, expert_ids).typed_as(x);
  SymbolicSize num_rows{"rows"}, size{"size"}, elements{"elements"};
  SymbolicDevice device;
  TensorMatcher({num_rows, size}).with_strides({-1, 1}).with_device<kDLCUDA, kDLCPU>(device).verify(x.tensor, "x");
  TensorMatcher({-1, elements, size}).with_strides({-1, 1, -1}).with_device(device).verify(weight, "weight");
  TensorMatcher({num_rows}).verify(expert_ids, "expert_ids");
  TensorMatcher({num_rows, elements}).with_strides({-1, 1}).with_device(device).verify(output.tensor, "output");
  match_index(columns);
  const auto refuse_shared = [&](const MemoryRows& memory, const char* name, const TensorView& tensor) {
    if (rows_meet(output.memory(), memory)) [[unlikely]]
      throw Error(
          "ValueError", "output shares memory with ", name, ": output is ", output.tensor, ", ", name, " is ", tensor);
  };
  refuse_shared(x.memory(), "x", x.tensor);
  refuse_shared(columns.memory(), "weight", weight);
  refuse_shared(rows("expert_ids", expert_ids).memory(), "expert_ids", expert_ids);
  if (rows_overlap(output.memory())) [[unlikely]]
    throw Error("ValueError", "rows of output share memory with each other: output is ", output.tensor);
  if (output.count == 0 || output.columns == 0) return;
  const auto bytes = x.element_bytes();
  const auto of_columns =
      widest_word(columns.data, columns.stride * bytes, columns.inner_stride * bytes, columns.columns * bytes);
  moe::Columns params = {
      .x = x.data,
      .x_stride = x.stride * bytes,
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
  };
  if (device.unwrap().device_type == kDLCPU)
    return sum_columns_on_cpu(params, output.count, weight.dtype(), expert_ids.dtype());
  params.tiles = static_cast<unsigned>(div_ceil(params.vectors, moe::kTile));
  LaunchKernel(output.count * params.tiles, moe::kColumnsThreads, device.unwrap())
      .enable_pdl(runtime::has_pdl(device.unwrap().device_id))(
          sum_columns.get(of_columns / bytes, weight.dtype(), expert_ids.dtype()), params);
}

void expert_matvec(TensorView x, TensorView weight, TensorView expert_ids, TensorView output) {
  using F = moe::Matvec;
  const auto of_x = rows("x", x).floats();
  if (x.ndim() != 2) of_x.raise({}, {"Dimension mismatch: expected 2 but got ", x.ndim()});
  const auto of_output = rows("output", output).typed_as(of_x);
  if (weight.ndim() == 3 && weight.stride(2) != 1 && weight.size(2) > 1 &&
      (weight.stride(1) == 1 || weight.size(1) == 1))
    return by_columns(of_x, weight, expert_ids, of_output);
  matvec(
      {}, F::x = repeated(of_x), F::weight = indexed(heads("weight", weight).typed_as(of_x), "expert_ids", expert_ids),
      F::output = heads("output", output, 1));
}

}  // namespace

SGL_EXPORT(expert_matvec, (expert_matvec))
