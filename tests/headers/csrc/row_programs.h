// example: row_program_functor
#pragma once

#include <sgl_kernel/row_program.h>

namespace programs {

struct Softmax {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const float largest = row.max([](float v) { return v; }, values);
    const float sum = row.sum([=](float v) { return sgl::exp(v - largest); }, values);
    return sgl::store(out = sgl::map([=](float v) { return sgl::exp(v - largest) / sum; }, values));
  }
};

}  // namespace programs
// end

#include <sgl_kernel/ranking.h>
#include <sgl_kernel/stages.h>

namespace programs {

struct Square {
  SGL_HD float operator()(float x) const {
    return x * x;
  }
};

struct RMSNorm {
  SGL_OPERANDS(x, weight, out)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const float factor = sgl::rsqrt(row.sum(Square{}, values) * (1 / row.size()) + eps);
    return sgl::store(out = sgl::map([=](float v, float w) { return v * factor * w; }, values, weights));
  }
};

struct FusedAddRMSNorm {
  SGL_OPERANDS(x, residual, weight)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto weights = row[weight];
    const auto sum = row.keep(residual, sgl::map([](float a, float b) { return a + b; }, row[x], row[residual]));
    const float factor = sgl::rsqrt(row.sum(Square{}, sum) * (1 / row.size()) + eps);
    const auto normed = sgl::map([=](float v, float w) { return v * factor * w; }, sum, weights);
    return sgl::store(residual = sum, x = normed);
  }
};

struct LayerNorm {
  SGL_OPERANDS(x, weight, bias, out)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const auto biases = row[bias];
    const float mean = row.rough_mean(x);
    const auto sums = row.sum([=](float v) { return sgl::Values<2>{{(v - mean) * (v - mean), v - mean}}; }, values);
    const float missing = sums.values[1] / row.size();
    const float factor = sgl::rsqrt(sgl::max(sums.values[0] / row.size() - missing * missing, 0) + eps);
    return sgl::store(
        out = sgl::map(
            [=](float v, float w, float b) { return (v - mean - missing) * factor * w + b; }, values, weights, biases));
  }
};

// A scale for each row, and one for each group of a row.
struct PerToken {
  SGL_OPERANDS(x, out, scale)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const float found = sgl::max(row.max([](float v) { return sgl::abs(v); }, values) / 448.0f, 0x1p-126f);
    return sgl::store(out = sgl::map([=](float v) { return v / found; }, values), scale = found);
  }
};

template <int kSize>
struct PerGroup {
  SGL_OPERANDS(x, out, scales)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto largest = row.max(sgl::groups_of<kSize>, [](float v) { return sgl::abs(v); }, values);
    const auto found = sgl::map([](float v) { return sgl::max(v / 448.0f, 0x1p-126f); }, largest);
    return sgl::store(out = sgl::map([](float v, float scale) { return v / scale; }, values, found), scales = found);
  }
};

struct Copy {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = row[x]);
  }
};

struct Scaled {
  SGL_OPERANDS(x, scale, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const float factor = row.value(scale);
    return sgl::store(out = sgl::map([=](float v) { return v * factor; }, row[x]));
  }
};

template <typename Order>
struct Rope {
  SGL_OPERANDS(x, cos_sin, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    constexpr Order order;
    const auto values = row[x];
    const auto cos = row.of_pairs(order, cos_sin, 0, 2), sin = row.of_pairs(order, cos_sin, 1, 2);
    return sgl::store(out = row.pairs(order, sgl::Rotation{}, values, cos, sin));
  }
};

}  // namespace programs

// example: row_program_prologue
#include <sgl_kernel/stages.h>

namespace programs {

/// RMSNorm of each head, rotation by the token's angles, and a store to a cache; in place as well.
struct Prologue {
  SGL_OPERANDS(x, weight, cos_sin, cache)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const auto cos = row.of_pairs(sgl::neox, cos_sin, 0, 2), sin = row.of_pairs(sgl::neox, cos_sin, 1, 2);
    const auto normed = sgl::rms_normed<false>(row, values, weights, eps);
    const auto rotated = row.pairs(sgl::neox, sgl::Rotation{}, normed, cos, sin);
    return sgl::store(x = rotated, cache = rotated);
  }
};

}  // namespace programs
// end

