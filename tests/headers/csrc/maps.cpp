#include "maps.h"

namespace {

using host::rows, host::shared_row, host::TensorView;

// example: map
host::RowProgram<maps::Affine> affine_program{"maps.h"};

void affine(host::TensorView x, host::TensorView out, float scale, float shift) {
  using F = maps::Affine;
  affine_program({scale, shift}, F::x = host::rows("x", x), F::out = host::rows("out", out));
}
// end

// example: part
host::RowProgram<maps::SiluAndMul> silu_and_mul_program{"maps.h"};

void silu_and_mul(host::TensorView x, host::TensorView out) {
  using F = maps::SiluAndMul;
  const auto rows = host::rows("x", x);  // the gates, then the values
  silu_and_mul_program({}, F::gate = rows.part(0, 2), F::value = rows.part(1, 2), F::out = host::rows("out", out));
}
// end

host::RowProgram<maps::Weighted> weighted_program{"maps.h"};
host::RowProgram<maps::SumAndProduct> sum_and_product_program{"maps.h"};
host::RowProgram<maps::Function> function_program{"maps.h"};

void weighted(TensorView x, TensorView weight, TensorView bias, TensorView out) {
  using F = maps::Weighted;
  const auto x_rows = rows("x", x).floats();
  const auto weights = shared_row("weight", weight).typed_as(x_rows);
  weighted_program(
      {}, F::x = x_rows, F::weight = weights, F::bias = shared_row("bias", bias), F::out = rows("out", out));
}
void sum_and_product(TensorView a, TensorView b, TensorView c, TensorView d, TensorView sum, TensorView product) {
  using F = maps::SumAndProduct;
  sum_and_product_program(
      {}, F::a = rows("a", a), F::b = rows("b", b), F::c = rows("c", c), F::d = rows("d", d), F::sum = rows("sum", sum),
      F::product = rows("product", product));
}
void function(TensorView x, TensorView out, int which) {
  using F = maps::Function;
  function_program({which}, F::x = rows("x", x), F::out = rows("out", out));
}

void third_half(TensorView x, TensorView out) {
  using F = maps::Affine;
  affine_program({1, 0}, F::x = rows("x", x).part(2, 2), F::out = rows("out", out));
}
void into_one_row(TensorView x, TensorView out) {
  using F = maps::Affine;
  affine_program({1, 0}, F::x = rows("x", x), F::out = shared_row("out", out));
}

}  // namespace
