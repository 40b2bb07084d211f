"""Time of rmsnorm against PyTorch's, torch.compile's and a plain copy of the same bytes.

    python -m sgljit_norm.bench.bench_rmsnorm [cpu|cuda]

Microseconds per call, median. Each call takes the next of several buffers, together larger than the last cache, so
that data comes from memory as it does inside a model. On CUDA the calls are replayed from a graph, which leaves out
the launch; on the CPU by wall clock. With CI set in the environment: one small shape.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from sgljit_core import ops

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]

SHAPES = [(1, 4096), (128, 4096), (512, 4096), (1024, 4096), (2048, 4096)]
LARGE_SHAPES = {
    "cpu": [(4096, 4096), (16384, 1024)],
    "cuda": [(16384, 1024), (16384, 4096), (16384, 8192), (4096, 16384)],
}
DTYPES = {
    "cpu": [torch.float32, torch.bfloat16, torch.float16],
    "cuda": [torch.bfloat16, torch.float16],
}
BYTES_PAST_CACHES = 256 * 2**20
MAX_BUFFERS = 4096  # calls in one graph; of one token of 4096 bf16 elements these are 64 MiB, past an H200's L2


def providers() -> dict[str, Run]:
    """What is compared: each normalises x into out, or as close to that as it comes."""
    rms_norm = torch.nn.functional.rms_norm
    compiled = torch.compile(lambda x, weight, out: out.copy_(rms_norm(x, weight.shape, weight, 1e-6)))
    return {
        "sgljit": ops["norm"].rmsnorm,
        "F.rms_norm": lambda x, weight, _out: rms_norm(x, weight.shape, weight, 1e-6),
        "torch.compile": compiled,
        "copy": lambda x, _weight, out: out.copy_(x),
    }


def measure(calls: Callable[[], None], device: str) -> float:
    """Median seconds of ``calls``."""
    calls()  # compiled and warm
    if device == "cuda":
        from triton.testing import do_bench_cudagraph  # type: ignore[import-not-found,unused-ignore]

        return float(do_bench_cudagraph(calls, return_mode="median")) / 1e3
    times: list[float] = []
    deadline = time.perf_counter() + 1
    while len(times) < 5 or (time.perf_counter() < deadline and len(times) < 1000):
        start = time.perf_counter()
        calls()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def microseconds(run: Run, num_tokens: int, hidden_size: int, dtype: torch.dtype, device: str) -> float:
    """Median microseconds of one call."""
    call_bytes = 2 * num_tokens * hidden_size * dtype.itemsize
    count = min(MAX_BUFFERS, -(-BYTES_PAST_CACHES // call_bytes))
    weight = torch.randn(hidden_size, device=device).to(dtype)
    inputs = [torch.randn(num_tokens, hidden_size, device=device).to(dtype) for _ in range(count)]
    outs = [torch.empty_like(x) for x in inputs]

    def calls() -> None:
        for x, out in zip(inputs, outs, strict=True):
            run(x, weight, out)

    return measure(calls, device) / count * 1e6


def main(device: str) -> None:
    """Print the table."""
    in_ci = bool(os.environ.get("CI"))
    shapes = [(128, 1024)] if in_ci else SHAPES + LARGE_SHAPES[device]
    runs = providers()
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    table = Table(title=f"rmsnorm on {name}, torch {torch.__version__}: microseconds per call")
    for column in ("dtype", "tokens x hidden", *runs):
        table.add_column(column, justify="right")
    for dtype, (num_tokens, hidden_size) in itertools.product(DTYPES[device], shapes):
        torch.compiler.reset()  # each shape is compiled for itself
        row = [f"{microseconds(run, num_tokens, hidden_size, dtype, device):.1f}" for run in runs.values()]
        table.add_row(str(dtype).removeprefix("torch."), f"{num_tokens} x {hidden_size}", *row)
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu")
