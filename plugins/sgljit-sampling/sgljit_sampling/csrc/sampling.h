#pragma once

#include <sgl_kernel/ranking.h>
#include <sgl_kernel/row_program.h>

/// \file sampling.h
/// \brief The programs of the family, each of a row of logits. Read by the C++ compiler for the CPU and by NVRTC.

namespace sampling {

struct Softmax {
  SGL_OPERANDS(input, output)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto logits = row[input];
    const float largest = row.max([](float logit) { return logit; }, logits);
    const auto powers = row.keep(sgl::map([=](float logit) { return sgl::exp(logit - largest); }, logits));
    const float factor = 1 / row.sum([](float power) { return power; }, powers);
    return sgl::store(output = sgl::map([=](float power) { return power * factor; }, powers));
  }
};

/// \brief The first of the highest values. NaN is above all numbers.
struct ArgMax {
  SGL_OPERANDS(input, output)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(output = sgl::column_of(row.reduce(sgl::LargestKey<sgl::NaN::kAbove>{}, row[input])));
  }
};

}  // namespace sampling
