"""How fast is the activation in FP8 and int8 against two kernels, PyTorch, torch.compile, SGLang's kernels and a copy?

    python -m sgljit_activation.bench.bench_activation_quant [--device cpu|cuda] [--ops token,group] [--peers DIR]
        [--output FILE]

bfloat16 in; a group is 128 elements. The bytes of a call are those of the gate, the values and the output. "Two ops" is
``silu_and_mul`` and the quantisation of sgljit-quant, where that is installed. SGLang's are measured from ``--peers``,
a folder with a ``peers.py`` that offers its kernels: it has one for groups, of up to 8192 elements in a row.
Masked rows are those of eight experts, 1/8, 2/8, ... and all of which are counted: PyTorch's kernels compute all.
With CI set in the environment: one small shape for each.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import silu

from sgljit_core import ops
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Run = Callable[..., object]

DTYPE, GROUP, EXPERTS = torch.bfloat16, 128, 8
SHAPES = {
    # of an expert of Qwen3-MoE and DeepSeek-V3, of Qwen3, Llama and DeepSeek-V3
    "cuda": [(rows, size) for size in (768, 2048, 6144, 14336, 18432) for rows in (1, 16, 128, 1024, 4096, 16384)],
    "cpu": [(1, 6144), (128, 6144), (2048, 6144)],
}


@dataclass(frozen=True)
class Kind:
    """A form of the op: the scales of its result, and the dtype.

    Attributes:
        scales: of "given", "token", "group", "powers", "packed", four exponents to an int32, or "masked", of groups.
        two: the quantisation that gives the same after ``silu_and_mul``, and its options.
    """

    scales: str
    two: tuple[str, dict[str, bool]]
    dtype: torch.dtype = torch.float8_e4m3fn

    @property
    def largest(self) -> int:
        """The largest magnitude of the result."""
        return 448 if self.dtype.is_floating_point else 127

    @property
    def options(self) -> dict[str, bool]:
        """The options of ``silu_and_mul_quant``."""
        return {"is_static": self.scales == "given", "scale_ue8m0": self.scales in ("powers", "packed")}

    def make(self, rows: int, size: int, device: str) -> tuple[torch.Tensor, ...]:
        """The arguments of a call."""
        x = torch.randn(rows, 2 * size, device=device).to(DTYPE)
        if self.scales == "masked":
            counts = self.counts(rows).to(device)
            x = x.view(len(counts), -1, 2 * size)
            q = torch.empty(*x.shape[:2], size, dtype=self.dtype, device=device)
            return x, q, torch.empty(*x.shape[:2], size // GROUP, device=device), counts
        q = torch.empty(rows, size, dtype=self.dtype, device=device)
        if self.scales == "packed":  # by columns, as DeepGEMM takes them
            padded = (rows + 3) // 4 * 4
            return x, q, torch.zeros(-(-size // 512), padded, dtype=torch.int32, device=device).t()[:rows]
        shape = {"given": (1,), "token": (rows, 1)}.get(self.scales, (rows, size // GROUP))
        return x, q, torch.full(shape, 9 / self.largest, device=device)

    def counts(self, rows: int) -> torch.Tensor:
        """How many rows of each expert are counted; of one that has all, unless they are masked."""
        experts = min(EXPERTS, rows) if self.scales == "masked" else 1
        return torch.arange(1, experts + 1, dtype=torch.int32) * (rows // experts) // experts

    def eager(self, x: torch.Tensor, q: torch.Tensor, s: torch.Tensor, _counts: torch.Tensor | None = None) -> None:
        """The op in plain PyTorch."""
        gate, up = x.chunk(2, dim=-1)
        y = (silu(gate) * up).float()
        if self.scales not in ("given", "token"):
            y = y.unflatten(-1, (-1, GROUP))
        scale = s
        if self.scales != "given":
            scale = y.abs().amax(-1, keepdim=True) / self.largest
            if self.options["scale_ue8m0"]:
                exponents = scale.log2().ceil()
                scale = exponents.exp2()
            if self.scales == "packed":
                s.copy_((exponents.squeeze(-1) + 127).to(torch.uint8).view(torch.int32))
            else:
                s.copy_(scale.reshape(s.shape))
        scaled = y * (1 / scale)
        scaled = scaled if self.dtype.is_floating_point else scaled.round()
        q.copy_(scaled.clamp(-self.largest, self.largest).reshape(q.shape).to(self.dtype))

    def two_ops(self, x: torch.Tensor, *others: torch.Tensor) -> None:
        """``silu_and_mul`` and a quantisation."""
        name, options = self.two
        getattr(ops["quant"], name)(ops["activation"].silu_and_mul(x), *others, **options)

    def check(self, run: Run, arguments: tuple[torch.Tensor, ...]) -> None:
        """Check that a kernel computes the op: a figure of another computation would mean nothing."""
        run(*arguments)
        x, q, s = arguments[:3]
        if self.scales == "masked":
            is_counted = torch.arange(x.shape[1], device=x.device) < arguments[3][:, None]
            x, q, s = x[is_counted], q[is_counted], s[is_counted]
        groups = q.shape[1] // GROUP
        if self.scales == "packed":
            s = (s.clone(memory_format=torch.contiguous_format).view(torch.uint8)[:, :groups].float() - 127).exp2()
        gate, up = x.double().chunk(2, dim=-1)
        exact, found = silu(gate) * up, q.double()
        if self.scales not in ("given", "token"):
            s, exact, found = s.unsqueeze(-1), exact.unflatten(-1, (-1, GROUP)), found.unflatten(-1, (-1, GROUP))
        if self.scales == "given":
            exact = exact.clamp(-self.largest * s, self.largest * s)
        bound = exact.abs() / 14 + s * 2**-9 if self.dtype.is_floating_point else s * 1.01 + exact.abs() / 128
        assert ((found * s - exact).abs() <= bound).all(), self.scales


KINDS = {
    "given": Kind("given", ("per_tensor_quant_fp8", {"is_static": True})),
    "token": Kind("token", ("per_token_quant_fp8", {})),
    "token_int8": Kind("token", ("per_token_quant_int8", {}), torch.int8),
    "group": Kind("group", ("per_token_group_quant_fp8", {})),
    "group_int8": Kind("group", ("per_token_group_quant_int8", {}), torch.int8),
    "group_powers": Kind("powers", ("per_token_group_quant_fp8", {"scale_ue8m0": True})),
    "masked": Kind("masked", ("masked_group_quant_fp8", {})),
    "group_packed": Kind("packed", ("per_token_group_quant_fp8", {"scale_ue8m0": True})),
}


def providers(name: str, device: str, peers: Any) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    kind = KINDS[name]
    ours = functools.partial(ops["activation"].silu_and_mul_quant, **kind.options)
    runs: dict[str, Run] = {"sgljit": ops["activation"].silu_and_mul_masked_quant if name == "masked" else ours}
    if peers is not None and name in ("group", "group_packed"):
        runs["SGLang"] = peers.silu_and_mul_group_quant(name == "group_packed")
    if "quant" in ops:
        runs["two ops"] = kind.two_ops
    runs["PyTorch"] = kind.eager
    # On the CPU it would time a C++ compiler's vectors against torch's own; it makes no one kernel of packed scales.
    if device == "cuda" and kind.scales != "packed":
        runs["torch.compile"] = torch.compile(kind.eager, dynamic=False)
    return runs


def table(name: str, device: str, peers: Any) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    kind, runs = KINDS[name], providers(name, device, peers)

    def run(rows: int, size: int, provider: str) -> Figure | float:
        if provider == "torch.compile":
            torch.compiler.reset()  # each shape is compiled separately
        make = functools.partial(kind.make, rows, size, device)
        try:
            kind.check(runs[provider], make())
        except RuntimeError as error:
            if provider == "sgljit":
                raise
            sys.stderr.write(f"{provider} does not take {rows} x {size} of {name}: {error}\n")
            return math.nan
        return measure(runs[provider], make, num_bytes=5 * int(kind.counts(rows).sum()) * size, seconds=0.03)

    whole = 512 if kind.scales == "packed" else 1  # PyTorch's packs whole words
    places = [place for place in get_benchmark_range(SHAPES[device], [(128, 1024)]) if place[1] % whole == 0]
    rows = sweep(run, ["rows", "size"], places, list(runs))
    for row in rows:
        row["copy"] = row["sgljit"].copy_microseconds
    return rows


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of the activation whose result is quantised")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", default=",".join(KINDS), help="which, with commas between")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    note = (
        "bfloat16 in; the size is that of the output's rows. Microseconds per call, median; in brackets, the percent "
        "of a plain copy that moves as many bytes: four read and one written for each element."
    )
    tables: dict[str, list[dict[str, Any]]] = {}
    page = ""
    for name in arguments.ops.split(","):
        op = f"silu_and_mul{'_masked' if name == 'masked' else ''}_quant"
        tables[f"{op}, {name}"] = table(name, arguments.device, peers)
        # So far: a run may be cut short.
        page = write_results(arguments.output, "The activation, quantised", tables, note=note, device=arguments.device)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
