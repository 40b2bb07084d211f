"""How fast are the family's ops against PyTorch, torch.compile, other libraries' kernels and a plain copy?

    python -m sgljit_norm.bench.bench_norm [--device cpu|cuda] [--ops rmsnorm,layernorm] [--dtypes bfloat16,float16]
        [--peers DIR] [--output norm.md] [--json FILE]

A few shapes, also on the CPU; ``grid.py`` measures all sizes of open models on a GPU. ``--peers`` names a folder with a
``peers.py`` that offers SGLang's kernels; FlashInfer's are measured if it is installed. On the CPU also the cost of a
call compared with the exported C++ function. With CI set in the environment: one small shape for each op.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import sys
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm

from sgljit_core import ops
from sgljit_norm.plugin import FAMILY
from sgljit_tools.benchmark import Figure, get_benchmark_range, is_in_ci, measure
from sgljit_tools.benchmark.results import sweep, write_plot, write_results

Tensors = tuple[torch.Tensor, ...]
Run = Callable[..., object]

EPS = 1e-6
HEADS = (32, 8)
HEAD_DIM = 128
ROWS = (1, 128, 512, 1024, 2048, 16384)
ON_CPU = [(1, 4096), (128, 4096), (4096, 4096)]
SHAPES = {
    "cuda": [*((rows, 4096) for rows in ROWS), (16384, 1024), (16384, 8192), (4096, 16384)],
    "cpu": ON_CPU,
}
FEWER_SHAPES = {"cuda": [(1, 4096), (1024, 4096), (16384, 4096), (16384, 8192)], "cpu": ON_CPU}
TOKENS = {"cuda": [1, 16, 128, 1024, 16384], "cpu": [1, 128, 4096]}
FEWER_TOKENS = {"cuda": [1, 128, 16384], "cpu": [1, 128, 4096]}
Q_AND_K = (6144, 1024)  # all heads of q, of k

family = ops["norm"]


@dataclass(frozen=True)
class Subject:
    """An op and how to measure it.

    Attributes:
        shapes: by device.
        make: a set of arguments; ``make(tokens, size, dtype, device)``.
        passes: how often an element of the first argument's shape is read or written.
        pytorch: the same in PyTorch, in place where the op is.
    """

    shapes: dict[str, list[tuple[int, int]]]
    make: Callable[[int, int, torch.dtype, str], Tensors]
    passes: int
    pytorch: Run


def out_of_place(tokens: int, size: int, dtype: torch.dtype, device: str) -> Tensors:
    """The arguments of rmsnorm."""
    x = torch.randn(tokens, size, device=device).to(dtype)
    return x, weight(size, dtype, device), torch.empty_like(x)


def with_residual(tokens: int, size: int, dtype: torch.dtype, device: str) -> Tensors:
    """The arguments of fused_add_rmsnorm."""
    x, w, residual = out_of_place(tokens, size, dtype, device)
    return x, residual.normal_(), w


def between_norms(tokens: int, size: int, dtype: torch.dtype, device: str) -> Tensors:
    """The arguments of fused_rmsnorm_add_rmsnorm."""
    return *with_residual(tokens, size, dtype, device), weight(size, dtype, device)


def with_bias(tokens: int, size: int, dtype: torch.dtype, device: str) -> Tensors:
    """The arguments of layernorm."""
    x, w, out = out_of_place(tokens, size, dtype, device)
    return x, w, weight(size, dtype, device), out


def q_and_k(tokens: int, _heads: int, dtype: torch.dtype, device: str) -> Tensors:
    """The arguments of fused_inplace_qknorm."""
    q, k = (torch.randn(tokens, heads, HEAD_DIM, device=device).to(dtype) for heads in HEADS)
    return q, k, weight(HEAD_DIM, dtype, device), weight(HEAD_DIM, dtype, device)


def q_and_k_rows(tokens: int, _size: int, dtype: torch.dtype, device: str) -> Tensors:
    """The arguments of fused_inplace_qknorm_across_heads."""
    q, k = (torch.randn(tokens, size, device=device).to(dtype) for size in Q_AND_K)
    return q, k, weight(Q_AND_K[0], dtype, device), weight(Q_AND_K[1], dtype, device)


def weight(size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A vector."""
    return torch.randn(size, device=device).to(dtype)


