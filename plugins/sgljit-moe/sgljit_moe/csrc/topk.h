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

struct Sigmoid {
  template <typename Row, typename Value>
  SGL_HD static Sigmoid of(const Row&, const Value&, bool) {
    return {};
  }
  SGL_HD float operator()(float gate) const {
    return 1 / (1 + sgl::exp(-gate));
  }
};

struct Softmax {
  float largest, factor;

  /// \param is_whole whether the scores of all experts have a sum of 1.
  template <typename Row, typename Value>
  SGL_HD static Softmax of(const Row& row, const Value& gates, bool is_whole) {
    const float largest = row.max([](float gate) { return gate; }, gates);
    if (!is_whole) return {largest, 1};
    return {largest, 1 / row.sum([=](float gate) { return sgl::exp(gate - largest); }, gates)};
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
    const auto score = Score::of(row, values, kBiased || !renormalizes);
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
