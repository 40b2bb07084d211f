"""How fast is the activation in FP8 and int8 against two kernels, PyTorch, torch.compile, SGLang's kernels and a copy?

    python -m sgljit_activation.bench.bench_activation_quant [--device cpu|cuda] [--ops token,group]
        [--columns sgljit,SGLang] [--peers DIR] [--output FILE]

bfloat16 in; a group is 128 elements. The bytes of a call are those of the gate, the values and the output. "Two ops" is
``silu_and_mul`` and the quantisation of sgljit-quant; of kinds with ``clamped_`` it is ``clamped_swiglu``. SGLang's are
measured from ``--peers``, a folder with a ``peers.py`` that offers its kernels: it has one for groups, of up to 8192
elements in a row.
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
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import silu

from sgljit_core import ops
from sgljit_quant.bench.kinds import Kind
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Run = Callable[..., object]

DTYPE = torch.bfloat16
SHAPES = {
    # of an expert of Qwen3-MoE and DeepSeek-V3, of Qwen3, Llama and DeepSeek-V3
    "cuda": [(rows, size) for size in (768, 2048, 6144, 14336, 18432) for rows in (1, 16, 128, 1024, 4096, 16384)],
    "cpu": [(1, 6144), (128, 6144), (2048, 6144)],
}


KINDS = {
    "given": Kind("per_tensor_quant_fp8", "given"),
    "token": Kind("per_token_quant_fp8", "token"),
    "token_int8": Kind("per_token_quant_int8", "token", torch.int8),
    "group": Kind("per_token_group_quant_fp8", "group"),
    "group_int8": Kind("per_token_group_quant_int8", "group", torch.int8),
    "group_powers": Kind("per_token_group_quant_fp8", "powers"),
    "masked": Kind("masked_group_quant_fp8", "group"),
    "group_packed": Kind("per_token_group_quant_fp8", "packed"),
}
COLUMNS = ("sgljit", "SGLang", "two ops", "PyTorch", "torch.compile")
CLAMPED = "clamped_"  # before a kind: of gpt-oss's activation
KINDS |= {CLAMPED + name: KINDS[name] for name in ("given", "token", "token_int8", "group", "group_packed", "masked")}


def op_of(name: str) -> str:
    """The op that is measured, by the name of its kind."""
    activation = "clamped_swiglu" if name.startswith(CLAMPED) else "silu_and_mul"
    return f"{activation}_masked_quant" if KINDS[name].is_masked else f"{activation}_quant"


def activated(name: str, x: torch.Tensor) -> torch.Tensor:
    """The activation in plain PyTorch."""
    gate, up = x.chunk(2, dim=-1)
    if not name.startswith(CLAMPED):
        return silu(gate) * up
    gate = gate.clamp(max=7)
    return (up.clamp(-7, 7) + 1) * (gate * torch.sigmoid(1.702 * gate))


def eager(name: str, x: torch.Tensor, *outputs: torch.Tensor) -> None:
    """The op in plain PyTorch."""
    KINDS[name].eager(activated(name, x), *outputs)


def two_ops(name: str, x: torch.Tensor, *outputs: torch.Tensor) -> None:
    """The activation and a quantisation."""
    activation = ops["activation"].clamped_swiglu if name.startswith(CLAMPED) else ops["activation"].silu_and_mul
    KINDS[name].run(activation(x), *outputs)


def providers(name: str, device: str, peers: Any) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    kind = KINDS[name]
    op = getattr(ops["activation"], op_of(name))
    runs: dict[str, Run] = {"sgljit": op if kind.is_masked else functools.partial(op, **kind.options)}
    if peers is not None and name in ("group", "group_packed"):
        runs["SGLang"] = peers.silu_and_mul_group_quant(name == "group_packed")
    runs["two ops"] = functools.partial(two_ops, name)
    runs["PyTorch"] = functools.partial(eager, name)
    # On the CPU it would time a C++ compiler's vectors against torch's own; it makes no one kernel of packed scales.
    if device == "cuda" and kind.scales != "packed":
        runs["torch.compile"] = torch.compile(runs["PyTorch"], dynamic=False)
    return runs


def table(name: str, device: str, peers: Any, columns: set[str]) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    kind, runs = KINDS[name], providers(name, device, peers)
    runs = {column: run for column, run in runs.items() if column in columns}

    def run(rows: int, size: int, provider: str) -> Figure | float:
        if provider == "torch.compile":
            torch.compiler.reset()  # each shape is compiled separately

        def make() -> tuple[torch.Tensor, ...]:
            x = torch.randn(rows, 2 * size, device=device).to(DTYPE)
            return kind.of_experts(x), *kind.outputs(rows, size, device)

        x, *outputs = make()
        try:
            runs[provider](x, *outputs)
        except RuntimeError as error:
            if provider == "sgljit":
                raise
            sys.stderr.write(f"{provider} does not take {rows} x {size} of {name}: {error}\n")
            return math.nan
        # PyTorch rounds the argument of the sigmoid, too: 1.702 times a gate of -5 by up to 2**-6.
        slack = 2**-5 if name.startswith(CLAMPED) else 2**-7
        kind.check(activated(name, x.double()), *outputs, slack=slack)
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
    parser.add_argument("--columns", default=",".join(COLUMNS), help="likewise; torch.compile takes most of the time")
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    columns = set(arguments.columns.split(","))
    if "sgljit" not in columns or not columns <= {*COLUMNS}:
        parser.error(f"--columns: expected sgljit and some of {', '.join(COLUMNS[1:])}; got {arguments.columns}")
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
        tables[f"{op_of(name)}, {name.removeprefix(CLAMPED)}"] = table(name, arguments.device, peers, columns)
        # So far: a run may be cut short.
        page = write_results(arguments.output, "The activation, quantised", tables, note=note, device=arguments.device)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
