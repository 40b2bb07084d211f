/// \file activation_quant.cpp
/// \brief The host part of the activations whose result is quantised: the functions that Python calls.

#include <sgl_kernel/export.h>
#include <sgl_kernel/optional.h>

#include "activation_args.h"

namespace {

using namespace host;
using F = activation::Activated<activation::SiluAndMul>;
using RoundedF = activation::RoundedActivated<activation::Silu>;

/// The program of a row for `round_first`: one whose operands are words rounds by itself.
template <typename Of>
struct WithRounding {
  using type = Of;
};
template <typename Of, bool kIsBfloat>
struct WithRounding<activation::Interleaved<Of, kIsBfloat>> {
  using type = activation::Interleaved<Of, kIsBfloat, true>;
};
template <typename Of>
using rounding_t = typename WithRounding<Of>::type;

template <typename Of>
QuantizedProgram<Of, true, rounding_t<Of>> program{"activation.h"};

template <typename Of, typename Scale, bool kRounds>
QuantizedRowProgram<Of, Scale, kRounds, true> masked{"activation.h"};

/// output_q = `f` of the gate and up of each row / output_s; on CUDA on the current stream.
template <typename Of>
void quantize(
    const Of& f, const char* op, const Rows& gate, const Rows& up, const TensorView& output_q,
    const TensorView& output_s, const QuantizedAs& as) {
  program<Of>(f, op, gate, output_q, output_s, as, Of::gate = gate, Of::up = up);
}

/// What `round_each` asks for: the result is rounded, as the steps before it are.
QuantizedAs rounded(const QuantizedAs& as) {
  return {.is_static = as.is_static, .round_first = true, .scale_ue8m0 = as.scale_ue8m0};
}

void silu_and_mul_quant(TensorView input, TensorView output_q, TensorView output_s, QuantizedAs as, bool round_each) {
  constexpr const char* kOp = "silu_and_mul_quant";
  const auto x = rows("input", input).floats();
  const auto gate = x.part(0, 2), up = x.part(1, 2);
  if (round_each) return quantize(RoundedF{}, kOp, gate, up, output_q, output_s, rounded(as));
  quantize(F{}, kOp, gate, up, output_q, output_s, as);
}

/// Calls `run(f, gate, up)` for the gates and values of rows. Those in turn are one operand, of words of both.
template <typename Run>
void clamped(
    const activation::ClampedSwiGLU& f, const char* op, const Rows& x, const TensorView* up, bool is_interleaved,
    bool round_each, const Run& run) {
  const auto run_with = [&](const Rows& gate, const Rows& values, const auto& exact, const auto& rounded) {
    round_each ? run(rounded, gate, values) : run(exact, gate, values);
  };
  const activation::RoundedClampedSwiGLU each = {f};
  if (!is_interleaved)
    return up != nullptr ? run_with(x, rows_like(x, "up", *up).typed_as(x), f, each)
                         : run_with(x.part(0, 2), x.part(1, 2), f, each);
  if (up != nullptr) [[unlikely]]
    throw Error("ValueError", op, ": is_interleaved is for an input of gates and values in turn: leave up out");
  x.typed<__half, __nv_bfloat16>().part(0, 2);  // refuses an odd size, too
  const auto both = x.in_words(4);
  const auto run_as = [&]<bool kIsBfloat>() {
    using activation::Interleaved;
    run_with(
        both, both, Interleaved<activation::ClampedSwiGLU, kIsBfloat>{f},
        Interleaved<activation::RoundedClampedSwiGLU, kIsBfloat>{each});
  };
  is_type<__half>(x.dtype) ? run_as.template operator()<false>() : run_as.template operator()<true>();
}

/// output_q = clamped_swiglu(gate, up) / output_s, likewise; with `up`, `input` is the gate alone.
void clamped_swiglu_quant(
    TensorView input, TensorView output_q, TensorView output_s, Optional<TensorView> up, double alpha, double limit,
    QuantizedAs as, bool round_each, bool is_interleaved) {
  constexpr const char* kOp = "clamped_swiglu_quant";
  const auto swiglu = checked_swiglu(kOp, alpha, limit);
  const auto run = [&](const auto& f, const Rows& gate, const Rows& values) {
    quantize(f, kOp, gate, values, output_q, output_s, round_each ? rounded(as) : as);
  };
  clamped(swiglu, kOp, rows("input", input).floats(), up ? &*up : nullptr, is_interleaved, round_each, run);
}

/// `quantize` of the first `counts[e]` rows of each expert e, in groups of 128.
/// \param gate whose rows are counted.
template <typename Of>
void quantize_masked(
    const Of& f, const char* op, const Rows& gate, const Rows& up, const TensorView& output_q,
    const TensorView& output_s, bool round_first, bool scale_ue8m0) {
  constexpr int kGroup = PackedExponents::kGroup;
  const auto q = heads("output_q", output_q).typed<__nv_fp8_e4m3>();
  check_powers(op, output_s, scale_ue8m0);
  const auto run = [&]<typename Q, typename Layout>(RowProgram<Q, 1, Layout>& rows_of, const Rows& scale) {
    rows_of(__builtin_bit_cast(Q, f), Of::gate = gate, Of::up = up, Q::q = q, Q::scale = scale);
  };
  const auto run_by = [&]<typename Scale>(Scale, const Rows& scale) {
    round_first ? run(masked<rounding_t<Of>, Scale, true>, scale) : run(masked<Of, Scale, false>, scale);
  };
  if (is_type<std::int32_t>(output_s.dtype()))
    return run_by(sgl::GroupExponent<kGroup>{}, PackedExponents(gate, "output_s", output_s, 3).of_rows());
  const auto scale = scales("output_s", output_s, 3);
  if (scale_ue8m0) return run_by(sgl::GroupPower<kGroup>{}, scale);
  run_by(sgl::GroupScale<kGroup>{}, scale);
}

void silu_and_mul_masked_quant(
    TensorView input, TensorView output_q, TensorView output_s, TensorView counts, bool round_first, bool scale_ue8m0,
    bool round_each) {
  constexpr const char* kOp = "silu_and_mul_masked_quant";
  const auto x = counted(heads("input", input).floats(), "counts", counts);
  const auto gate = x.part(0, 2), up = x.part(1, 2);
  if (round_each) return quantize_masked(RoundedF{}, kOp, gate, up, output_q, output_s, true, scale_ue8m0);
  quantize_masked(F{}, kOp, gate, up, output_q, output_s, round_first, scale_ue8m0);
}

void clamped_swiglu_masked_quant(
    TensorView input, TensorView output_q, TensorView output_s, TensorView counts, double alpha, double limit,
    bool round_first, bool scale_ue8m0, bool round_each, bool is_interleaved) {
  constexpr const char* kOp = "clamped_swiglu_masked_quant";
  const auto swiglu = checked_swiglu(kOp, alpha, limit);
  const auto x = counted(heads("input", input).floats(), "counts", counts);
  const auto run = [&](const auto& f, const Rows& gate, const Rows& values) {
    quantize_masked(f, kOp, gate, values, output_q, output_s, round_first || round_each, scale_ue8m0);
  };
  clamped(swiglu, kOp, x, nullptr, is_interleaved, round_each, run);
}

}  // namespace

SGL_EXPORT(clamped_swiglu_masked_quant, (clamped_swiglu_masked_quant))
SGL_EXPORT(clamped_swiglu_quant, (clamped_swiglu_quant))
SGL_EXPORT(silu_and_mul_masked_quant, (silu_and_mul_masked_quant))
SGL_EXPORT(silu_and_mul_quant, (silu_and_mul_quant))
