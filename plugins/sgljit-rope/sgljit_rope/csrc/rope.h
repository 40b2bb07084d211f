#pragma once

#include <sgl_kernel/row_program.h>

/// \file rope.h
/// \brief What becomes of the heads of q, of k and of v. Read by the C++ compiler for the CPU and by NVRTC.

namespace rope {

struct Rotation {
  float sign;  ///< of the angle: -1 turns back

  SGL_HD sgl::Values<2> operator()(float a, float b, float cos, float sin) const {
    const float turned = sin * sign;
    return {{sgl::fma(a, cos, -b * turned), sgl::fma(b, cos, a * turned)}};
  }
};

/// \brief q and k are rotated in place, by cosines and sines that each token has for itself.
template <typename Order>
struct Given {
  SGL_OPERANDS(x, cos, sin)
  float sign;
  SGL_FIELDS(sign)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    constexpr Order order;
    return sgl::store(x = row.pairs(order, Rotation{sign}, row[x], row.of_pairs(order, cos), row.of_pairs(order, sin)));
  }
};

/// \brief q and k are normalised if `kNormed`, and rotated, in place; if `kStored`, k and v go to their caches too.
///
/// The segments are q, k and, if `kStored`, v.
template <typename Order, bool kNormed, bool kStored>
struct Layer {
  SGL_OPERANDS(x, weight, cos_sin, cache)
  float eps;
  float offset;  ///< added to each weight: 1 in Gemma's norm
  float sign;
  SGL_FIELDS(eps, offset, sign)

  template <typename Row>
  SGL_HD auto rotated(const Row& row) const {
    constexpr Order order;
    const auto values = row[x];
    const auto cos = row.of_pairs(order, cos_sin, 0, 2), sin = row.of_pairs(order, cos_sin, 1, 2);
    if constexpr (kNormed) {
      const auto weights = row[weight];
      const float sum = row.sum([](float v) { return v * v; }, values);
      const float factor = sgl::rsqrt(sum * (1 / row.size()) + eps);
      const float added = offset;
      const auto normed = sgl::map([=](float v, float w) { return v * factor * (w + added); }, values, weights);
      return row.pairs(order, Rotation{sign}, normed, cos, sin);
    } else {
      return row.pairs(order, Rotation{sign}, values, cos, sin);
    }
  }
  /// Of q and k alike: one program is a smaller kernel than two.
  template <typename Row>
    requires(!kStored)
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(x = rotated(row));
  }
  template <typename Row, int kNumber>
    requires(kStored)
  SGL_HD auto operator()(const Row& row, sgl::Segment<kNumber>) const {
    if constexpr (kNumber == 0) {
      return sgl::store(x = rotated(row));
    } else if constexpr (kNumber == 1) {
      const auto values = rotated(row);
      return sgl::store(x = values, cache = values);
    } else {
      return sgl::store(cache = row[x]);
    }
  }
};

}  // namespace rope
