#pragma once

#include <sgl_kernel/stages.h>

/// \file rope.h
/// \brief What becomes of the heads of q, of k and of v. Read by the C++ compiler for the CPU and by NVRTC.

namespace rope {

/// \brief Whether the heads of q and k are normalised, and by `weight` or 1 + `weight`.
enum class Norm { kNone, kPlain, kGemma };

/// \brief q and k are rotated in place, by cosines and sines that each token has for itself.
template <typename Order>
struct Given {
  SGL_OPERANDS(x, cos, sin)
  float sign;
  SGL_FIELDS(sign)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    constexpr Order order;
    return sgl::store(
        x = row.pairs(order, sgl::Rotation{sign}, row[x], row.of_pairs(order, cos), row.of_pairs(order, sin)));
  }
};

/// \brief For `row.pairs`: one pair of x * cos + rotate_half(x) * sin, where each element has angles of its own.
struct EachTurned {
  SGL_HD sgl::Values<2> operator()(float a, float b, float cos_a, float cos_b, float sin_a, float sin_b) const {
    return {{sgl::fma(a, cos_a, -b * sin_a), sgl::fma(b, cos_b, a * sin_b)}};
  }
};

/// \brief q and k are rotated to tensors of their own, by a cosine and a sine for each element; or, unless `kEach`, for
/// each pair.
template <bool kEach>
struct Apart {
  SGL_OPERANDS(x, cos, sin, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    if constexpr (kEach) {
      const auto cos_a = row.of_pairs(sgl::neox, cos, 0, 2), cos_b = row.of_pairs(sgl::neox, cos, 1, 2);
      const auto sin_a = row.of_pairs(sgl::neox, sin, 0, 2), sin_b = row.of_pairs(sgl::neox, sin, 1, 2);
      return sgl::store(out = row.pairs(sgl::neox, EachTurned{}, values, cos_a, cos_b, sin_a, sin_b));
    } else {
      const auto cosines = row.of_pairs(sgl::neox, cos);
      const auto sines = row.of_pairs(sgl::neox, sin);  // may be of another type
      return sgl::store(out = row.pairs(sgl::neox, sgl::Rotation{}, values, cosines, sines));
    }
  }
};

/// \brief q and k are normalised as `kNorm` says, and rotated, in place; if `kStored`, k and v go to their caches too.
///
/// If `kRounds`, they are rounded between the two. The segments are q, k and, if `kStored`, v. q has no cache.
template <typename Order, Norm kNorm, bool kRounds, bool kStored>
struct Layer {
  SGL_OPERANDS(x, weight, cos_sin, cache)
  float eps;
  float sign;
  SGL_FIELDS(eps, sign)
  // One program of q and k is a smaller kernel than two. Only where little is computed and k is stored, two are faster.
  static constexpr int kAlike = kStored && kNorm == Norm::kNone ? 1 : 2;

  template <typename Row>
  SGL_HD auto rotated(const Row& row) const {
    constexpr Order order;
    const auto values = row[x];
    const auto cos = row.of_pairs(order, cos_sin, 0, 2), sin = row.of_pairs(order, cos_sin, 1, 2);
    if constexpr (kNorm != Norm::kNone) {
      const auto weights = row[weight];
      const auto normed = sgl::rms_normed<kNorm == Norm::kGemma>(row, values, weights, eps);
      return row.pairs(order, sgl::Rotation{sign}, sgl::rounded<kRounds>(row, x, normed), cos, sin);
    } else {
      return row.pairs(order, sgl::Rotation{sign}, values, cos, sin);
    }
  }
  template <typename Row, int kNumber>
  SGL_HD auto operator()(const Row& row, sgl::Segment<kNumber>) const {
    if constexpr (kNumber < 2) {
      const auto values = rotated(row);
      if constexpr (kStored && (kNumber == 1 || kAlike == 2)) return sgl::store(x = values, cache = values);
      else return sgl::store(x = values);
    } else {
      return sgl::store(cache = row[x]);
    }
  }
};

}  // namespace rope
