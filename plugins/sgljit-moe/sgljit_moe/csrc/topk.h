#pragma once

#include <sgl_kernel/row_program.h>

/// \file topk.h
/// \brief The choice of experts, a program of a row of gates. Read by the C++ compiler for the CPU and by NVRTC.

namespace moe {

/// \brief A number and its column: the larger key is that of the larger number, and among equal ones of the lower
/// column. NaN is below all numbers. No key is 0.
using Key = unsigned long long;

SGL_HD Key key_of(float number, long long column) {
  const auto bits = __builtin_bit_cast(unsigned, number + 0.0f);  // of -0 those of 0
  const auto ordered = bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
  return static_cast<Key>(number != number ? 0 : ordered) << 32 | ~static_cast<unsigned>(column);
}
SGL_HD int column_of(Key key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}
SGL_HD float number_of(Key key) {
  const auto ordered = static_cast<unsigned>(key >> 32);
  return __builtin_bit_cast(float, ordered >> 31 != 0 ? ordered ^ 0x80000000u : ~ordered);  // of 0 a NaN
}

/// \brief A monoid: the distance from a key to the next lower one, which as an unsigned number is the largest of all.
/// That of the highest key is from 0. `kGrouped`: of the columns of some groups.
template <bool kGrouped>
struct Next {
  Key last;
  Key inverse;      ///< 2^32 / size of a group, rounded up
  unsigned groups;  ///< a bit for each

  SGL_HD static Key identity() {
    return 0;
  }
  SGL_HD Key of(float number, long long column) const {
    const Key distance = key_of(number, column) - last;
    const Key is_in_group = groups >> (static_cast<unsigned>(column) * inverse >> 32) & 1;
    return kGrouped ? distance & (0 - is_in_group) : distance;  // without a branch, for the CPU's vectors
  }
  SGL_HD static Key merge(Key a, Key b) {
    return a < b ? b : a;
  }
};

/// \brief A score that each gate has by itself.
struct OfOneGate {
  template <typename Row, typename Value>
  SGL_HD OfOneGate(const Row&, const Value&, bool) {}
};

struct Sigmoid : OfOneGate {
  using OfOneGate::OfOneGate;
  SGL_HD float operator()(float gate) const {
    return 1 / (1 + sgl::exp(-gate));
  }
};

/// \brief The square root of log(1 + exp(gate)), which is `gate` above 0 and log(1 + power), with a power up to 1.
struct SqrtSoftplus : OfOneGate {
  using OfOneGate::OfOneGate;
  SGL_HD float operator()(float gate) const {
    const float power = sgl::exp(-sgl::abs(gate)), ratio = power / (2 + power), square = ratio * ratio;
    // log(1 + power) is 2 artanh(ratio): its series keeps all digits of small powers, and vectorises on the CPU.
    constexpr float kSeries[] = {2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f};
    float sum = 2.0f / 15;
    for (const float term : kSeries) sum = sum * square + term;
    return sgl::sqrt(sgl::max(gate, 0) + ratio * sum);
  }
};

struct Softmax {
  float largest, factor;

  /// \param is_whole whether the scores of all experts have a sum of 1.
  template <typename Row, typename Value>
  SGL_HD Softmax(const Row& row, const Value& gates, bool is_whole)
      : largest(row.max([](float gate) { return gate; }, gates)), factor(1) {
    if (is_whole) factor = 1 / row.sum([largest = largest](float gate) { return sgl::exp(gate - largest); }, gates);
  }
  SGL_HD float operator()(float gate) const {
    return sgl::exp(gate - largest) * factor;
  }
};

/// \brief The experts of a token and their weights. Without a bias the gates are ranked: they have the scores' order.
template <typename Score, bool kBiased, bool kGrouped>
struct TopK {
  SGL_OPERANDS(gates, bias, weights, ids)
  int size, num_groups, topk_group;
  bool renormalizes;
  float scale;
  Key inverse;  ///< 2^32 / size of a group, rounded up
  SGL_FIELDS(size, num_groups, topk_group, renormalizes, scale, inverse)

  struct Chosen {
    int expert;
    float weight;
  };

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[gates];
    const Score score(row, values, kBiased || !renormalizes);
    const auto ranked = m_ranked(row, values, score);
    const auto groups = m_groups(row, ranked);
    Key last = 0;
    float sum = 1e-20f;
    const auto chosen = row.list(size, [&](int) {
      last += row.reduce(Next<kGrouped>{last, inverse, groups}, ranked);
      const Chosen one = {column_of(last), score(row.at(gates, column_of(last)))};
      sum += one.weight;
      return one;
    });
    const float factor = renormalizes ? scale / sum : scale;
    return sgl::store(
        weights = sgl::map([=](const Chosen& one) { return one.weight * factor; }, chosen),
        ids = sgl::map([](const Chosen& one) { return one.expert; }, chosen));
  }

 private:
  template <typename Row, typename Value>
  SGL_HD auto m_ranked(const Row& row, const Value& values, const Score& score) const {
    if constexpr (!kBiased) return values;
    else return row.keep(sgl::map([=](float gate, float more) { return score(gate) + more; }, values, row[bias]));
  }

  /// The bits of the groups to choose from. A group is ranked by its highest expert, or with a bias by the sum of its
  /// two highest.
  template <typename Row, typename Value>
  SGL_HD unsigned m_groups(const Row& row, const Value& ranked) const {
    unsigned groups = 0;
    if constexpr (kGrouped) {
      Key keys[32];
      for (int i = 0; i < num_groups; ++i) {
        const Key first = row.reduce(Next<true>{0, inverse, 1u << i}, ranked);
        float sum = number_of(first);
        if (kBiased) sum += number_of(first + row.reduce(Next<true>{first, inverse, 1u << i}, ranked));
        keys[i] = key_of(sum, i);
      }
      for (int i = 0; i < num_groups; ++i) {
        int better = 0;
        for (int j = 0; j < num_groups; ++j) better += keys[i] < keys[j];
        groups |= static_cast<unsigned>(better < topk_group) << i;
      }
    }
    return groups;
  }
};

}  // namespace moe
