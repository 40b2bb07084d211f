#include "row_reductions.h"

namespace {

using host::rows, host::shared_row, host::TensorView;

// example: row_reduce
host::RowReduce<reductions::RMSNorm, 1, 1> rmsnorm_of_rows{"row_reductions.h"};

void rmsnorm(host::TensorView x, host::TensorView weight, host::TensorView out, float eps) {
  rmsnorm_of_rows({host::rows("x", x)}, {host::shared_row("weight", weight)}, {host::rows("out", out)}, {eps});
}
// end

host::RowReduce<reductions::FusedAddRMSNorm, 2, 1, 2> fused_add_of_rows{"row_reductions.h"};
host::RowReduce<reductions::ByLargest, 1> by_largest_of_rows{"row_reductions.h"};

host::RowReduce<reductions::Standardised, 2, 0, 2> standardised_rows{"row_reductions.h"};

void standardised(TensorView a, TensorView b, TensorView difference, TensorView out, TensorView deviations) {
  standardised_rows(
      {rows("a", a), rows("b", b)}, {rows("difference", difference), rows("out", out)},
      {static_cast<float*>(deviations.data_ptr())});
}
void fused_add_rmsnorm(TensorView x, TensorView residual, TensorView weight, float eps) {
  fused_add_of_rows(
      {rows("x", x), rows("residual", residual)}, {shared_row("weight", weight)},
      {rows("x", x), rows("residual", residual)}, {eps});
}
void by_rows(TensorView x, TensorView weight, TensorView out) {
  rmsnorm_of_rows({rows("x", x)}, {rows("weight", weight)}, {rows("out", out)}, {1});
}

// example: softmax_of_rows
host::RowReduce<reductions::Softmax, 1> softmax_of_rows{"row_reductions.h"};

void softmax(host::TensorView x, host::TensorView out) {
  softmax_of_rows({host::rows("x", x)}, {host::rows("out", out)});
}
// end

void by_largest(TensorView x, TensorView out) {
  by_largest_of_rows({rows("x", x)}, {rows("out", out)});
}

}  // namespace
