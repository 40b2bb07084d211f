#pragma once

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

/// \brief The highest value and, among equal ones, the first column: the largest of keys. NaN is above all numbers.
struct Largest {
  SGL_HD static unsigned long long identity() {
    return 0;
  }
  SGL_HD static unsigned long long of(float value, long long column) {
    const auto bits = __builtin_bit_cast(unsigned, value + 0.0f);  // of -0 those of 0
    const auto ordered = bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
    return static_cast<unsigned long long>(value != value ? ~0u : ordered) << 32 | ~static_cast<unsigned>(column);
  }
  SGL_HD static unsigned long long merge(unsigned long long a, unsigned long long b) {
    return a < b ? b : a;
  }
};

struct ArgMax {
  SGL_OPERANDS(input, output)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    return sgl::store(output = static_cast<int>(~static_cast<unsigned>(row.reduce(Largest{}, row[input]))));
  }
};

}  // namespace sampling
