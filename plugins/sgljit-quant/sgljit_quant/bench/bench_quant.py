"""How fast is quantisation to FP8 against PyTorch, torch.compile, other libraries' kernels and a plain copy?

    python -m sgljit_quant.bench.bench_quant [--device cpu|cuda] [--peers DIR] [--output bench/results/quant.md]

bfloat16 in, e4m3 out. The bytes of a call are those of the input, read once, and of the output. A computed scale for a
tensor larger than the last cache needs more: the input must be read twice. ``--peers`` names a folder with a
``peers.py`` that offers SGLang's kernels; sgl_kernel's are measured if it is installed.
With CI set in the environment: one small shape.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_plot, write_results

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]

FP8 = torch.float8_e4m3fn
DTYPE = torch.bfloat16
SHAPES = {
    "cuda": [
        (1, 4096),
        (16, 4096),
        (128, 4096),
        (512, 4096),
        (1024, 4096),
        (2048, 4096),
        (16384, 1024),
        (16384, 4096),
        (16384, 8192),
        (4096, 16384),
    ],
    "cpu": [(1, 4096), (128, 4096), (4096, 4096)],
}
TABLES = {
    "dynamic": "per_tensor_quant_fp8, the scale computed",
    "static": "per_tensor_quant_fp8, the scale given",
    "token": "per_token_quant_fp8",
}

family = ops["quant"]


def eager(kind: str, x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> None:
    """The op in plain PyTorch."""
    x = x.float()
    if kind != "static":
        largest = x.abs().amax(-1, keepdim=True) if kind == "token" else x.abs().amax()
        s.copy_((largest / 448).reshape(s.shape))
    q.copy_((x * (1 / s)).clamp(-448, 448).to(FP8))


def providers(kind: str, device: str, peers: Any) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    plain = functools.partial(eager, kind)
    ours: Run = family.per_token_quant_fp8
    if kind != "token":
        ours = functools.partial(family.per_tensor_quant_fp8, is_static=kind == "static")
    runs: dict[str, Run] = {"sgljit": ours}
    if peers is not None:
        runs["SGLang"] = sglang(kind, peers)
    if device == "cuda" and importlib.util.find_spec("sgl_kernel") is not None:
        runs["sgl_kernel"] = sgl_kernel(kind)
    runs["PyTorch"] = plain
    if device == "cuda":  # on the CPU it would time a C++ compiler's vectors against torch's own
        runs["torch.compile"] = torch.compile(plain, dynamic=False)
    return runs


def zeroed(run: Callable[..., object], *more: object) -> Run:
    """A kernel that raises an existing scale, used like its callers do: on a scale of zero."""

    def call(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> None:
        s.zero_()
        run(x, q, s, *more)

    return call


def sglang(kind: str, peers: Any) -> Run:
    """SGLang's JIT kernels, which take a 1-d tensor if there is one scale."""
    if kind == "token":
        run: Run = peers.per_token_quant_fp8()
        return run
    flat = peers.per_tensor_quant_fp8(kind == "static")

    def call(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> None:
        flat(x.view(-1), q.view(-1), s)

    return call if kind == "static" else zeroed(call)


def sgl_kernel(kind: str) -> Run:
    """The kernels of the sgl_kernel package."""
    package = importlib.import_module("sgl_kernel")
    if kind == "token":
        run: Run = package.sgl_per_token_quant_fp8
        return run
    if kind == "static":
        return lambda x, q, s: package.sgl_per_tensor_quant_fp8(x, q, s, True)
    return zeroed(package.sgl_per_tensor_quant_fp8, False)


def check(run: Run, kind: str, arguments: tuple[torch.Tensor, ...]) -> None:
    """Check that a kernel computes the op: a figure of another computation would mean nothing."""
    x, q, s = arguments
    run(x, q, s)
    error = (q.float() * s - x.float()).abs()
    assert (error <= x.float().abs() / 15 + s * 2**-9).all(), kind


def table(kind: str, device: str, peers: Any) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    runs = providers(kind, device, peers)

    def run(tokens: int, hidden: int, provider: str) -> Figure:
        def make() -> tuple[torch.Tensor, ...]:
            x = torch.randn(tokens, hidden, device=device).to(DTYPE)
            scales = torch.full((tokens, 1) if kind == "token" else (1,), 6 / 448, device=device)
            return x, torch.empty(x.shape, dtype=FP8, device=device), scales

        if provider == "torch.compile":
            torch.compiler.reset()  # each shape is compiled separately
        check(runs[provider], f"{provider}, {kind}", make())
        return measure(runs[provider], make, num_bytes=3 * tokens * hidden, seconds=0.03)

    places = get_benchmark_range(SHAPES[device], [(128, 1024)])
    rows = sweep(run, ["tokens", "hidden"], places, list(runs))
    for row in rows:
        row["copy"] = row["sgljit"].copy_microseconds
    return rows


def main() -> None:
    """Measure, print, and write the page and its plot."""
    parser = argparse.ArgumentParser(description="Time of quantisation to FP8")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here, and the plot beside it")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    tables = {heading: table(kind, arguments.device, peers) for kind, heading in TABLES.items()}
    plots = {}
    if arguments.output is not None:
        rows = tables[TABLES["token"]]
        lines = [name for name in rows[0] if isinstance(rows[0][name], Figure)]
        picture = arguments.output.with_suffix(".svg")
        title = f"{TABLES['token']}, bfloat16"
        place = lambda row: f"{row['tokens']} x {row['hidden']}"  # noqa: E731
        if write_plot(picture, rows, lines, place=place, quantity="percent_of_copy", title=title):
            plots[f"{title}: percent of a plain copy"] = Path(picture.name)
    note = (
        "Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes: "
        "two read and one written for each element."
    )
    page = write_results(
        arguments.output, "Quantisation to FP8", tables, note=note, plots=plots, device=arguments.device
    )
    sys.stdout.write(page)
    worst = max(row[name] for rows in tables.values() for row in rows for name in row if name.startswith("sgljit /"))
    sys.stdout.write("" if math.isnan(worst) else f"\nThe worst ratio: {worst:.2f}\n")


if __name__ == "__main__":
    main()
