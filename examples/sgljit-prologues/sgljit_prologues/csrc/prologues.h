#pragma once

#include <sgl_kernel/stages.h>

/// \file prologues.h
/// \brief What becomes of the rows of each model. Read by the C++ compiler for the CPU and by NVRTC for the device.

namespace prologues {

/// \brief Heads of q, of k, of v, and of a gate if the model has one: q and k are normalised and rotated, q in place
/// and k into its cache, v goes to its cache, and the gate becomes its sigmoid. Qwen3; with `kPlusOne` Qwen3-Next.
template <bool kPlusOne, bool kRounds>
struct NormedHeads {
  SGL_OPERANDS(x, weight, cos_sin, cache)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row, int kNumber>
  SGL_HD auto operator()(const Row& row, sgl::Segment<kNumber>) const {
    const auto values = row[x];
    if constexpr (kNumber == 2) return sgl::store(cache = values);
    else if constexpr (kNumber == 3) return sgl::store(x = sgl::map(sgl::Sigmoid{}, values));
    else {
      const auto weights = row[weight];
      const auto cos = row.of_pairs(sgl::neox, cos_sin, 0, 2), sin = row.of_pairs(sgl::neox, cos_sin, 1, 2);
      const auto normed = sgl::rounded<kRounds>(row, x, sgl::rms_normed<kPlusOne>(row, values, weights, eps));
      const auto rotated = row.pairs(sgl::neox, sgl::Rotation{}, normed, cos, sin);
      if constexpr (kNumber == 0) return sgl::store(x = rotated);
      else return sgl::store(cache = rotated);
    }
  }
};

/// \brief Heads of q, of k and of v: q is rotated in place, k into its cache, and v goes to its cache. gpt-oss.
struct RotatedHeads {
  SGL_OPERANDS(x, cos_sin, cache)

  template <typename Row, int kNumber>
  SGL_HD auto operator()(const Row& row, sgl::Segment<kNumber>) const {
    const auto values = row[x];
    if constexpr (kNumber == 2) return sgl::store(cache = values);
    else {
      const auto cos = row.of_pairs(sgl::neox, cos_sin, 0, 2), sin = row.of_pairs(sgl::neox, cos_sin, 1, 2);
      const auto rotated = row.pairs(sgl::neox, sgl::Rotation{}, values, cos, sin);
      if constexpr (kNumber == 0) return sgl::store(x = rotated);
      else return sgl::store(cache = rotated);
    }
  }
};

/// \brief The latent of q is normalised in place, that of k and v into the cache, and the part of k that has positions
/// is rotated into the cache, behind it. DeepSeek V3.
struct Latents {
  SGL_OPERANDS(x, weight, cos_sin, cache)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row, int kNumber>
  SGL_HD auto operator()(const Row& row, sgl::Segment<kNumber>) const {
    const auto values = row[x];
    if constexpr (kNumber == 2) {
      const auto cos = row.of_pairs(sgl::interleaved, cos_sin, 0, 2);
      const auto sin = row.of_pairs(sgl::interleaved, cos_sin, 1, 2);
      return sgl::store(cache = row.pairs(sgl::interleaved, sgl::Rotation{}, values, cos, sin));
    } else {
      const auto weights = row[weight];
      const auto normed = sgl::rms_normed<false>(row, values, weights, eps);
      if constexpr (kNumber == 0) return sgl::store(x = normed);
      else return sgl::store(cache = normed);
    }
  }
};

/// \brief The end of a block and the beginning of the next: the block's result is normalised and added to the residual,
/// and the sum is normalised. Gemma 3.
struct BothSides {
  SGL_OPERANDS(x, residual, after, before)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto residuals = row[residual];
    const auto first = row[after];
    const auto second = row[before];
    const auto normed = sgl::rms_normed<true>(row, values, first, eps);
    const auto sum = row.keep(residual, sgl::map(sgl::Plus{}, normed, residuals));
    return sgl::store(residual = sum, x = sgl::rms_normed<true>(row, sum, second, eps));
  }
};

/// \brief All heads of q together, and all of k, are a row that is normalised in place. MiniMax M2.
struct AcrossHeads {
  SGL_OPERANDS(x, weight)
  float eps;
  SGL_FIELDS(eps)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const auto weights = row[weight];
    return sgl::store(x = sgl::rms_normed<false>(row, values, weights, eps));
  }
};

}  // namespace prologues
