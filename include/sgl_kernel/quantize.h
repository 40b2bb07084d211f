#pragma once

/// \file quantize.h
/// \brief Row programs whose result is quantised to float8_e4m3fn or int8: q = value * (1 / scale).
///
/// \code
///   host::QuantizedProgram<norms::RMSNorm> program{"norm.h"};  // norm.h has RMSNorm, and includes this header
///   program({eps}, "rmsnorm_quant", x, output_q, output_s, as, F::x = x, F::weight = weight);
/// \endcode
/// Or a program ends with `return Scale::store(row, q, scale, value)`, where `Scale` is `sgl::GivenScale`,
/// `sgl::RowScale`, `sgl::GroupScale<128>`, the same in powers of two, `sgl::RowPower` and `sgl::GroupPower<128>`, or
/// `sgl::GroupExponent<128>`. The dtype of `q` says what a value becomes: the conversion rounds to nearest even,
/// saturates at 448, or at -128 and 127, and keeps NaN, 0 in int8. A maximum ignores NaN.

#include <sgl_kernel/row_program.h>

namespace sgl {

/// \brief `x`, or a bound that it is below; the bound where `x` is NaN, unlike `sgl::max`. One instruction of a device.
SGL_HD float at_least(float x, float bound) {
  return details::Reduce<true>{}(x, bound);
}

/// \brief The scale that makes `limit` of a largest magnitude, bounded so that its inverse is finite and not zero.
SGL_HD float scale_for(float largest, float limit) {
  constexpr float kSmallest = 0x1p-126f, kLargest = 0x1.fffffep127f;
  const float scale = at_least(largest / limit, kSmallest);
  return scale < kLargest ? scale : kLargest;
}

/// \brief The smallest power of two that is not below `scale_for(largest, limit)`, and 2^127 at most.
///
/// It needs no division: `largest / limit` is above 2^k, rounded or not, exactly if `largest` is above limit * 2^k. The
/// bits of `largest` less those of `limit` are the exponent of the quotient, and a fraction unless it is a power of
/// two.
SGL_HD float power_for(float largest, float limit) {
  const float bounded = at_least(largest, limit * 0x1p-126f);
  const auto quotient = __builtin_bit_cast(unsigned, bounded) - __builtin_bit_cast(unsigned, limit) + 0x3f800000;
  const auto power = __builtin_bit_cast(float, (quotient + 0x7fffff) & 0xff800000);
  return bounded > 0x1.fffffep127f ? 0x1p127f : power;
}

/// \brief 1 / x of a power of two from 2^-126 to 2^127, exactly, without a division.
SGL_HD float inverse_of_power(float x) {
  // The exponent is negated; that of 2^127 becomes the subnormal 2^-127.
  const auto bits = 0x7f000000u - __builtin_bit_cast(unsigned, x);
  return __builtin_bit_cast(float, bits == 0 ? 0x00400000u : bits);
}

/// \brief One scale for all rows, which is read.
struct GivenScale {
  static constexpr bool kIsComputed = false;

  /// \param others more outputs, `residual = sum`.
  template <typename Row, int kQ, int kScale, typename Value, typename... Others>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScale> scale, const Value& value, const Others&... others) {
    const float inverse = 1 / row.value(scale);
    return sgl::store(others..., q = sgl::map([=](float v) { return v * inverse; }, value));
  }
};

/// \brief What is written as a scale: the quotient of `scale_for`, the power of two of `power_for`, or the exponent of
/// that plus 127, which is a float8_e8m0fnu, to a byte.
enum class ScaleForm { kQuotient, kPower, kExponent };

/// \brief A scale for each group of `kGroup` neighbours of a row, or with 0 for each row, which is written.
template <ScaleForm kForm, int kGroup = 0>
struct ComputedScale {
  static constexpr bool kIsComputed = true;

