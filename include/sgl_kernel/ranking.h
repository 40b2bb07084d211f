#pragma once

/// \file ranking.h
/// \brief The order of a row's elements: an element and its column as one integer, for an arg-max and for the largest
/// k.
///
/// \code
///   sgl::RankKey last = 0;
///   const auto largest = row.list(k, [&](int) { return last += row.reduce(sgl::NextRanked{last}, values); });
///   return sgl::store(columns = sgl::map([](sgl::RankKey key) { return sgl::column_of(key); }, largest));
/// \endcode

#include <sgl_kernel/functor.h>

namespace sgl {

/// \brief An element and its column. The larger key is that of the larger element and, of equal ones, that of the lower
/// column. -0 equals 0. No key is 0.
using RankKey = unsigned long long;

/// \brief Where NaN stands: above or below all numbers.
enum class NaN { kAbove, kBelow };

template <NaN kNaN>
SGL_HD RankKey rank_key(float element, long long column) {
  const auto bits = __builtin_bit_cast(unsigned, element + 0.0f);  // of -0 those of 0
  const auto ordered = bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
  constexpr auto kOfNaN = kNaN == NaN::kAbove ? ~0u : 0u;
  return static_cast<RankKey>(element != element ? kOfNaN : ordered) << 32 | ~static_cast<unsigned>(column);
}

SGL_HD int column_of(RankKey key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}

/// \brief The element of a key. Where it is a NaN, some NaN.
SGL_HD float element_of(RankKey key) {
  const auto ordered = static_cast<unsigned>(key >> 32);
  return __builtin_bit_cast(float, ordered >> 31 != 0 ? ordered ^ 0x80000000u : ~ordered);
}

/// \brief For `row.reduce`: the largest key of a row.
template <NaN kNaN>
struct LargestKey {
  SGL_HD static RankKey identity() {
    return 0;
  }
  SGL_HD static RankKey of(float element, long long column) {
    return rank_key<kNaN>(element, column);
  }
  SGL_HD static RankKey merge(RankKey a, RankKey b) {
    return a < b ? b : a;
  }
};

/// \brief For `row.reduce`: what leads from a key to the next lower one of the row, and from 0 to the largest. NaN is
/// below all numbers.
struct NextRanked : LargestKey<NaN::kBelow> {
  RankKey last;

  SGL_HD constexpr explicit NextRanked(RankKey last) : last(last) {}
  /// A difference of unsigned numbers: that of the next lower key is the largest of all.
  SGL_HD RankKey of(float element, long long column) const {
    return LargestKey::of(element, column) - last;
  }
};

}  // namespace sgl
