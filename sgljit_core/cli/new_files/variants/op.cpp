/// \file $op.cpp
/// \brief The host part: what Python calls. It is compiled once, without CUDA, for the CPU and for every GPU.

#include "$op.h"

namespace $namespace {
namespace {

// The functor, the number of its inputs (one to four), and the file that it is in.
host::RowMap<$functor, 1> row_map{"$op.h"};

/// out[r, i] = scale * x[r, i]. On CUDA it launches on the current stream, and returns.
void $op(host::TensorView x, host::TensorView out, float scale) {
  row_map({host::rows("x", x)}, {host::rows("out", out)}, {scale});
}

}  // namespace
}  // namespace $namespace