  /// \param least the scale is that of a magnitude of at least so much; 0 where it is left out.
  template <typename Row, int kQ, int kScale, typename Value, int... kOther, typename... T>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScale> scale, const Value& value, float least,
      const Bound<kOther, T>&... others) {
    const float limit = row.largest_of(q);
    const auto largest = s_largest(row, value);
    const auto found = s_once(row, [=](float v) { return s_scale_for(at_least(v, least), limit); }, largest);
    const auto inverse = s_once(row, [](float v) { return s_inverse(v); }, found);
    return sgl::store(others..., q = s_product(value, inverse), scale = s_stored(found));
  }
  template <typename Row, int kQ, int kScale, typename Value, int... kOther, typename... T>
  SGL_HD static auto store(
      const Row& row, Operand<kQ> q, Operand<kScale> scale, const Value& value, const Bound<kOther, T>&... others) {
    return store(row, q, scale, value, 0.0f, others...);
  }

 private:
  template <typename Row, typename Value>
  SGL_HD static auto s_largest(const Row& row, const Value& value) {
    const auto magnitude = [](float v) { return sgl::abs(v); };
    if constexpr (kGroup == 0) return row.max(magnitude, value);
    else return row.max(groups_of<kGroup>, magnitude, value);
  }
  /// `f` of the row's number, or of the number of each group.
  template <typename Row, typename F, typename Of>
  SGL_HD static auto s_once(const Row& row, const F& f, const Of& of) {
    if constexpr (kGroup == 0) return f(of);
    else return row.keep(sgl::map(f, of));
  }
  template <typename Value, typename Factor>
  SGL_HD static auto s_product(const Value& value, const Factor& factor) {
    if constexpr (kGroup == 0) return sgl::map([=](float v) { return v * factor; }, value);
    else return sgl::map([](float v, float of_group) { return v * of_group; }, value, factor);
  }
  template <typename Found>
  SGL_HD static auto s_stored(const Found& found) {
    if constexpr (kForm != ScaleForm::kExponent) return found;
    else return sgl::map([](float power) { return float(__builtin_bit_cast(unsigned, power) >> 23); }, found);
  }
  SGL_HD static float s_scale_for(float largest, float limit) {
    return kForm == ScaleForm::kQuotient ? scale_for(largest, limit) : power_for(largest, limit);
  }
  SGL_HD static float s_inverse(float scale) {
    return kForm == ScaleForm::kQuotient ? 1 / scale : inverse_of_power(scale);
  }
};
using RowScale = ComputedScale<ScaleForm::kQuotient>;
using RowPower = ComputedScale<ScaleForm::kPower>;
template <int kSize>
using GroupScale = ComputedScale<ScaleForm::kQuotient, kSize>;
template <int kSize>
using GroupPower = ComputedScale<ScaleForm::kPower, kSize>;
template <int kSize>
using GroupExponent = ComputedScale<ScaleForm::kExponent, kSize>;

/// \brief The program `F` with its result quantised: what it stores last, to `out` or else to its first operand. Stored
/// there, the result leaves its own operand as it is.
/// \tparam kRounds whether the result is rounded to the dtype of the first operand before.
/// \tparam kKeeps whether the result is kept where a scale is computed of it: to compute it again would take longer.
template <typename F, typename Scale, bool kRounds, bool kKeeps = false>
struct Quantized : F {
 public:
  static constexpr int kResult = [] {
    if constexpr (requires { F::sgl_number_of_out; }) return int{F::sgl_number_of_out};
    else return 0;
  }();
  static constexpr int kQ = kResult > 0 ? kResult : F::kOperands;
  static constexpr int kScale = F::kOperands + (kResult == 0);
  static constexpr int kOperands = kScale + 1;
  static constexpr Operand<kQ> q{};  // nvcc has these on a device, as the class is a template
  static constexpr Operand<kScale> scale{};

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return s_quantized(row, F::operator()(row));
  }

 private:
  template <typename Row, typename... Output>
  SGL_HD static auto s_quantized(const Row& row, const Stores<Output...>& stores) {
    return s_quantized(row, stores.outputs, details::IndexListUpTo<sizeof...(Output) - 1>{});
  }
  template <typename Row, typename Outputs, details::size_t... kOther>
  SGL_HD static auto s_quantized(const Row& row, const Outputs& outputs, details::IndexList<kOther...>) {
    const auto& result = s_value(details::get<sizeof...(kOther)>(outputs));
    const auto run = [&](const auto& value) {
      return Scale::store(row, q, scale, value, details::get<kOther>(outputs)...);
    };
    if constexpr (kRounds) return run(s_kept(row, row.round(Operand<0>{}, result)));
    else return run(s_kept(row, result));
  }
  template <typename Row, typename Value>
  SGL_HD static auto s_kept(const Row& row, const Value& value) {
    if constexpr (kKeeps && Scale::kIsComputed) return row.keep(value);
    else return value;
  }
  template <typename Value>
  SGL_HD static const Value& s_value(const Bound<kResult, Value>& result) {
    return result.value;
  }
};

}  // namespace sgl

#if !defined(__CUDACC__)

