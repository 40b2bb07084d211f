#include <sgl_kernel/export.h>
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/variant.h>

#include "modes.h"

namespace {

host::Kernel<launches::Params> by_mode{"launches.cuh", "launches::by_mode"};

launches::Params params_of(host::TensorView x) {
  return {static_cast<float*>(x.data_ptr())};
}
void add(host::TensorView x, std::int64_t smem) {
  host::LaunchKernel(1, 32, x.device(), static_cast<std::size_t>(smem))(by_mode.get(launches::Add::kOne), params_of(x));
}
void multiply(host::TensorView x) {
  host::LaunchKernel(1, 32, x.device())(by_mode.get(launches::Multiply::kOne), params_of(x));
}
void on_the_current_device(host::TensorView x) {
  host::LaunchKernel(7, 32, host::native_stream_t{})(by_mode.get(launches::Add::kOne), params_of(x));
}
std::int64_t blocks_per_sm(std::int64_t smem) {
  return host::runtime::get_blocks_per_sm(by_mode.get(launches::Add::kOne), 32, static_cast<std::size_t>(smem), -1);
}

}  // namespace

SGL_EXPORT(add, (add))
SGL_EXPORT(multiply, (multiply))
SGL_EXPORT(on_the_current_device, (on_the_current_device))
SGL_EXPORT(blocks_per_sm, (blocks_per_sm))
