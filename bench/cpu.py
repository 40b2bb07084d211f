"""How close are the row operations on the CPU to a plain copy, on one core and on all?

    python bench/cpu.py [--ops rmsnorm,silu_and_mul] [--dtypes float32,bfloat16,float16] [--output bench/results/cpu.md]

4096 rows of 4096 elements (of the output, for activations), in memory. The copy runs on as many threads as the op.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_activation.bench import bench_activation
from sgljit_core import ops
from sgljit_core.benchmark import Figure, is_in_ci, measure, on_threads
from sgljit_core.benchmark.results import write_results
from sgljit_norm.bench import bench_norm
from sgljit_quant.bench import bench_quant

Tensors = tuple[torch.Tensor, ...]
Make = Callable[[int, int, torch.dtype], Tensors]

ROWS, SIZE = (128, 256) if is_in_ci() else (4096, 4096)
HEADS = 40  # of q and k together, of 128 elements: not all of a row of 4096


def quantised(kind: str, rows: int, size: int, dtype: torch.dtype) -> Tensors:
    """The arguments of a quantisation."""
    x = torch.randn(rows, size).to(dtype)
    scales = torch.full((rows, 1) if kind == "token" else (1,), 6 / 448)
    return x, torch.empty(x.shape, dtype=bench_quant.FP8), scales


def cases() -> dict[str, tuple[Callable[..., object], Make, Callable[[int], int]]]:
    """Each op, what makes its arguments, and the bytes of an element of a row by the dtype's size."""
    found: dict[str, Any] = {}
    for op in ("rmsnorm", "fused_add_rmsnorm", "layernorm", "fused_inplace_qknorm"):
        subject = bench_norm.SUBJECTS[op]
        make = functools.partial(subject.make, device="cpu")
        passes = subject.passes if "qk" not in op else subject.passes * sum(bench_norm.HEADS) * bench_norm.HEAD_DIM / SIZE
        found[op] = getattr(ops["norm"], op), make, lambda size, passes=passes: int(passes * ROWS * SIZE * size)
    for op in bench_activation.ACTIVATIONS:
        make = functools.partial(bench_activation.make, device="cpu")
        found[op] = getattr(ops["activation"], op), make, lambda size: 3 * ROWS * SIZE * size
    for kind, name in bench_quant.TABLES.items():
        run = bench_quant.providers(kind, "cpu", None)["sgljit"]
        reads = 2 if kind == "dynamic" else 1
        found[name] = run, functools.partial(quantised, kind), lambda size, reads=reads: (reads * size + 1) * ROWS * SIZE
    return found


def table(threads: int, names: list[str], dtypes: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name, (run, make, num_bytes) in cases().items():
        if names and not any(n in name for n in names):
            continue
        row: dict[str, Any] = {"op": name}
        for dtype in dtypes:
            kind = getattr(torch, dtype)
            with on_threads(threads):
                figure = measure(
                    run, lambda: make(ROWS, SIZE, kind), num_bytes=num_bytes(kind.itemsize), seconds=0.3
                )
            row[dtype] = figure
            row[f"copy, {dtype}"] = figure.copy_microseconds
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtypes", default="float32,bfloat16,float16")
    parser.add_argument("--output", type=Path)
    a = parser.parse_args()
    torch.manual_seed(0)
    n = len(os.sched_getaffinity(0))
    tables = {f"{t} threads": table(t, [x for x in a.ops.split(",") if x], a.dtypes.split(",")) for t in (1, n)}
    sys.stdout.write(write_results(a.output, "CPU", tables, device="cpu"))


if __name__ == "__main__":
    main()