namespace host {

/// \brief The rows of a tensor of float8_e4m3fn or int8, one for each of `like`.
/// \throws TensorMatchError as `rows_like`, and if the tensor has another dtype.
inline Rows quantized_rows(const Rows& like, const char* name, const TensorView& tensor, DebugInfo location = {}) {
  auto result = rows_like(like, name, tensor, location).typed<__nv_fp8_e4m3, std::int8_t>(location);
  result.takes_bytes = true;
  return result;
}

/// \brief A tensor [rows, n] of float32 with any strides: the scales of rows, or of the groups of each.
/// \throws TensorMatchError if it has another dtype or number of dimensions.
inline Rows scales(const char* name, const TensorView& tensor, int dims = 2, DebugInfo location = {}) {
  return values(name, tensor, dims, location).typed<float>(location);
}

/// \brief The one scale of all rows, a tensor [1] of float32.
/// \throws TensorMatchError if it has another dtype or number of dimensions.
inline Rows given_scale(const char* name, const TensorView& tensor, DebugInfo location = {}) {
  return shared_row(name, tensor, location).typed<float>(location);
}

/// \brief The scales of `in_groups`: a value for each group.
inline Rows of_groups(const Rows& scales) {
  auto result = scales;
  result.inner = scales.columns;
  result.inner_stride = scales.element_stride;
  result.columns = result.element_stride = 1;
  return result;
}

/// \brief Refuses packed exponents of scales that need not be powers of two.
/// \throws ValueError with the name of the op.
inline void check_powers(const char* op, const TensorView& output_s, bool scale_ue8m0) {
  if (is_type<std::int32_t>(output_s.dtype()) && !scale_ue8m0) [[unlikely]]
    throw Error("ValueError", op, ": output_s of int32 holds exponents of scales, so it needs scale_ue8m0=True");
}

/// \brief A tensor [rows, ceil(groups / 4)] of int32 with any strides: the exponents of groups of 128, four to a word,
/// the first in its lowest byte. Bytes of a last word beyond the groups are left.
struct PackedExponents {
 public:
  static constexpr std::int64_t kWord = 4, kGroup = 128;

  /// Words of each row, from number `first` on, which have `groups` groups each.
  struct Part {
    std::int64_t first, words, groups;

    /// \brief The groups of each word as a row of its own.
    Rows of(const Rows& rows) const {
      const auto size = groups * kGroup;
      return in_groups(rows.slice(first * kWord * kGroup, words * size), size);
    }
  };

  /// \param dims as in `values`.
  /// \throws TensorMatchError if it does not fit to `like`.
  PackedExponents(const Rows& like, const char* name, const TensorView& tensor, int dims = 2, DebugInfo location = {})
      : m_groups(div_ceil(like.columns, kGroup)), m_bytes(values(name, tensor, dims, location)) {
    const auto count = div_ceil(m_groups, kWord);
    if (like.columns % kGroup != 0 || m_bytes.count != like.count || m_bytes.columns != count) [[unlikely]] {
      Message shape;
      shape << like.count << ", ";
      if (dims == 3) shape << like.inner << ", ";
      shape << count;
      m_bytes.raise(
          location, {"Size mismatch: expected [", shape.c_str(), "], a word for each ", kWord * kGroup,
                     " elements of a row of whole groups of ", kGroup, "; ", like.name, " has ", like.columns});
    }
    m_bytes.dtype = dtype_of<std::uint8_t>::value;
    m_bytes.takes_bytes = true;
    for (auto* stride : {&m_bytes.stride, &m_bytes.inner_stride, &m_bytes.element_stride}) *stride *= kWord;
  }

  /// \brief For a program of whole rows.
  Rows of_rows() const {
    auto result = m_bytes;
    result.columns = m_groups;
    result.is_packed = true;
    return result;
  }
  /// \brief For a program of rows of up to four groups: calls it with the rows `bind(part, exponents)`, in one launch.
  template <typename F, typename Layout, typename Bind>
  void run(RowProgram<F, 1, Layout>& of_one, RowProgram<F, 2, Layout>& of_two, const F& f, const Bind& bind) const {
    const auto rest = m_groups % kWord;
    const Part whole = {0, m_groups / kWord, kWord}, last = {whole.words, 1, rest};
    const auto rows = [&](const Part& part) {
      auto bytes = m_bytes;
      bytes.columns = part.groups;
      bytes.inner = part.words;
      bytes.inner_stride = m_bytes.element_stride;
      bytes.element_stride = 1;
      bytes.data = static_cast<char*>(m_bytes.data) + part.first * bytes.inner_stride;
      return bind(part, bytes);
    };
    if (rest == 0) return of_one(f, {rows(whole)});
    if (whole.words == 0) return of_one(f, {rows(last)});
    of_two(f, {rows(whole), rows(last)});
  }

