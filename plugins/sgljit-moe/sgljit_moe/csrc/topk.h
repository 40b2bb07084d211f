#pragma once

#include <sgl_kernel/ranking.h>
#include <sgl_kernel/stages.h>

/// \file topk.h
/// \brief The choice of experts, a program of a row of gates. Read by the C++ compiler for the CPU and by NVRTC.

namespace moe {

/// \brief For `row.reduce`: as `sgl::NextRanked`, of the columns of some groups.
struct NextOfGroups : sgl::NextRanked {
  sgl::RankKey inverse;  ///< 2^32 / size of a group, rounded up
  unsigned groups;       ///< a bit for each

  SGL_HD sgl::RankKey of(float score, long long column) const {
    const sgl::RankKey is_in_group = groups >> (static_cast<unsigned>(column) * inverse >> 32) & 1;
    return NextRanked::of(score, column) & (0 - is_in_group);  // without a branch, for the CPU's vectors
  }
};

/// \brief The square root of log(1 + exp(gate)), which is `gate` above 0 and log(1 + power), with a power up to 1.
struct SqrtSoftplus {
  SGL_HD float operator()(float gate) const {
    const float power = sgl::exp(-sgl::abs(gate)), ratio = power / (2 + power), square = ratio * ratio;
    // log(1 + power) is 2 artanh(ratio): its series keeps all digits of small powers, and vectorises on the CPU.
    constexpr float kSeries[] = {2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f};
    float sum = 2.0f / 15;
    for (const float term : kSeries) sum = sum * square + term;
    return sgl::sqrt(sgl::max(gate, 0) + ratio * sum);
  }
};

/// \brief A score that each gate has by itself.
template <typename F>
struct OfOneGate : F {
  template <typename Row, typename Value>
  SGL_HD OfOneGate(const Row&, const Value&, bool) {}
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
  sgl::RankKey inverse;  ///< 2^32 / size of a group, rounded up
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
    auto next = m_next(row, ranked);
    float sum = 1e-20f;
    const auto chosen = row.list(size, [&](int) {
      next.last += row.reduce(next, ranked);
      const int expert = sgl::column_of(next.last);
      const Chosen one = {expert, score(row.at(gates, expert))};
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

  /// A group is ranked by its highest expert, or with a bias by the sum of its two highest.
  template <typename Row, typename Value>
  SGL_HD auto m_next(const Row& row, const Value& ranked) const {
    constexpr sgl::NextRanked kFirst{0};
    if constexpr (!kGrouped) return kFirst;
    else {
      sgl::RankKey keys[32];
      for (int i = 0; i < num_groups; ++i) {
        NextOfGroups next = {kFirst, inverse, 1u << i};
        next.last = row.reduce(next, ranked);
        float sum = sgl::element_of(next.last);
        if (kBiased) sum += sgl::element_of(next.last + row.reduce(next, ranked));
        keys[i] = sgl::rank_key<sgl::NaN::kBelow>(sum, i);
      }
      unsigned groups = 0;
      for (int i = 0; i < num_groups; ++i) {
        int better = 0;
        for (int j = 0; j < num_groups; ++j) better += keys[i] < keys[j];
        groups |= static_cast<unsigned>(better < topk_group) << i;
      }
      return NextOfGroups{kFirst, inverse, groups};
    }
  }
};

}  // namespace moe
