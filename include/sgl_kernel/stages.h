#pragma once

/// \file stages.h
/// \brief What row programs of a decoder layer are made of: normalisation, rotation, gates. Each is a value of values,
/// so that a program of several computes them in registers.
///
/// \code
///   const auto values = row[x];
///   const auto weights = row[weight];
///   const auto cos = row.of_pairs(sgl::neox, cos_sin, 0, 2), sin = row.of_pairs(sgl::neox, cos_sin, 1, 2);
///   const auto normed = sgl::rms_normed<false>(row, values, weights, eps);
///   return sgl::store(x = row.pairs(sgl::neox, sgl::Rotation{}, normed, cos, sin));
/// \endcode
/// Name the operands first: they are loaded where they are named, and a sum waits for its row.

#include <sgl_kernel/row_program.h>

namespace sgl {

/// \brief x / sqrt(mean(x^2) + eps) * weight for the values x of a row; Gemma's form multiplies by 1 + weight.
template <bool kPlusOne, typename Row, typename Values, typename Weights>
SGL_HD auto rms_normed(const Row& row, const Values& values, const Weights& weights, float eps) {
  const float sum = row.sum([](float x) { return x * x; }, values);
  const float factor = sgl::rsqrt(sum * (1 / row.size()) + eps);
  return sgl::map(
      [=](float x, float weight) {
        const float y = x * factor;
        return kPlusOne ? y * weight + y : y * weight;  // one instruction, and fewer registers than 1 + weight
      },
      values, weights);
}

/// \brief A value; if `kRounds`, rounded to the dtype of an operand, as another kernel would find it there.
template <bool kRounds, typename Row, int kOperand, typename Of>
SGL_HD auto rounded(const Row& row, Operand<kOperand> operand, const Of& of) {
  if constexpr (kRounds) return row.round(operand, of);
  else return of;
}

/// \brief For `row.pairs`: the pair (a, b) turned by an angle, as rotary position embeddings do it
/// (https://arxiv.org/abs/2104.09864).
struct Rotation {
  float sign = 1;  ///< of the angle: -1 turns back

  SGL_HD Values<2> operator()(float a, float b, float cos, float sin) const {
    const float turned = sin * sign;
    return {{sgl::fma(a, cos, -b * turned), sgl::fma(b, cos, a * turned)}};
  }
};

/// \brief For `sgl::map`: 1 / (1 + exp(-x)).
struct Sigmoid {
  SGL_HD float operator()(float x) const {
    return 1.0f / (1.0f + sgl::exp(-x));
  }
};

/// \brief For `sgl::map`: the sum of two values, such as a residual's.
struct Plus {
  SGL_HD float operator()(float a, float b) const {
    return a + b;
  }
};

}  // namespace sgl