namespace programs {

struct LargestAt {
  struct State {
    float value;
    int column;
  };
  SGL_HD static State identity() {
    return {-sgl::kInfinity, 0x7fffffff};
  }
  SGL_HD static State of(float value, long long column) {
    return {value, static_cast<int>(column)};
  }
  /// Of equal ones the first.
  SGL_HD static State merge(const State& a, const State& b) {
    return b.value > a.value || (b.value == a.value && b.column < a.column) ? b : a;
  }
};

struct ArgMax {
  SGL_OPERANDS(x, largest, index)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto found = row.reduce(LargestAt{}, row[x]);
    return sgl::store(largest = found.value, index = found.column);
  }
};

/// The largest element and the sum of powers by it, in one pass.
struct SumOfPowers {
  struct State {
    float largest, sum;

    SGL_HD float sum_by(float other) const {
      return largest == other ? sum : sum * sgl::exp(largest - other);
    }
  };
  SGL_HD static State identity() {
    return {-sgl::kInfinity, 0};
  }
  SGL_HD static State of(float value, long long) {
    return {value, 1};
  }
  SGL_HD static State merge(const State& a, const State& b) {
    const float largest = sgl::max(a.largest, b.largest);
    return {largest, a.sum_by(largest) + b.sum_by(largest)};
  }
};

struct OnlineSoftmax {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto found = row.reduce(SumOfPowers{}, values);
    return sgl::store(out = sgl::map([=](float v) { return sgl::exp(v - found.largest) / found.sum; }, values));
  }
};

/// The mean and the squares around it, as Welford merges them.
struct Welford {
  struct State {
    float count, mean, squares;
  };
  SGL_HD static State identity() {
    return {0, 0, 0};
  }
  SGL_HD static State of(float value, long long) {
    return {1, value, 0};
  }
  SGL_HD static State merge(const State& a, const State& b) {
    const float count = a.count + b.count, apart = b.mean - a.mean;
    const float share = count > 0 ? b.count / count : 0;
    return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
  }
};

struct Moments {
  SGL_OPERANDS(x, mean, variance)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto found = row.reduce(Welford{}, row[x]);
    return sgl::store(mean = found.mean, variance = found.squares / row.size());
  }
};

/// The largest element behind another one in the order of `LargestAt`.
struct LargestBehind {
  LargestAt::State last;

  SGL_HD static LargestAt::State identity() {
    return LargestAt::identity();
  }
  SGL_HD LargestAt::State of(float value, long long column) const {
    const bool is_behind = value < last.value || (value == last.value && column > last.column);
    return is_behind ? LargestAt::of(value, column) : identity();
  }
  SGL_HD static LargestAt::State merge(const LargestAt::State& a, const LargestAt::State& b) {
    return LargestAt::merge(a, b);
  }
};

struct Ranked {
  SGL_OPERANDS(x, largest, columns)
  int size;
  SGL_FIELDS(size)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    using State = LargestAt::State;
    const auto values = row[x];
    State last = {sgl::kInfinity, -1};
    const auto ranked = row.list(size, [&](int i) {
      last = row.reduce(LargestBehind{last}, values);
      return State{row.at(x, last.column) + static_cast<float>(i), last.column};
    });
    return sgl::store(
        largest = sgl::map([](const State& one) { return one.value; }, ranked),
        columns = sgl::map([](const State& one) { return one.column; }, ranked));
  }
};

// example: ranking
struct Largest {
  SGL_OPERANDS(x, columns)
  int k;
  SGL_FIELDS(k)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    sgl::RankKey last = 0;
    const auto largest = row.list(k, [&](int) { return last += row.reduce(sgl::NextRanked{last}, values); });
    return sgl::store(columns = sgl::map([](sgl::RankKey key) { return sgl::column_of(key); }, largest));
  }
};
// end

// The stages of a chain: each takes a row, and a value but for the first.
struct Norm {
  float eps;
  SGL_FIELDS(eps)

  template <typename Row, typename Value>
  SGL_HD auto operator()(const Row& row, const Value& value) const {
    const float factor = sgl::rsqrt(row.sum(Square{}, value) * (1 / row.size()) + eps);
    return sgl::map([=](float v) { return v * factor; }, value);
  }
};

