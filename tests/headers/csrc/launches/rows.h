#pragma once

#include <sgl_kernel/row_program.h>

/// \file rows.h
/// \brief A row program whose layout depends on the rows.

namespace launches {

/// \brief x divided by the sum of its row.
struct Shares {
  SGL_OPERANDS(x, out)

  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const float factor = 1 / row.sum([](float v) { return v; }, values);
    return sgl::store(out = sgl::map([=](float v) { return v * factor; }, values));
  }
};

}  // namespace launches
