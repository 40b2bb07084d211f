"""What is the latency of the first call to an uncompiled kernel?

`load_jit` of the add_constant example on an empty cache, against `tvm_ffi.cpp.load_inline` of the same kernel written
with tvm-ffi's own types and export macro. Both start from nothing each time and end with a loaded module; they take
turns, and the medians are compared:

    python bench/cold_start.py [--rounds 5] [--peer-include DIR] [--output bench/results/cold_start.md]

`--peer-include` compiles the other side with another project's `sgl_kernel/` headers instead of ours; their compile
time then counts too. Needs nvcc and ninja, no GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sgljit_core import load_jit, override_cuda_arch, paths
from sgljit_core.compilers import toolchain
from sgljit_tools.benchmark import results

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/sgljit-add-constant/sgljit_add_constant/csrc"
LIMIT = 0.30

TVM_SOURCE = """
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.cuh>
#include <sgl_kernel/utils.h>

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>

#include <cstddef>
#include <cstdint>

namespace {

template <int32_t kConstant>
__global__ void shift(int32_t* out, const int32_t* in, size_t n) {
  const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] + kConstant;
}

template <int32_t kConstant>
void add_constant(tvm::ffi::TensorView out, tvm::ffi::TensorView in) {
  using namespace host;
  auto N = SymbolicSize{"length"};
  auto device = SymbolicDevice{};
  TensorMatcher({N}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(in).verify(out);
  const size_t n = N.unwrap();
  RuntimeCheck(n > 0, "nothing to add to, n = ", n);
  LaunchKernel(div_ceil(n, size_t{256}), 256, device.unwrap())(
      shift<kConstant>, static_cast<int32_t*>(out.data_ptr()), static_cast<const int32_t*>(in.data_ptr()), n);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_constant, (add_constant<CONSTANT>));
"""


def ours(constant: int, directory: Path) -> Any:
    wrappers = [("add_constant", f"add_constant<{constant}>")]
    return load_jit(
        *("add_constant", str(constant)),
        cuda_files=["add_constant.cu"],
        cuda_wrappers=wrappers,
        csrc=EXAMPLE,
        build_directory=directory,
    )


def theirs(constant: int, directory: Path, include: Path) -> Any:
    import tvm_ffi.cpp

    return tvm_ffi.cpp.load_inline(
        "add_constant",
        cuda_sources=TVM_SOURCE.replace("CONSTANT", str(constant)),
        extra_cflags=["-std=c++20", "-O3"],
        extra_cuda_cflags=["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-DSGL_CUDA_ARCH=900"],
        extra_include_paths=[str(include)],
        build_directory=str(directory),
    )


def timed(build: Any, constant: int, *arguments: Any) -> float:
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        build(constant, Path(directory), *arguments)
        return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-include", type=Path, help="the other side's sgl_kernel headers; default: ours")
    parser.add_argument("--output", type=Path, help="write the table here as well")
    options = parser.parse_args()

    tools = toolchain.find_toolchain(cuda=True, needed_for="bench/cold_start.py")
    # load_inline reads the target, as there may be no GPU, and the toolkit, which it does not find behind a link.
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = "9.0a"
    os.environ["CUDA_HOME"] = str(tools.cuda_home)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    include = options.peer_include or paths.core_include()

    first, second = [], []
    with override_cuda_arch(9, 0):
        timed(ours, 1_000)  # imports, and reads all files from disk once
        for constant in range(1, options.rounds + 1):
            first.append(timed(ours, constant))
            second.append(timed(theirs, constant, include))

    a, b = statistics.median(first), statistics.median(second)
    headers = "its own sgl_kernel headers" if options.peer_include else "the same sgl_kernel headers"
    rows = [
        {"": f"tvm_ffi.cpp.load_inline, {headers}", "seconds": f"{b:.2f}", "ratio": "1.00"},
        {"": "load_jit", "seconds": f"{a:.2f}", "ratio": f"{a / b:.2f}"},
    ]
    note = f"Empty cache to loaded module, sm_90a, median of {options.rounds}, in turns."
    page = results.write_results(options.output, "Cold start of add_constant", {"": rows}, note=note, device="cpu")
    sys.stdout.write(page)
    return 0 if a / b <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
