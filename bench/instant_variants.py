"""What is the latency of the first call to an uncompiled kernel, and the cost of each later call?

Five states of a machine, each in separate processes, most with rmsnorm at hidden sizes that no plugin declares:

- *empty*: an empty cache and a C++ compiler: the first call compiles the host part and a kernel, later ones a kernel;
- *bare*: an empty PATH and the host part that a wheel carries, so that only NVRTC and the driver are available;
- *disk*: a fresh process that finds all of these kernels in the cache;
- *prologue*: a fresh process that finds only the host part of the example's prologues: three head sizes, of which the
  first pays for the load of NVRTC;
- *peer*: `tvm_ffi.cpp.load_inline`, one build for each variant (see cold_start.py; needs nvcc and ninja).

Then eager calls, back to back: an op compared with its exported C++ function, with a function of the same arguments
that does nothing, with the same kernel compiled by `load_jit`, and with PyTorch's `torch.add`.

    python bench/instant_variants.py [--variants 20] [--peer-variants 2] [--output bench/results/instant_variants.md]

Without a GPU only the calls on CPU tensors are measured.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_core import load_jit, ops, override_cuda_arch
from sgljit_tools.benchmark.results import write_results

FIRST_HIDDEN = 1032
HEAD_SIZES = (64, 96, 128)
EXAMPLE = Path(__file__).resolve().parents[1] / "examples/sgljit-silu-and-mul/sgljit_silu_and_mul/csrc"

# The example's checks and launch again, for load_jit; and a call that does nothing.
TWIN = """\
#include <sgl_kernel/launch.cuh>
#include <sgl_kernel/tensor.h>
#include "silu_and_mul.h"
void silu_and_mul(host::TensorView input, host::TensorView out) {
  using namespace host;
  auto N = SymbolicSize{"num_tokens"};
  auto D = SymbolicSize{"hidden"};
  auto D2 = SymbolicSize{"2 * hidden"};
  auto device = SymbolicDevice{};
  TensorMatcher({N, D}).with_dtype<bf16_t>().with_device<kDLCUDA>(device).verify(out);
  D2.set_value(2 * D.unwrap());
  TensorMatcher({N, D2}).with_dtype<bf16_t>().with_device(device).verify(input);
  constexpr auto kShape = sgl::RowShape{0, 0, 8, 0, true, false}.number();
  constexpr auto kTypes = sgl::kBf16 | sgl::kBf16 << 4 | sgl::kBf16 << 8;
  constexpr unsigned kBlock = 128;
  const auto row_bytes = static_cast<std::int64_t>(sizeof(bf16_t)) * D.unwrap();
  void* value = pointer::offset(input.data_ptr(), row_bytes);
  sgl::RowProgramParams<3, 1> params = {};
  auto& rows = params.segments[0];
  void* const data[] = {input.data_ptr(), value, out.data_ptr()};
  for (int n = 0; n < 3; ++n) {
    rows.data[n] = data[n];
    rows.stride[n] = n == 2 ? row_bytes : 2 * row_bytes;
  }
  rows.num_rows = N.unwrap();
  rows.columns = D.unwrap();
  rows.vectors = D.unwrap() / 8;
  rows.vector_inverse = ~0ull / rows.vectors + 1;
  LaunchKernel(div_ceil(rows.num_rows * rows.vectors, kBlock), kBlock, device.unwrap())(
      device::row_program_without_fields<
          swiglu::SiluAndMul, 3, kBlock, 0, true, kTypes, sgl::kIsFlat, kShape>, params);
}
"""
NOTHING = """\
#include <sgl_kernel/tensor.h>
#include <time.h>
#include "silu_and_mul.h"
#include <sgl_kernel/cpu/row_program.h>
void nothing(host::TensorView, host::TensorView) {}
double kernel_alone(host::TensorView input, host::TensorView out, std::int64_t calls) {
  const auto row_bytes = static_cast<std::int64_t>(sizeof(float)) * out.size(1);
  void* value = host::pointer::offset(input.data_ptr(), row_bytes);
  sgl::RowProgramParams<3, 1> params = {};
  auto& rows = params.segments[0];
  void* const data[] = {input.data_ptr(), value, out.data_ptr()};
  for (int n = 0; n < 3; ++n) {
    rows.data[n] = data[n];
    rows.stride[n] = n == 2 ? row_bytes : 2 * row_bytes;
  }
  rows.num_rows = out.size(0);
  rows.inner = 1;
  rows.columns = out.size(1);
  timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (std::int64_t i = 0; i < calls; ++i) {
    host::cpu::row_program<swiglu::SiluAndMul, 3, 1, 0, sgl::kIsFlat, sgl::kIsMap>(params, swiglu::SiluAndMul{});
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / calls;
}
"""


def first_calls(variants: int) -> list[float]:
    """Seconds of the first call at each of several hidden sizes, in a process that has used CUDA before."""
    rmsnorm = ops["norm"].rmsnorm
    seconds = []
    for i in range(variants + 1):
        hidden = FIRST_HIDDEN + 8 * i
        x = torch.randn(4, hidden, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(hidden, device="cuda", dtype=torch.bfloat16)
        out, expected = torch.empty_like(x), torch.nn.functional.rms_norm(x, (hidden,), weight, 1e-6)
        torch.cuda.synchronize()
        start = time.perf_counter()
        rmsnorm(x, weight, out)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    return seconds


def peer_builds(variants: int) -> list[float]:
    """Seconds of one `load_inline` for each variant, its process ready."""
    import cold_start

    from sgljit_core import paths
    from sgljit_core.compilers import toolchain

    tools = toolchain.find_toolchain(cuda=True, needed_for="bench/instant_variants.py")
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = "9.0a"
    os.environ["CUDA_HOME"] = str(tools.cuda_home)
    with override_cuda_arch(9, 0):
        return [cold_start.timed(cold_start.theirs, i + 1, paths.core_include()) for i in range(variants)]


def build_host_part() -> None:
    """Build only the host part, as a wheel would carry it."""
    x = torch.ones(0, 64)
    ops["norm"].rmsnorm(x, torch.ones(64))


def samples_of_qwen3(head_size: int, device: str) -> list[dict[str, Any]]:
    """Arguments of the example's prologue, without tokens first."""
    from sgljit_prologues import reference

    return list(reference.samples(torch.device(device), 32, 8, head_size, head_size))


def build_host_part_of_prologues() -> None:
    """The same of the example's prologues."""
    ops["prologues"].qwen3(**samples_of_qwen3(HEAD_SIZES[0], "cpu")[0])


def first_calls_of_a_prologue() -> list[float]:
    """Seconds of the first call of Qwen3's prologue for each head size, in a process that has used CUDA before."""
    from sgljit_prologues import reference

    device, finish = ("cuda", torch.cuda.synchronize) if torch.cuda.is_available() else ("cpu", lambda: None)
    qwen3 = ops["prologues"].qwen3
    seconds = []
    for head_size in HEAD_SIZES:
        ours = next(sample for sample in samples_of_qwen3(head_size, device) if len(sample["q"]) > 1)
        theirs = copy.deepcopy(ours)
        finish()
        start = time.perf_counter()
        qwen3(**ours)
        finish()
        seconds.append(time.perf_counter() - start)
        reference.qwen3(**theirs)
        for name, wanted in theirs.items():
            torch.testing.assert_close(ours[name], wanted, rtol=2e-2, atol=2e-2)
    return seconds


def in_a_process(function: Callable[..., object], *arguments: int, **environment: str) -> list[float]:
    """The result of a function of this file in a separate process."""
    code = (
        "import json, sys; import instant_variants as bench; import torch; torch.cuda.is_available() and "
        f"torch.zeros(1, device='cuda'); print(json.dumps(bench.{function.__name__}(*{arguments})))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turns(calls: dict[str, Callable[[], object]], finish: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Nanoseconds of each call: the best of several turns, in which all take part."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(15):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(5000):
                call()
            spent = time.perf_counter() - start
            finish()
            best[name] = min(best[name], spent / 5000 * 1e9)
    return best


def check(kernel: Callable[..., object], exported: Callable[..., object], gated: torch.Tensor) -> None:
    """A kernel of this file fills the headers' parameters by hand: it must compute what the op does."""
    gated = gated.repeat(3, 1)
    out, wanted = (gated.new_full((gated.shape[0], gated.shape[1] // 2), torch.nan) for _ in range(2))
    kernel(gated, out)
    exported(gated, wanted)
    torch.testing.assert_close(out, wanted)


@torch.no_grad()
def cpu_calls() -> dict[str, float]:
    """Nanoseconds of calls on CPU tensors."""
    import sgljit_norm.ops
    import sgljit_silu_and_mul.ops

    x, weight, out = torch.randn(1, 64), torch.ones(64), torch.empty(1, 64)
    gated = torch.randn(1, 128)
    exported = sgljit_silu_and_mul.plugin.FAMILY.host_module().silu_and_mul
    rmsnorm = ops["norm"].rmsnorm
    rmsnorm(x, weight, out)
    ops["silu_and_mul"].silu_and_mul(gated, out)
    exported_norm = sgljit_norm.plugin.FAMILY.host_module().rmsnorm
    with tempfile.TemporaryDirectory() as csrc:
        Path(csrc, "nothing.cpp").write_text(NOTHING)
        module = load_jit(
            "nothing",
            cpp_files=["nothing.cpp"],
            cpp_wrappers=[("nothing", "nothing"), ("kernel_alone", "kernel_alone")],
            csrc=csrc,
            extra_include_paths=[EXAMPLE],
        )
        nothing = module.nothing
        check(lambda gated, out: module.kernel_alone(gated, out, 1), exported, gated)
        found = in_turns(
            {
                "rmsnorm op": lambda: rmsnorm(x, weight, out),
                "rmsnorm op, looked up as ops[...].rmsnorm": lambda: ops["norm"].rmsnorm(x, weight, out),
                "rmsnorm exported": lambda: exported_norm(x, weight, out, 1e-6),
                "silu_and_mul exported": lambda: exported(gated, out),
                "nothing": lambda: nothing(gated, out),
                "torch.add": lambda: torch.add(x, x, out=out),
            }
        )
        found["kernel alone"] = min(module.kernel_alone(gated, out, 100_000) for _ in range(5))
    return found


@torch.no_grad()
def gpu_calls() -> dict[str, float]:
    """Nanoseconds of eager calls on CUDA tensors, launches included, back to back."""
    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    weight, out = torch.ones(4096, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)
    gated = torch.randn(1, 8192, device="cuda", dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as csrc:
        Path(csrc, "twin.cu").write_text(TWIN)
        twin = load_jit(
            "twin",
            cuda_files=["twin.cu"],
            cuda_wrappers=[("silu_and_mul", "silu_and_mul")],
            csrc=csrc,
            extra_include_paths=[EXAMPLE],
        ).silu_and_mul
    from sgljit_silu_and_mul.plugin import FAMILY

    exported = FAMILY.host_module().silu_and_mul
    check(twin, exported, gated)
    rms_norm = functools.partial(torch.nn.functional.rms_norm, x, (4096,), weight, 1e-6)
    calls = {
        "silu_and_mul, variant": lambda: exported(gated, out),
        "silu_and_mul, load_jit": lambda: twin(gated, out),
        "rmsnorm op": lambda: ops["norm"].rmsnorm(x, weight, out),
        "torch.add": lambda: torch.add(x, x, out=out),
        "F.rms_norm": rms_norm,
    }
    for call in calls.values():
        call()
    return in_turns(calls, torch.cuda.synchronize)


def first_call_table(variants: int, peer_variants: int) -> list[dict[str, object]]:
    """Measure the five states of a machine."""
    with tempfile.TemporaryDirectory() as directory:
        cache, carried, fresh = (Path(directory, name) for name in ("cache", "carried", "fresh"))
        for root in (cache, carried, fresh):
            root.mkdir(mode=0o700)
        empty = in_a_process(first_calls, variants, SGLJIT_CACHE_DIR=str(cache))
        disk = in_a_process(first_calls, variants, SGLJIT_CACHE_DIR=str(cache))
        in_a_process(build_host_part, SGLJIT_CACHE_DIR=str(carried))
        bare = in_a_process(
            first_calls,
            variants,
            SGLJIT_CACHE_DIR=str(fresh),
            SGLJIT_PREBUILT_PATH=str(carried),
            PATH="/nowhere",
        )
        in_a_process(build_host_part_of_prologues, SGLJIT_CACHE_DIR=str(cache))
        prologues = in_a_process(first_calls_of_a_prologue, SGLJIT_CACHE_DIR=str(cache))
        peer = in_a_process(peer_builds, peer_variants)

    def row(name: str, seconds: list[float], goal: object) -> dict[str, object]:
        milliseconds = [1e3 * value for value in seconds]
        spread = f"{min(milliseconds):.1f} to {max(milliseconds):.1f}"
        return {"first call of": name, "median ms": statistics.median(milliseconds), "range": spread, "goal": goal}

    return [
        row("a new variant", empty[1:], 120),
        row("a new variant, nothing on PATH", bare[1:], 120),
        row("the family, compiled by g++ and NVRTC", empty[:1], 500),
        row("the family, its host part carried by the wheel, nothing on PATH", bare[:1], 300),
        row("a variant on disk, in a fresh process", disk[1:], 3),
        row("a new prologue, the first of a fresh process, its host part on disk", prologues[:1], ""),
        row("a new prologue, another head size", prologues[1:], 150),
        row("tvm_ffi.cpp.load_inline, each variant", peer, ""),
    ]


def main() -> None:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=20)
    parser.add_argument("--peer-variants", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write the page here as well")
    options = parser.parse_args()

    tables: dict[str, list[dict[str, object]]] = {}
    if torch.cuda.is_available():
        tables["First calls"] = first_call_table(options.variants, options.peer_variants)
        gpu = gpu_calls()
        tables["Eager calls on the GPU, one row of 4096 bfloat16"] = [
            {"call": name, "microseconds": nanoseconds / 1e3} for name, nanoseconds in gpu.items()
        ]
    cpu = cpu_calls()
    tables["Calls on CPU tensors, 1 x 64 float32"] = [
        {"call": name, "nanoseconds": round(nanoseconds)} for name, nanoseconds in cpu.items()
    ]
    tables["Overheads"] = [
        {
            "of": "the rmsnorm op over the exported function",
            "ratio": cpu["rmsnorm op"] / cpu["rmsnorm exported"],
            "goal": 1.3,
        },
        {
            "of": "the exported function over nothing plus the kernel alone",
            "ratio": cpu["silu_and_mul exported"] / (cpu["nothing"] + cpu["kernel alone"]),
            "goal": 1.3,
        },
    ]
    note = (
        "A first call ends when its result is available. `load_inline` compiles one small kernel with tvm-ffi's "
        "headers. Calls: without gradients, the best of 15 turns of 5000, back to back."
    )
    sys.stdout.write(write_results(options.output, "Instant variants", tables, note=note))


if __name__ == "__main__":
    main()
