#include "row_maps.h"

namespace {

using host::rows, host::shared_row, host::TensorView;

// example: row_map
host::RowMap<maps::Affine, 1> affine_map{"row_maps.h"};

void affine(host::TensorView x, host::TensorView out, float scale, float shift) {
  affine_map({host::rows("x", x)}, {host::rows("out", out)}, {scale, shift});
}
// end

// example: part
host::RowMap<maps::SiluAndMul, 2> silu_and_mul_map{"row_maps.h"};

void silu_and_mul(host::TensorView x, host::TensorView out) {
  const auto rows = host::rows("x", x);  // the gates, then the values
  silu_and_mul_map({rows.part(0, 2), rows.part(1, 2)}, {host::rows("out", out)});
}
// end

host::RowMap<maps::Weighted, 3> weighted_map{"row_maps.h"};
host::RowMap<maps::SumAndProduct, 4, 2> sum_and_product_map{"row_maps.h"};
host::RowMap<maps::Function, 1> function_map{"row_maps.h"};

void weighted(TensorView x, TensorView weight, TensorView bias, TensorView out) {
  weighted_map({rows("x", x), shared_row("weight", weight), shared_row("bias", bias)}, {rows("out", out)});
}
void sum_and_product(TensorView a, TensorView b, TensorView c, TensorView d, TensorView sum, TensorView product) {
  sum_and_product_map(
      {rows("a", a), rows("b", b), rows("c", c), rows("d", d)}, {rows("sum", sum), rows("product", product)});
}
void function(TensorView x, TensorView out, int which) {
  function_map({rows("x", x)}, {rows("out", out)}, {which});
}

void third_half(TensorView x, TensorView out) {
  affine_map({rows("x", x).part(2, 2)}, {rows("out", out)}, {1, 0});
}
void into_one_row(TensorView x, TensorView out) {
  affine_map({rows("x", x)}, {shared_row("out", out)}, {1, 0});
}

}  // namespace
