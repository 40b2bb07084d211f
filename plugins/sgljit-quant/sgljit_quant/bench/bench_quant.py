"""How fast is quantisation to FP8 and int8 against PyTorch, torch.compile, other libraries' kernels and a plain copy?

    python -m sgljit_quant.bench.bench_quant [--device cpu|cuda] [--peers DIR] [--output bench/results/quant.md]

bfloat16 in, e4m3 or int8 out; a group is 128 elements. The bytes of a call are those of the input, read once, and of
the output. A computed scale for a tensor larger than the last cache needs more: the input must be read twice. Masked
rows are those of eight experts, 1/8, 2/8, ... and all of which are counted: PyTorch's kernels quantise all.
``--peers`` names a folder with a ``peers.py`` that offers SGLang's kernels; sgl_kernel's are measured if it is
installed.
With CI set in the environment: one small shape.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgljit_quant.bench.kinds import Kind
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_plot, write_results

Run = Callable[..., object]

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
KINDS = {
    "per_tensor_quant_fp8, the scale computed": Kind("per_tensor_quant_fp8", "tensor"),
    "per_tensor_quant_fp8, the scale given": Kind("per_tensor_quant_fp8", "given"),
    "per_token_quant_fp8": Kind("per_token_quant_fp8", "token"),
    "per_token_quant_int8": Kind("per_token_quant_int8", "token", torch.int8),
    "per_token_group_quant_fp8, scales of float32": Kind("per_token_group_quant_fp8", "group"),
    "per_token_group_quant_fp8, four exponents to an int32": Kind("per_token_group_quant_fp8", "packed"),
    "per_token_group_quant_int8": Kind("per_token_group_quant_int8", "group", torch.int8),
    "masked_group_quant_fp8, scales of float32": Kind("masked_group_quant_fp8", "group"),
}
PLOTTED = "per_token_quant_fp8"


def providers(kind: Kind, device: str, peers: Any) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    runs: dict[str, Run] = {"sgljit": kind.run}
    is_of_triton = kind.scales == "token" and not kind.dtype.is_floating_point  # as SGLang has it
    if peers is not None and not is_of_triton and not kind.is_masked:
        runs["SGLang"] = sglang(kind, peers)
    is_of_groups = kind.scales in ("group", "packed")
    is_there = device == "cuda" and importlib.util.find_spec("sgl_kernel") is not None
    if is_there and not is_of_groups and kind.dtype.is_floating_point:
        runs["sgl_kernel"] = sgl_kernel(kind)
    runs["PyTorch"] = kind.eager
    # On the CPU it would time a C++ compiler's vectors against torch's own; it makes no one kernel of packed scales.
    if device == "cuda" and kind.scales != "packed":
        runs["torch.compile"] = torch.compile(kind.eager, dynamic=False)
    return runs


def zeroed(run: Callable[..., object], *more: object) -> Run:
    """A kernel that raises an existing scale, used like its callers do: on a scale of zero."""

    def call(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> None:
        s.zero_()
        run(x, q, s, *more)

    return call


def sglang(kind: Kind, peers: Any) -> Run:
    """SGLang's JIT kernels, which take a 1-d tensor if there is one scale."""
    if kind.scales in ("token", "group", "packed"):
        is_packed, is_float = kind.scales == "packed", kind.dtype.is_floating_point
        run: Run = (
            peers.per_token_quant_fp8()
            if kind.scales == "token"
            else peers.per_token_group_quant("fp8" if is_float else "int8", is_packed)
        )
        return run
    flat = peers.per_tensor_quant_fp8(kind.scales == "given")

    def call(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> None:
        flat(x.view(-1), q.view(-1), s)

    return call if kind.scales == "given" else zeroed(call)


def sgl_kernel(kind: Kind) -> Run:
    """The kernels of the sgl_kernel package."""
    package = importlib.import_module("sgl_kernel")
    if kind.scales == "token":
        run: Run = package.sgl_per_token_quant_fp8
        return run
    if kind.scales == "given":
        return lambda x, q, s: package.sgl_per_tensor_quant_fp8(x, q, s, True)
    return zeroed(package.sgl_per_tensor_quant_fp8, False)


def table(kind: Kind, device: str, peers: Any) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    runs = providers(kind, device, peers)

    def run(tokens: int, hidden: int, provider: str) -> Figure:
        if provider == "torch.compile":
            torch.compiler.reset()  # each shape is compiled separately

        def make() -> tuple[torch.Tensor, ...]:
            x = torch.randn(tokens, hidden, device=device).to(DTYPE)
            return kind.of_experts(x), *kind.outputs(tokens, hidden, device)

        arguments = make()
        runs[provider](*arguments)
        kind.check(*arguments)
        return measure(runs[provider], make, num_bytes=3 * int(kind.counts(tokens).sum()) * hidden, seconds=0.03)

    places = get_benchmark_range(SHAPES[device], [(128, 1024)])
    rows = sweep(run, ["tokens", "hidden"], places, list(runs))
    for row in rows:
        row["copy"] = row["sgljit"].copy_microseconds
    return rows


def main() -> None:
    """Measure, print, and write the page and its plot."""
    parser = argparse.ArgumentParser(description="Time of quantisation to FP8 and int8")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here, and the plot beside it")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    tables: dict[str, list[dict[str, Any]]] = {}
    for heading, kind in KINDS.items():
        tables[heading] = table(kind, arguments.device, peers)
        page = written(tables, arguments)
    sys.stdout.write(page)
    worst = max(row[name] for rows in tables.values() for row in rows for name in row if name.startswith("sgljit /"))
    sys.stdout.write("" if math.isnan(worst) else f"\nThe worst ratio: {worst:.2f}\n")


def written(tables: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """The page so far, written with its plot: a run may be cut short."""
    plots = {}
    if arguments.output is not None and PLOTTED in tables:
        rows = tables[PLOTTED]
        lines = [name for name in rows[0] if isinstance(rows[0][name], Figure)]
        picture = arguments.output.with_suffix(".svg")
        title = f"{PLOTTED}, bfloat16"
        place = lambda row: f"{row['tokens']} x {row['hidden']}"  # noqa: E731
        if write_plot(picture, rows, lines, place=place, quantity="percent_of_copy", title=title):
            plots[f"{title}: percent of a plain copy"] = Path(picture.name)
    note = (
        "Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes: "
        "two read and one written for each element."
    )
    return write_results(
        arguments.output, "Quantisation to FP8 and int8", tables, note=note, plots=plots, device=arguments.device
    )


if __name__ == "__main__":
    main()