struct Chained {
  SGL_OPERANDS(x, out, scale)
  Norm norm;
  SGL_FIELDS(norm)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto normed = row.round(x, norm(row, row[x]));
    const float found = sgl::max(row.max([](float v) { return sgl::abs(v); }, normed) / 448.0f, 0x1p-126f);
    return sgl::store(out = sgl::map([=](float v) { return v / found; }, normed), scale = found);
  }
};

}  // namespace programs

namespace programs {

/// The same in two roundings: the bits of a call of RMSNorm and one of Rope.
struct RoundedPrologue {
  SGL_OPERANDS(x, weight, cos_sin)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const auto cos = row.of_pairs(sgl::neox, cos_sin, 0, 2), sin = row.of_pairs(sgl::neox, cos_sin, 1, 2);
    const float factor = sgl::rsqrt(row.sum(Square{}, values) * (1 / row.size()) + eps);
    const auto normed = sgl::map([=](float v, float w) { return v * factor * w; }, values, weights);
    return sgl::store(x = row.pairs(sgl::neox, sgl::Rotation{}, row.round(x, normed), cos, sin));
  }
};

/// x * scale + shift, as elements of one long row where there are no gaps.
struct Affine {
  SGL_OPERANDS(x, shift, out)
  float scale;
  SGL_FIELDS(scale)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const float factor = scale;
    return sgl::store(out = sgl::map([=](float v, float s) { return v * factor + s; }, row[x], row[shift]));
  }
};

/// x / the number of columns: a map that must not become one long row.
struct Mean {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const float size = row.size();
    return sgl::store(out = sgl::map([=](float v) { return v / size; }, row[x]));
  }
};

/// A program for each segment: q is normalised and rotated in place, k goes to its cache as well, v goes there as it
/// is.
struct Attention {
  SGL_OPERANDS(x, weight, cos_sin, cache)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto rotated(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    const auto cos = row.of_pairs(sgl::neox, cos_sin, 0, 2), sin = row.of_pairs(sgl::neox, cos_sin, 1, 2);
    const float factor = sgl::rsqrt(row.sum(Square{}, values) * (1 / row.size()) + eps);
    const auto normed = sgl::map([=](float v, float w) { return v * factor * w; }, values, weights);
    return row.pairs(sgl::neox, sgl::Rotation{}, normed, cos, sin);
  }
  template <typename Row>
  SGL_HD auto operator()(const Row& row, sgl::Segment<0>) const {
    return sgl::store(x = rotated(row));
  }
  template <typename Row>
  SGL_HD auto operator()(const Row& row, sgl::Segment<1>) const {
    const auto values = rotated(row);
    return sgl::store(x = values, cache = values);
  }
  template <typename Row>
  SGL_HD auto operator()(const Row& row, sgl::Segment<2>) const {
    return sgl::store(cache = row[x]);
  }
};

/// The same, where q and k have one program: q has no cache.
struct AlikeAttention : Attention {
  static constexpr int kAlike = 2;

  template <typename Row, int kNumber>
  SGL_HD auto operator()(const Row& row, sgl::Segment<kNumber>) const {
    static_assert(kNumber != 1);
    if constexpr (kNumber == 0) return Attention::operator()(row, sgl::Segment<1>{});
    else return Attention::operator()(row, sgl::Segment<kNumber>{});
  }
};

struct MostOperands {
  SGL_OPERANDS(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
};
static_assert(MostOperands::kOperands == 15);

}  // namespace programs

namespace programs {

/// Keeps a value for an operand that it does not store.
struct Forgetful {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(out = row.keep(x, row[x]));
  }
};

/// Reads an operand, when it may have stored another already, or that one.
struct ReadsLate {
  SGL_OPERANDS(x, other, out)
  int way;
  SGL_FIELDS(way)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto kept = row.keep(out, row[x]);
    if (way == 0) (void)row[other];
    if (way == 1) (void)row.at(other, 0);
    if (way == 2) (void)row.value(other);
    if (way == 3) (void)row.of_pairs(sgl::neox, other);
    if (way == 4) (void)row.rough_mean(other);
    if (way == 5) (void)row[out];
    return sgl::store(out = kept);
  }
};

/// Has an operand that it neither reads nor stores, and with `kRounds` rounds to its dtype.
template <bool kRounds>
struct Unused {
  SGL_OPERANDS(x, other, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    if constexpr (kRounds) return sgl::store(out = row.round(other, values));
    else return sgl::store(out = values);
  }
};

}  // namespace programs
