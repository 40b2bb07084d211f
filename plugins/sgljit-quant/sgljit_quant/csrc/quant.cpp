/// \file quant.cpp
/// \brief The host part of quantisation: the functions that Python calls, the checks, and the choice of kernels.

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/variant.h>

#include "quant.h"

namespace {

using namespace host;
using quant::kBlockThreads, quant::kMaxThreads, quant::kMaxUnits;

Deferred<float(const void*, std::int64_t, std::int64_t, std::int64_t, DLDataType)> scale_on_cpu{
    "quant_cpu.cpp", "quant::scale_on_cpu"};
Kernel<quant::Params> quantize_small{"quant.cuh", "quant::quantize_small"};
Kernel<quant::Params> set_smallest_scale{"quant.cuh", "quant::set_smallest_scale"};
Kernel<quant::Params> raise_scale{"quant.cuh", "quant::raise_scale"};
RowProgram<quant::Quantized<sgl::GivenScale>> by_given{"quant.h"};
RowProgram<quant::Quantized<sgl::RowScale>> by_row{"quant.h"};
RowProgram<quant::QuantizedGroups<sgl::RowScale>> by_group{"quant.h"};
RowProgram<quant::QuantizedGroups<sgl::RowPower>> by_group_power{"quant.h"};
RowProgram<quant::PackedGroups> by_word{"quant.h"};
RowProgram<quant::PackedGroups, 2> by_word_and_rest{"quant.h"};
RowProgram<quant::QuantizedGroups<sgl::GroupScale<128>>> by_groups{"quant.h"};
RowProgram<quant::QuantizedGroups<sgl::GroupPower<128>>> by_groups_power{"quant.h"};

template <typename T>
inline constexpr const char* kTokenOp = "per_token_quant_fp8";
template <>
inline constexpr const char* kTokenOp<std::int8_t> = "per_token_quant_int8";
template <typename T>
inline constexpr const char* kGroupOp = "per_token_group_quant_fp8";
template <>
inline constexpr const char* kGroupOp<std::int8_t> = "per_token_group_quant_int8";

/// Checks the rules that the row operations leave to the ops: one shape for input and output, the output's dtype, and
/// the scales.
/// \tparam T of the output.
/// \throws TensorMatchError naming the tensor and the rule; ValueError if the scales share memory or are not aligned.
template <typename T>
void check(const char* op, const Rows& input, const Rows& output_q, const TensorView& scales, bool per_row) {
  const auto& x = input.tensor;
  const auto& q = output_q.tensor;
  const auto rank = x.ndim();
  const auto refuse = [&](const auto&... rule) { throw Error(kTensorMatchError, op, ": ", rule...); };
  const auto begins_as_input = [&](const TensorView& tensor, std::int32_t num_dims) {
    if (tensor.ndim() < num_dims) return false;
    for (std::int32_t i = 0; i < tensor.ndim(); ++i) {
      if (tensor.size(i) != (i < num_dims ? x.size(i) : 1)) return false;
    }
    return true;
  };
  if (!is_type<T>(q.dtype())) [[unlikely]]
    refuse("output_q must be ", dtype_of<T>::value, ", got ", q.dtype(), ": ", q);
  if (q.ndim() != rank || !begins_as_input(q, rank)) [[unlikely]]
    refuse("output_q must have the shape of input: output_q is ", q, ", input is ", x);
  if (!is_type<float>(scales.dtype())) [[unlikely]]
    refuse("output_s must be float32, got ", scales.dtype(), ": ", scales);
  if (!host::operator==(scales.device(), x.device())) [[unlikely]]
    refuse("output_s must be on the device of input, ", x.device(), ", got ", scales.device(), ": ", scales);
  if (!scales.is_contiguous()) [[unlikely]]
    refuse("output_s must be contiguous: ", scales);
  if (widest_word(scales.data_ptr()) < std::int64_t{sizeof(float)}) [[unlikely]]
    throw Error("ValueError", op, ": output_s: its address is not a multiple of its element size, 4 bytes: ", scales);
  if (!per_row && scales.numel() != 1) [[unlikely]]
    refuse("output_s must have one element: ", scales);
  if (per_row && (scales.ndim() > rank || !begins_as_input(scales, rank - 1))) [[unlikely]]
    refuse(
        "output_s must have one element for each row of input, and the shape of input, with a last dimension of 1 or "
        "without it: output_s is ",
        scales, ", input is ", x);
  const MemoryRows written(scales.data_ptr(), scales.numel() * std::int64_t{sizeof(float)});
  for (const auto* rows : {&input, &output_q}) {
    if (rows_meet(written, rows->memory())) [[unlikely]]
      throw Error(
          "ValueError", op, ": output_s shares memory with ", rows->name, ": input is ", x, ", output_q is ", q,
          ", output_s is ", scales);
  }
}

/// The number of threads, one to `most`, rounded up to whole warps.
std::int64_t in_warps(std::int64_t threads, std::int64_t most) {
  return threads < 32 ? 32 : threads < most ? div_ceil(threads, 32) * 32 : most;
}

/// Computes the scale of a tensor on CUDA. Returns whether `output_q` is computed as well.
bool scale_on_cuda(const Rows& input, const Rows& output_q, float* scale, DebugInfo location) {
  constexpr std::int64_t kMaxClusterBlocks = 8;
  const auto device = input.tensor.device();
  const auto dtype = input.tensor.dtype();
  const bool pdl = runtime::has_pdl(device.device_id);
  const auto bytes = input.element_bytes();
  // As many elements as one load and one store of a byte each move at any row.
  const auto q_stride = output_q.count > 1 ? output_q.stride : 0;
  const auto word = widest_word(input.data, input.count > 1 ? input.stride * bytes : 0);
  const auto elements = widest_word(word / bytes, output_q.data, q_stride);
  const auto vectors = div_ceil(input.columns, elements);
  const bool has_tail = input.columns % elements != 0;
  quant::Params params = {
      .input = input.data,
      .stride = input.stride * bytes,
      .num_rows = input.count,
      .vectors = vectors,
      .chunks = 0,
      .tail = static_cast<unsigned>(input.columns % elements),
      .output = output_q.data,
      .scale = scale,
  };
  const auto launch = [&](std::int64_t blocks, std::int64_t threads, const VariantOf<quant::Params>& kernel,
                          std::int64_t cluster = 1) {
    LaunchKernel(blocks, threads, device, 0, location).enable_cluster(cluster).enable_pdl(pdl)(kernel, params);
  };
  const auto max_blocks = pdl ? kMaxClusterBlocks : 1;  // clusters need sm_90, too
  if (input.count == 1 && vectors > 0 && vectors <= max_blocks * kMaxThreads * kMaxUnits) {
    constexpr std::int64_t kThreads = 512;  // enough; a barrier of 1024 takes longer
    std::int64_t blocks = 1;
    while (blocks < max_blocks && blocks * kThreads < vectors) blocks *= 2;
    const auto threads = in_warps(div_ceil(vectors, blocks), kMaxThreads);
    launch(blocks, threads, quantize_small.get(elements, has_tail, blocks > 1, dtype), blocks);
    return true;
  }
  launch(1, 1, set_smallest_scale.get());
  if (input.count == 0 || vectors == 0) return false;
  const auto threads = in_warps(div_ceil(vectors, std::int64_t{kMaxUnits}), kBlockThreads);
  params.chunks = div_ceil(vectors, threads * kMaxUnits);
  const auto most = std::int64_t{8} * runtime::get_sm_count(device.device_id);
  const auto blocks = params.num_rows * params.chunks;
  launch(blocks < most ? blocks : most, threads, raise_scale.get(elements, has_tail, dtype));
  return false;
}

/// q = x * (1 / scale) in e4m3, saturating, with one given or computed scale; on CUDA on the current stream.
void per_tensor_quant_fp8(TensorView input, TensorView output_q, TensorView output_s, bool is_static) {
  using F = quant::Quantized<sgl::GivenScale>;
  const DebugInfo location;
  // A row extends until input or output has a gap.
  const auto row_dims = dense_dims(input) < dense_dims(output_q) ? dense_dims(input) : dense_dims(output_q);
  const auto rank = input.ndim() < output_q.ndim() ? input.ndim() : output_q.ndim();
  const auto dims = row_dims > 0 || rank == 0 ? row_dims : 1;
  const auto x = rows("input", input, dims).floats();
  const auto q = rows("output_q", output_q, dims);
  check<__nv_fp8_e4m3>("per_tensor_quant_fp8", x, q, output_s, false);
  auto scale = rows("output_s", output_s, output_s.ndim());
  scale.is_shared = true;
  if (!is_static) {
    by_given.check({}, F::x = x, F::q = q, F::scale = scale);
    auto* computed = static_cast<float*>(output_s.data_ptr());
    if (input.device().device_type == kDLCPU)
      *computed = scale_on_cpu(x.data, x.stride * x.element_bytes(), x.count, x.columns, input.dtype());
    else if (scale_on_cuda(x, q, computed, location)) return;
  }
  by_given({}, F::x = x, F::q = q, F::scale = scale);
}

/// The same with one computed scale for each row.
/// \tparam T of output_q.
template <typename T>
void per_token_quant(TensorView input, TensorView output_q, TensorView output_s) {
  using F = quant::Quantized<sgl::RowScale>;
  if (input.ndim() == 0)
    throw Error(kTensorMatchError, kTokenOp<T>, ": input must have at least one dimension: ", input);
  const auto x = rows("input", input).floats();
  auto q = rows("output_q", output_q);
  q.takes_bytes = true;
  check<T>(kTokenOp<T>, x, q, output_s, true);
  by_row({}, F::x = x, F::q = q, F::scale = rows("output_s", output_s, output_s.ndim() - (input.ndim() - 1)));
}

/// Refuses an `eps` that no magnitude has.
float checked_eps(const char* op, double eps) {
  if (!(eps >= 0)) [[unlikely]]
    throw Error("ValueError", op, ": eps must be at least 0, got ", eps);
  return static_cast<float>(eps);
}

/// Refuses exponents of other groups, and of scales that need not be powers of two.
void check_exponents(const char* op, std::int64_t group_size, bool scale_ue8m0) {
  constexpr std::int64_t kGroup = PackedExponents::kGroup;
  if (group_size != kGroup || !scale_ue8m0) [[unlikely]]
    throw Error(
        "ValueError", op, ": output_s of int32 holds exponents of groups of ", kGroup,
        ", so it needs group_size=", kGroup, " and scale_ue8m0=True, got group_size=", group_size,
        ", scale_ue8m0=", scale_ue8m0 ? "True" : "False");
}

/// The same with one computed scale for each group of `group_size` elements of a row. If `output_s` is int32, its words
/// get four exponents each; the bytes of a last word beyond the groups are left.
/// \tparam T of output_q.
template <typename T>
void per_token_group_quant(
    TensorView input, TensorView output_q, TensorView output_s, std::int64_t group_size, double eps, bool scale_ue8m0) {
  using F = quant::PackedGroups;
  const auto least = checked_eps(kGroupOp<T>, eps);
  const auto x = rows("input", input).floats();
  auto q = rows_like(x, "output_q", output_q).typed<T>();
  q.takes_bytes = true;
  if (__is_same(T, __nv_fp8_e4m3) && is_type<std::int32_t>(output_s.dtype())) {
    check_exponents(kGroupOp<T>, group_size, scale_ue8m0);
    const PackedExponents packed(x, "output_s", output_s);
    return packed.run(by_word, by_word_and_rest, {least}, [&](const auto& part, const Rows& exponents) {
      return by_word.rows(F::x = part.of(x), F::q = part.of(q), F::scale = exponents);
    });
  }
  const auto groups = in_groups(x, group_size);
  const auto run = [&](auto& program) {
    program(
        {least}, F::x = groups, F::q = in_groups(q, group_size), F::scale = of_groups(scales("output_s", output_s)));
  };
  if (scale_ue8m0) run(by_group_power);
  else run(by_group);
}

void per_token_group_quant_int8(
    TensorView input, TensorView output_q, TensorView output_s, std::int64_t group_size, double eps) {
  per_token_group_quant<std::int8_t>(input, output_q, output_s, group_size, eps, false);
}

/// The same of the first `counts[e]` rows of each expert e, in groups of 128.
void masked_group_quant_fp8(
    TensorView input, TensorView output_q, TensorView output_s, TensorView counts, double eps, bool scale_ue8m0) {
  using F = quant::PackedGroups;
  const char* op = "masked_group_quant_fp8";
  const auto least = checked_eps(op, eps);
  const auto x = counted(heads("input", input).floats(), "counts", counts);
  const auto q = heads("output_q", output_q).typed<__nv_fp8_e4m3>();
  const auto run = [&](auto& program, const Rows& scale) { program({least}, F::x = x, F::q = q, F::scale = scale); };
  if (is_type<std::int32_t>(output_s.dtype())) {
    check_powers(op, output_s, scale_ue8m0);
    return run(by_word, PackedExponents(x, "output_s", output_s, 3).of_rows());
  }
  const auto scale = scales("output_s", output_s, 3);
  if (scale_ue8m0) run(by_groups_power, scale);
  else run(by_groups, scale);
}

}  // namespace

SGL_EXPORT(masked_group_quant_fp8, (masked_group_quant_fp8))
SGL_EXPORT(per_tensor_quant_fp8, (per_tensor_quant_fp8))
SGL_EXPORT(per_token_quant_fp8, (per_token_quant<__nv_fp8_e4m3>))
SGL_EXPORT(per_token_quant_int8, (per_token_quant<std::int8_t>))
SGL_EXPORT(per_token_group_quant_fp8, (per_token_group_quant<__nv_fp8_e4m3>))
SGL_EXPORT(per_token_group_quant_int8, (per_token_group_quant_int8))
