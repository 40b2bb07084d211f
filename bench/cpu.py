"""How close are the row operations on the CPU to a plain copy, on one core and on all?

    python bench/cpu.py [--ops rmsnorm,silu_and_mul] [--dtypes float32,bfloat16,float16] [--output bench/results/cpu.md]

4096 rows of 4096 elements (of the output, for activations), in memory. The copy moves as many bytes as the op must read
and write, on as many threads. With CI set in the environment: few rows.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sgljit_activation.bench import bench_activation
from sgljit_core import ops
from sgljit_tools.benchmark import is_in_ci, measure, rotate
from sgljit_tools.benchmark.results import write_results

Tensors = list[torch.Tensor]

ROWS, SIZE = (64, 512) if is_in_ci() else (4096, 4096)
HEADS, HEAD_DIM = (SIZE // 128 * 3 // 4, SIZE // 128 // 4), 128  # of q and of k, together a row
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """An op, with what it is measured on.

    Attributes:
        run: the op.
        moved: a row's elements of the op's dtype that are read or written, in rows of ``SIZE``.
        data: the shapes of the tensors of the op's dtype that each call has for itself.
        weights: the sizes of those that all calls share, which go behind.
        more: what goes behind these.
        more_bytes: what is read or written of it, in bytes for each element of a row.
    """

    run: Callable[..., object]
    moved: int
    data: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...] = ()
    more: Callable[[], Tensors] = list
    more_bytes: int = 0


def quantised(*scales: int) -> Tensors:
    """The outputs of a quantisation, with scales of a shape; they serve as given ones, too."""
    return [torch.empty(ROWS, SIZE, dtype=torch.float8_e4m3fn), torch.full(scales, 6 / 448)]


def angles() -> Tensors:
    """Cosines and sines of as many positions as there are rows, and the positions."""
    phases = torch.rand(ROWS, HEAD_DIM // 2)
    return [torch.cat((phases.cos(), phases.sin()), dim=-1), torch.arange(ROWS)]


def cases() -> dict[str, Case]:
    """The measured ops."""
    norm, quant, rope, row = ops["norm"], ops["quant"], ops["rope"], (ROWS, SIZE)
    q_and_k = tuple((ROWS, heads, HEAD_DIM) for heads in HEADS)
    half = (ROWS, SIZE // 2 // HEAD_DIM, HEAD_DIM)
    q_k_weights = (HEAD_DIM, HEAD_DIM)

    def into(op: Callable[..., object]) -> Callable[..., object]:
        return lambda x, out, *weights: op(x, *weights, out=out)

    def gather(k: torch.Tensor, v: torch.Tensor, *cached: torch.Tensor) -> None:
        ops["kvcache"].gather_cache(*cached, k, v)

    found = {
        "rmsnorm": Case(into(norm.rmsnorm), 2, (row, row), (SIZE,)),
        "fused_add_rmsnorm": Case(norm.fused_add_rmsnorm, 4, (row, row), (SIZE,)),
        "layernorm": Case(into(norm.layernorm), 2, (row, row), (SIZE, SIZE)),
        "fused_inplace_qknorm, heads of 128": Case(norm.fused_inplace_qknorm, 2, q_and_k, q_k_weights),
        "apply_rope_inplace, heads of 128": Case(rope.apply_rope_inplace, 2, q_and_k, more=angles),
        "fused_qk_norm_rope, heads of 128": Case(rope.fused_qk_norm_rope, 2, q_and_k, q_k_weights, more=angles),
        "store_cache": Case(ops["kvcache"].store_cache, 2, (half,) * 4, more=lambda: [torch.randperm(ROWS)]),
        "gather_cache": Case(gather, 2, (half,) * 4, more=lambda: [torch.randperm(ROWS)]),
    }
    for name in bench_activation.ACTIVATIONS:
        found[name] = Case(getattr(ops["activation"], name), 3, ((ROWS, 2 * SIZE), row))
    dynamic, static = (functools.partial(quant.per_tensor_quant_fp8, is_static=given) for given in (False, True))
    return found | {
        "per_token_quant_fp8": Case(
            quant.per_token_quant_fp8, 1, (row,), more=lambda: quantised(ROWS, 1), more_bytes=1
        ),
        "per_tensor_quant_fp8": Case(dynamic, 2, (row,), more=lambda: quantised(1), more_bytes=1),
        "per_tensor_quant_fp8, scale given": Case(static, 1, (row,), more=lambda: quantised(1), more_bytes=1),
    }


def measured(case: Case, dtype: torch.dtype, threads: list[int]) -> list[Any]:
    """A figure for each number of threads."""
    data = [torch.randn(shape).to(dtype) for shape in case.data]
    weights = [torch.ones(size, dtype=dtype) for size in case.weights]  # others would shrink what is changed in place

    def make() -> Tensors:
        return [*(tensor.clone() for tensor in data), *weights, *case.more()]

    num_bytes = ROWS * SIZE * (case.moved * dtype.itemsize + case.more_bytes)
    sets, figures = rotate(make), []
    for count in threads:
        with on_threads(count):
            figures.append(measure(case.run, sets, num_bytes=num_bytes, seconds=0.3))
    return figures


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Measure on so many threads, which run on the first processors of this one. Torch keeps those that it has."""
    allowed, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        os.sched_setaffinity(0, sorted(allowed)[:count])
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, allowed)


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Row operations on the CPU")
    parser.add_argument("--ops", default=",".join(cases()), help="which begin so, with commas between")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="which, with commas between")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    cores = len(os.sched_getaffinity(0))
    tables: dict[str, list[dict[str, Any]]] = {"One core": [], f"{cores} cores": []}
    for dtype in arguments.dtypes.split(","):
        for name, case in cases().items():
            if not name.startswith(tuple(arguments.ops.split(","))):
                continue
            figures = measured(case, getattr(torch, dtype), [1, cores])
            for rows, figure in zip(tables.values(), figures, strict=True):
                rows.append({"op": name, "dtype": dtype, "sgljit": figure, "copy": figure.copy_microseconds})
    note = (
        f"{ROWS} rows of {SIZE} elements (of the output, for activations), in memory. Microseconds per call, median; "
        "in brackets, the percent of a plain copy that moves as many bytes on as many threads: more than 100 where the "
        "op works in place, or reads more than it writes. Angles and slots are not counted."
    )
    sys.stdout.write(write_results(arguments.output, "Row operations on the CPU", tables, note=note, device="cpu"))


if __name__ == "__main__":
    main()