def pytorch_rmsnorm(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    """Rmsnorm in plain PyTorch."""
    out.copy_(rms_norm(x, w.shape, w, EPS))


def pytorch_fused_add(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> None:
    """fused_add_rmsnorm in plain PyTorch."""
    residual.add_(x)
    x.copy_(rms_norm(residual, w.shape, w, EPS))


def pytorch_between_norms(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, next_w: torch.Tensor) -> None:
    """fused_rmsnorm_add_rmsnorm in plain PyTorch."""
    residual.add_(rms_norm(x, w.shape, w, EPS))
    x.copy_(rms_norm(residual, next_w.shape, next_w, EPS))


def pytorch_qknorm(q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor) -> None:
    """Both normalisations of q and k in plain PyTorch."""
    q.copy_(rms_norm(q, q_weight.shape, q_weight, EPS))
    k.copy_(rms_norm(k, k_weight.shape, k_weight, EPS))


def pytorch_layernorm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Layernorm in plain PyTorch."""
    out.copy_(layer_norm(x, w.shape, w, b, 1e-5))


def of_heads(tokens: dict[str, list[int]], size: int) -> dict[str, list[tuple[int, int]]]:
    """Shapes of the ops of q and k."""
    return {device: [(count, size) for count in counts] for device, counts in tokens.items()}


SUBJECTS = {
    "rmsnorm": Subject(SHAPES, out_of_place, 2, pytorch_rmsnorm),
    "fused_add_rmsnorm": Subject(SHAPES, with_residual, 4, pytorch_fused_add),
    "fused_rmsnorm_add_rmsnorm": Subject(FEWER_SHAPES, between_norms, 4, pytorch_between_norms),
    "fused_inplace_qknorm": Subject(of_heads(TOKENS, sum(HEADS) * HEAD_DIM), q_and_k, 2, pytorch_qknorm),
    "fused_inplace_qknorm_across_heads": Subject(of_heads(FEWER_TOKENS, sum(Q_AND_K)), q_and_k_rows, 2, pytorch_qknorm),
    "layernorm": Subject(FEWER_SHAPES, with_bias, 2, pytorch_layernorm),
}


def sglang(op: str, dtype: torch.dtype, peers: Any) -> Run | None:
    """SGLang's JIT kernel for an op, if it has one."""
    if peers is None or dtype != torch.bfloat16:
        return None
    if op == "rmsnorm":
        return lambda x, w, out: peers.rmsnorm(x.shape[1])(x, w, out, EPS)
    if op == "fused_add_rmsnorm":
        return lambda x, residual, w: peers.fused_add_rmsnorm()(x, residual, w, EPS)
    if op == "fused_inplace_qknorm":
        return lambda q, k, q_weight, k_weight: peers.qknorm(HEAD_DIM)(q, k, q_weight, k_weight, EPS)
    return None


def build(peers: Any, sizes: set[int]) -> None:
    """Compile SGLang's kernels side by side, ten seconds each; one that does not compile fails when it is measured."""
    wanted = [*((peers.rmsnorm, size) for size in sizes), (peers.fused_add_rmsnorm,), (peers.qknorm, HEAD_DIM)]
    with ThreadPoolExecutor(len(wanted)) as pool:
        for kernel, *arguments in wanted:
            pool.submit(kernel, *arguments)


def flashinfer(op: str) -> Run | None:
    """FlashInfer's kernel for an op, if it is installed and has one."""
    if importlib.util.find_spec("flashinfer") is None:
        return None
    norm = importlib.import_module("flashinfer.norm")
    if op == "rmsnorm":
        return lambda x, w, out: norm.rmsnorm(x, w, EPS, out=out)
    if op == "fused_add_rmsnorm":
        return lambda x, residual, w: norm.fused_add_rmsnorm(x, residual, w, EPS)
    return None


def providers(op: str, dtype: torch.dtype, device: str, peers: Any) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    plain = SUBJECTS[op].pytorch
    runs: dict[str, Run | None] = {"sgljit": getattr(family, op)}
    if device == "cuda":
        runs |= {"SGLang": sglang(op, dtype, peers), "FlashInfer": flashinfer(op)}
    runs["PyTorch"] = plain
    if device == "cuda":  # on the CPU it would time a C++ compiler's vectors against torch's own
        runs["torch.compile"] = torch.compile(plain, dynamic=False)
    return {name: run for name, run in runs.items() if run is not None}


def check(op: str, run: Run, tensors: Tensors) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    expected = [tensor.double() for tensor in tensors]
    SUBJECTS[op].pytorch(*expected)
    run(*tensors)
    for got, wanted in zip(tensors, expected, strict=True):
        assert (got - wanted).norm() <= 0.02 * wanted.norm(), op


def table(op: str, dtype: torch.dtype, device: str, peers: Any) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    subject = SUBJECTS[op]
    shapes = subject.shapes[device]
    runs = providers(op, dtype, device, peers)

    def run(tokens: int, size: int, provider: str) -> Figure | float:
        torch.compiler.reset()  # each shape is compiled separately
        try:
            check(op, runs[provider], subject.make(tokens, size, dtype, device))
        except RuntimeError as error:
            if provider == "sgljit":
                raise
            sys.stderr.write(f"{provider} does not take {tokens} x {size} of {op}: {error}\n")
            return math.nan
        # Kernels read a model's weights each time they run, so all calls share them.
        shared = [tensor for tensor in subject.make(1, size, dtype, device) if tensor.dim() == 1]

        def make() -> Tensors:
            own = iter(shared)
            return tuple(
                next(own) if tensor.dim() == 1 else tensor for tensor in subject.make(tokens, size, dtype, device)
            )

        num_bytes = subject.passes * tokens * size * dtype.itemsize
        if is_in_ci():  # only shows that it runs: its data may stay in a cache
            return measure(runs[provider], [make()], num_bytes=num_bytes, seconds=0.01)
        return measure(runs[provider], make, num_bytes=num_bytes, seconds=0.05)

    places = get_benchmark_range(shapes, shapes[1:2])
    rows = sweep(run, ["tokens", "size"], places, list(runs))
    for row in rows:
        row["copy"] = row["sgljit"].copy_microseconds
    return rows


def overheads() -> list[dict[str, Any]]:
    """The cost of a call on small CPU tensors: of the op, and of the exported function itself."""
    rows = []
    for op, subject in SUBJECTS.items():
        tensors = {f"x{i}": tensor for i, tensor in enumerate(subject.make(1, 64, torch.float32, "cpu"))}
        has_option = op == "fused_inplace_qknorm" or "add_rmsnorm" in op  # a width of rows, or round_first
        defaults = ["1e-6", "0"] if has_option else ["1e-6"]
        calls = {
            "call": (getattr(family, op), ", ".join(tensors)),
            "exported": (getattr(FAMILY.host_module(), op), ", ".join([*tensors, *defaults])),
        }
        number = 100 if is_in_ci() else 20_000
        nanoseconds = {
            name: min(timeit.repeat(f"f({text})", globals={"f": f, **tensors}, number=number, repeat=9)) / number * 1e9
            for name, (f, text) in calls.items()
        }
        rows.append({"op": op, **nanoseconds, "ratio": nanoseconds["call"] / nanoseconds["exported"]})
    return rows


def plain(value: Any) -> Any:
    """A cell for a JSON file."""
    return {"microseconds": value.microseconds, "copy": value.copy_microseconds} if isinstance(value, Figure) else value


def main() -> None:
    """Measure, print, and write the page and its plots."""
    parser = argparse.ArgumentParser(description="Time of the norm family's ops")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", default=",".join(SUBJECTS), help="which, with commas between")
    parser.add_argument("--dtypes", default="bfloat16", help="which, with commas between")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here, and plots beside it")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
        build(peers, {size for _, size in SHAPES["cuda"]})
    tables = {
        f"{op}, {dtype}": table(op, getattr(torch, dtype), arguments.device, peers)
        for dtype in arguments.dtypes.split(",")
        for op in arguments.ops.split(",")
    }
    plots = {}
    if arguments.output is not None:
        for title, rows in tables.items():
            lines = [name for name in rows[0] if isinstance(rows[0][name], Figure)]
            picture = arguments.output.with_name(f"{arguments.output.stem}_{title.replace(', ', '_')}.svg")
            place = lambda row: f"{row['tokens']} x {row['size']}"  # noqa: E731
            if write_plot(picture, rows, lines, place=place, quantity="percent_of_copy", title=title):
                plots[f"{title}: percent of a plain copy"] = Path(picture.name)
    ratios = [row[name] for rows in tables.values() for row in rows for name in row if name.startswith("sgljit /")]
    if arguments.device == "cpu":
        tables["Call overhead, nanoseconds"] = overheads()
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps(
                {title: [{name: plain(v) for name, v in row.items()} for row in rows] for title, rows in tables.items()}
            )
        )
    note = (
        "Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes as the op "
        "must read and write."
    )
    page = write_results(arguments.output, "Normalisation", tables, note=note, plots=plots, device=arguments.device)
    sys.stdout.write(page)
    worst = max((ratio for ratio in ratios if not math.isnan(ratio)), default=math.nan)
    sys.stdout.write("" if math.isnan(worst) else f"\nThe worst ratio: {worst:.2f}\n")


if __name__ == "__main__":
    main()
