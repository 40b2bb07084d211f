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
import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sgljit_core import ops
from sgljit_quant import column_major_scales, packed_scales
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
GROUP, EXPERTS = 128, 8


@dataclass(frozen=True)
class Kind:
    """An op, with the dtype and the scales of its result."""

    heading: str
    op: str
    scales: str  # of "tensor", "given", "token", "group" or "packed", four exponents to an int32
    dtype: torch.dtype = torch.float8_e4m3fn

    @property
    def largest(self) -> int:
        """The largest magnitude of the result."""
        return 448 if self.dtype.is_floating_point else 127

    @property
    def is_masked(self) -> bool:
        """Whether only counted rows of experts are quantised."""
        return self.op.startswith("masked")

    def counts(self, tokens: int) -> torch.Tensor:
        """How many rows of each expert are counted."""
        experts = min(EXPERTS, tokens)
        return torch.arange(1, experts + 1, dtype=torch.int32) * (tokens // experts) // experts

    def ours(self) -> Run:
        """The op itself."""
        more = {"given": {"is_static": True}, "packed": {"scale_ue8m0": True}}.get(self.scales, {})
        return functools.partial(getattr(ops["quant"], self.op), **more)

    def make(self, tokens: int, hidden: int, device: str) -> tuple[torch.Tensor, ...]:
        """The arguments of a call."""
        x = torch.randn(tokens, hidden, device=device).to(DTYPE)
        if self.is_masked:
            counts = self.counts(tokens).to(device)
            x = x.view(len(counts), -1, hidden)
            scales = column_major_scales(x.shape[1], hidden // GROUP, device, experts=len(counts))
            return x, torch.empty(x.shape, dtype=self.dtype, device=device), scales, counts
        if self.scales == "packed":
            scales = packed_scales(tokens, hidden, device)
        else:
            size = {"token": (tokens, 1), "group": (tokens, hidden // GROUP)}.get(self.scales, (1,))
            scales = torch.full(size, 6 / self.largest, device=device)
        return x, torch.empty(x.shape, dtype=self.dtype, device=device), scales

    def grouped(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` by groups that have a scale."""
        return x.unflatten(-1, (-1, GROUP)) if self.scales in ("group", "packed") else x

    def eager(self, x: torch.Tensor, q: torch.Tensor, s: torch.Tensor, _counts: torch.Tensor | None = None) -> None:
        """The op in plain PyTorch."""
        x = self.grouped(x.float())
        if self.scales == "given":
            scale = s
        else:
            largest = x.abs().amax() if self.scales == "tensor" else x.abs().amax(-1, keepdim=True)
            scale = largest / self.largest
        if self.scales == "packed":
            exponents = scale.log2().ceil()
            scale = exponents.exp2()
            s.copy_((exponents.squeeze(-1) + 127).to(torch.uint8).view(torch.int32))
        elif self.scales != "given":
            s.copy_(scale.reshape(s.shape))
        scaled = x * (1 / scale)
        scaled = scaled if self.dtype.is_floating_point else scaled.round()
        q.copy_(scaled.clamp(-self.largest, self.largest).flatten(len(q.shape) - 1).to(self.dtype))

    def check(self, run: Run, arguments: tuple[torch.Tensor, ...]) -> None:
        """Check that a kernel computes the op: a figure of another computation would mean nothing.

        SGLang's kernel of int8 cuts off where ours rounds.
        """
        run(*arguments)
        x, q, s = arguments[:3]
        if self.is_masked:
            is_counted = torch.arange(x.shape[1], device=x.device) < arguments[3][:, None]
            x, q, s = x[is_counted], q[is_counted], s[is_counted]
        if self.scales == "packed":
            exponents = s.contiguous().view(torch.uint8).float() - 127
            s = exponents.exp2()
        scale = s.unsqueeze(-1) if self.scales in ("group", "packed") else s
        exact, found = self.grouped(x.float()), self.grouped(q.float()) * scale
        bound = exact.abs() / 15 + scale * 2**-9 if self.dtype.is_floating_point else scale * 1.01
        assert ((found - exact).abs() <= bound).all(), self.heading


KINDS = [
    Kind("per_tensor_quant_fp8, the scale computed", "per_tensor_quant_fp8", "tensor"),
    Kind("per_tensor_quant_fp8, the scale given", "per_tensor_quant_fp8", "given"),
    Kind("per_token_quant_fp8", "per_token_quant_fp8", "token"),
    Kind("per_token_quant_int8", "per_token_quant_int8", "token", torch.int8),
    Kind("per_token_group_quant_fp8, scales of float32", "per_token_group_quant_fp8", "group"),
    Kind("per_token_group_quant_fp8, four exponents to an int32", "per_token_group_quant_fp8", "packed"),
    Kind("per_token_group_quant_int8", "per_token_group_quant_int8", "group", torch.int8),
    Kind("masked_group_quant_fp8, scales of float32", "masked_group_quant_fp8", "group"),
]
PLOTTED = KINDS[2]


def providers(kind: Kind, device: str, peers: Any) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    runs = {"sgljit": kind.ours()}
    if (
        peers is not None and not kind.is_masked and (kind.scales != "token" or kind.dtype.is_floating_point)
    ):  # SGLang has it in Triton
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
        make = functools.partial(kind.make, tokens, hidden, device)
        kind.check(runs[provider], make())
        counted = int(kind.counts(tokens).sum()) if kind.is_masked else tokens
        return measure(runs[provider], make, num_bytes=3 * counted * hidden, seconds=0.03)

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
    for kind in KINDS:
        tables[kind.heading] = table(kind, arguments.device, peers)
        page = written(tables, arguments)
    sys.stdout.write(page)
    worst = max(row[name] for rows in tables.values() for row in rows for name in row if name.startswith("sgljit /"))
    sys.stdout.write("" if math.isnan(worst) else f"\nThe worst ratio: {worst:.2f}\n")


def written(tables: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """The page so far, written with its plot: a run may be cut short."""
    plots = {}
    if arguments.output is not None and PLOTTED.heading in tables:
        rows = tables[PLOTTED.heading]
        lines = [name for name in rows[0] if isinstance(rows[0][name], Figure)]
        picture = arguments.output.with_suffix(".svg")
        title = f"{PLOTTED.heading}, bfloat16"
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