 private:
  std::int64_t m_groups;
  Rows m_bytes;
};

/// \brief How an op quantises its result; Python passes the fields one after the other.
struct QuantizedAs {
  bool is_static;    ///< whether there is one scale, which is given
  bool round_first;  ///< whether the result is rounded to the dtype of the program's first operand before
  bool scale_ue8m0;  ///< whether a computed scale is rounded up to a power of two
  SGL_FIELDS(is_static, round_first, scale_ue8m0)
};

/// \brief A program of rows that are quantised.
/// \tparam kIsMap as in `QuantizedProgram`. Such a program is taken to be slow: its elements are kept, and have many
/// threads.
template <typename F, typename Scale, bool kRounds, bool kIsMap, int kSegments = 1>
using QuantizedRowProgram =
    RowProgram<sgl::Quantized<F, Scale, kRounds, kIsMap>, kSegments, sgl::ChooseLayoutOf<kIsMap>>;

/// \brief A program `F` whose result is quantised in each of these ways, see `sgl::Quantized`. A global variable.
///
/// There is one scale, which is given, or one for each row or each 128 neighbours, which is written.
/// \tparam kIsMap whether `F` computes each element from the same element of its operands, which all have rows as its
///   result. Then a group may have any address; else it is of whole loads.
/// \tparam Rounded runs with `round_first`: `F`, or a program with its operands and fields that also rounds between.
template <typename F, bool kIsMap = false, typename Rounded = F>
struct QuantizedProgram {
 public:
  /// \param file that includes this header and the functor's, relative to the family's csrc; a literal.
  explicit constexpr QuantizedProgram(const char* file) noexcept : m_exact{file}, m_rounded{file} {}

  /// \brief As a row program, but for the result's operand, which is bound here.
  /// \param op its name, in errors.
  /// \param like an operand with rows as those of the result.
  /// \throws TensorMatchError naming the tensor and the rule; ValueError if the scales are not as `as` says.
  template <int... kIndex>
  void operator()(
      const F& f, const char* op, const Rows& like, const TensorView& output_q, const TensorView& output_s,
      const QuantizedAs& as, const sgl::Bound<kIndex, Rows>&... bound) {
    if (as.is_static && as.scale_ue8m0) [[unlikely]]
      throw Error("ValueError", op, ": scale_ue8m0 is for scales that are computed: leave it out with is_static");
    if (!as.is_static) check_powers(op, output_s, as.scale_ue8m0);
    const auto q = quantized_rows(like, "output_q", output_q, like.location);
    if (as.round_first) s_run(m_rounded, __builtin_bit_cast(Rounded, f), like, output_s, as, Names::q = q, bound...);
    else s_run(m_exact, f, like, output_s, as, Names::q = q, bound...);
  }

 private:
  static constexpr auto kGroup = PackedExponents::kGroup;

  /// A program for each kind of scale. With `kRounds` each rounds its result first.
  template <typename Of, bool kRounds>
  struct Programs {
    template <typename Scale, int kSegments = 1>
    using By = QuantizedRowProgram<Of, Scale, kRounds, kIsMap, kSegments>;

    const char* file;
    By<sgl::GivenScale> given{file};
    By<sgl::RowScale> row{file};
    By<sgl::RowPower> row_power{file};
    By<sgl::GroupScale<kGroup>> group{file};
    By<sgl::GroupPower<kGroup>> group_power{file};
    By<sgl::GroupExponent<kGroup>> packed{file};
    By<sgl::GroupExponent<kGroup>, 2> packed_and_rest{file};
  };
  using Names = sgl::Quantized<F, sgl::GivenScale, false>;

  template <typename Of, bool kRounds, int... kIndex>
  static void s_run(
      Programs<Of, kRounds>& by, const Of& f, const Rows& like, const TensorView& output_s, const QuantizedAs& as,
      const sgl::Bound<kIndex, Rows>&... bound) {
    const auto location = like.location;
    const auto call = [&](auto& program, const Rows& scale, const auto&... of) {
      program({f}, of..., Names::scale = scale);
    };
    const auto call_one = [&](auto& program, auto& of_powers, const Rows& scale, const auto&... of) {
      as.scale_ue8m0 ? call(of_powers, scale, of...) : call(program, scale, of...);
    };
    if (as.is_static) return call(by.given, given_scale("output_s", output_s, location), bound...);
    if (is_type<std::int32_t>(output_s.dtype())) {
      const PackedExponents packed(like, "output_s", output_s, 2, location);
      if constexpr (!kIsMap) return call(by.packed, packed.of_rows(), bound...);
      else
        return packed.run(by.packed, by.packed_and_rest, {f}, [&](const auto& part, const Rows& exponents) {
          return by.packed.rows(sgl::Bound<kIndex, Rows>{part.of(bound.value)}..., Names::scale = exponents);
        });
    }
    const auto scale = scales("output_s", output_s, 2, location);
    if (scale.columns == 1) return call_one(by.row, by.row_power, of_groups(scale), bound...);
    if constexpr (!kIsMap) call_one(by.group, by.group_power, scale, bound...);
    else call_one(by.row, by.row_power, of_groups(scale), sgl::Bound<kIndex, Rows>{in_groups(bound.value, kGroup)}...);
  }

  Programs<F, false> m_exact;
  Programs<Rounded, true> m_rounded;
};

}  // namespace host

#endif
