"""How much does each header add to a cold build?

Each header, and the set that a typical kernel includes, is compiled alone in a .cu file; the sum of nvcc's phases is
divided by that of an empty file measured in the same round. The median over the rounds goes into a table:

    python bench/header_weight.py [--rounds 5] [--output bench/results/header_weight.md] [HEADER ...]

Needs nvcc, no GPU. Compare the ratios: absolute times depend on the machine and its other load.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sgljit_core import paths
from sgljit_core.compilers import toolchain
from sgljit_tools.benchmark import results

TYPICAL = ("sgl_kernel/tensor.h", "sgl_kernel/utils.cuh", "sgl_kernel/vec.cuh", "sgl_kernel/warp.cuh")
FLOATS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h")
TYPICAL_LIMIT = 2.2
DEVICE_LIMIT = 1.9
# These have a host side; a device file may include the other .cuh files, but for those of ports.
HOST_SIDE = ("sgl_kernel/launch.cuh", "sgl_kernel/runtime.cuh", "sgl_kernel/utils.cuh")
FOR_HIPCC = "sgl_kernel/impl/hip.cuh"
FOR_PORTS = ("sgl_kernel/compat/", "sgl_kernel/fp8_utils.cuh", "sgl_kernel/mbarrier.cuh")


def phase_sum(includes: tuple[str, ...], tools: toolchain.Toolchain) -> float:
    """The sum of nvcc's phases in milliseconds, for a file with only these includes."""
    assert tools.nvcc is not None
    with tempfile.TemporaryDirectory() as directory:
        unit, times = Path(directory, "unit.cu"), Path(directory, "times.csv")
        unit.write_text("".join(f"#include <{name}>\n" for name in includes))
        command = [
            *(str(tools.nvcc.path), f"-ccbin={tools.cxx.path}", f"--time={times}"),
            *("-gencode=arch=compute_90a,code=sm_90a", "-DSGL_CUDA_ARCH=900", "-std=c++20", "-O3"),
            *("--expt-relaxed-constexpr", "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique,-fno-math-errno"),
            *("-DSGL_SEPARATE",),
            *(f"-I{paths.core_include()}", "-isystem", str(paths.tvm_ffi_include())),
            *("-c", str(unit), "-o", str(Path(directory, "unit.o"))),
        ]
        subprocess.run(command, check=True)
        with times.open() as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
        column = rows[0].index("metric")
        return sum(float(row[column]) for row in rows[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headers", nargs="*", help="headers to measure, by the name they are included by; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the table here as well")
    options = parser.parse_args()

    tools = toolchain.find_toolchain(cuda=True, needed_for="bench/header_weight.py")
    root = paths.core_include()
    headers = (str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".h", ".cuh"))
    everything = sorted(name for name in headers if name != FOR_HIPCC)
    sets: dict[str, tuple[str, ...]] = {name: (name,) for name in options.headers or everything}
    if not options.headers:
        sets["tensor.h + utils.cuh + vec.cuh + warp.cuh"] = TYPICAL
        sets["CUDA's fp16 + bf16 + fp8"] = FLOATS

    phase_sum((), tools)  # the first run also reads all files from disk
    ratios: dict[str, list[float]] = {name: [] for name in sets}
    empties: list[float] = []
    for _ in range(options.rounds):
        for name, includes in sets.items():
            # The empty file is measured beside each header, so that a slow minute affects both.
            empty = phase_sum((), tools)
            empties.append(empty)
            ratios[name].append(phase_sum(includes, tools) / empty)

    rows: list[dict[str, str]] = []
    too_heavy = []
    for name, values in ratios.items():
        ratio = statistics.median(values)
        limit = limit_of(name)
        name_there = name.removeprefix("sgl_kernel/")
        rows.append({"included alone": name_there, "weight": f"{ratio:.2f}", "limit": str(limit or "")})
        if limit is not None and ratio > limit:
            too_heavy.append(name)
    assert tools.nvcc is not None
    note = (
        f"nvcc's phase sum over that of an empty .cu ({statistics.median(empties):.0f} ms here), median of "
        f"{options.rounds}; nvcc {tools.nvcc.version}, g++ {tools.cxx.version}."
    )
    sys.stdout.write(
        results.write_results(options.output, "Weight of the headers", {"": rows}, note=note, device="cpu")
    )
    for name in too_heavy:
        sys.stderr.write(f"{name} is over its limit\n")
    return 1 if too_heavy else 0


def limit_of(name: str) -> float | None:
    if name.endswith(".cuh") and name.startswith("sgl_kernel/") and not name.startswith((*HOST_SIDE, *FOR_PORTS)):
        return DEVICE_LIMIT
    return TYPICAL_LIMIT if name.startswith("tensor.h +") else None


if __name__ == "__main__":
    sys.exit(main())
