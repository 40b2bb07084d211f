#include "rows.h"

#include <sgl_kernel/export.h>

namespace {

host::RowProgram<launches::Shares> shares_of_rows{"rows.h"};

void shares(host::TensorView x, host::TensorView out) {
  using F = launches::Shares;
  shares_of_rows({}, F::x = host::rows("x", x), F::out = host::rows("out", out));
}

}  // namespace

SGL_EXPORT(shares, (shares))
