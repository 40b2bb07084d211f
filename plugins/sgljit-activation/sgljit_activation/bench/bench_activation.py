"""How fast are the activations against PyTorch, torch.compile, SGLang's kernels and a plain copy?

    python -m sgljit_activation.bench.bench_activation [--device cpu|cuda] [--ops silu_and_mul,...] [--dtype bfloat16]
        [--peers DIR] [--output FILE]

SGLang's are measured where it can be imported, or, in bfloat16, from ``--peers``, a folder with a ``peers.py`` that
offers its kernels; it has none of gpt-oss's. The bytes of a call are those of the gate, the values and the output.
With CI set in the environment: one small shape for each op.
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
from torch.nn.functional import gelu, silu

from sgljit_activation import reference
from sgljit_core import ops
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Run = Callable[[torch.Tensor, torch.Tensor], object]

SIZES = (6144, 12288)
MODELS = (768, 1536, 2048, 14336, 18432, 28672)  # experts of Qwen3-MoE and DeepSeek-V3; Llama, DeepSeek-V3, Llama 70B
GPT_OSS = 2880
SHAPES = {
    "cuda": [(rows, size) for size in SIZES for rows in (1, 16, 128, 1024, 2048, 16384)],
    "cpu": [(1, 6144), (128, 6144), (2048, 6144)],
}
MORE_SHAPES = {"cuda": [(rows, size) for size in MODELS for rows in (1, 8, 64, 512, 4096)], "cpu": []}
OF_GPT_OSS = {"cuda": [(rows, GPT_OSS) for rows in (1, 4, 64, 512, 4096, 16384)], "cpu": [(4, GPT_OSS), (512, GPT_OSS)]}
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_and_mul": silu,
    "gelu_and_mul": gelu,
    "gelu_tanh_and_mul": functools.partial(gelu, approximate="tanh"),
}
IN_TURN = "clamped_swiglu_in_turn"  # gates and values, as gpt-oss's weights give them
OPS = [*ACTIVATIONS, "clamped_swiglu", IN_TURN]


def ours(op: str) -> Run:
    """The op itself."""
    if op == IN_TURN:
        return functools.partial(ops["activation"].clamped_swiglu, is_interleaved=True)
    run: Run = getattr(ops["activation"], op)
    return run


def exact(op: str, x: torch.Tensor) -> torch.Tensor:
    """The result in float64, rounded once."""
    if op == IN_TURN:
        return reference.clamped_swiglu(x, is_interleaved=True)
    result: torch.Tensor = getattr(reference, op)(x)
    return result


def pytorch(op: str, x: torch.Tensor, out: torch.Tensor) -> None:
    """The op in plain PyTorch."""
    gate, up = (x[..., ::2], x[..., 1::2]) if op == IN_TURN else x.chunk(2, dim=-1)
    if op in ACTIVATIONS:
        torch.mul(ACTIVATIONS[op](gate), up, out=out)
    else:  # as transformers computes it
        gate = gate.clamp(max=7)
        torch.mul(up.clamp(-7, 7) + 1, gate * torch.sigmoid(gate * 1.702), out=out)


def providers(op: str, dtype: torch.dtype, device: str, peers: Any) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    runs: dict[str, Run] = {"sgljit": ours(op)}
    if op in ACTIVATIONS and device == "cuda":
        if peers is not None and dtype == torch.bfloat16:
            runs["SGLang"] = peers.activation(op.removesuffix("_and_mul"))
        elif importlib.util.find_spec("sglang") is not None:
            runs["SGLang"] = getattr(importlib.import_module("sglang.kernels.ops.activation.activation"), op)
    runs["PyTorch"] = functools.partial(pytorch, op)
    if device == "cuda":  # on the CPU it would time a C++ compiler's vectors against torch's own
        runs["torch.compile"] = torch.compile(runs["PyTorch"], dynamic=False)
    return runs


def make(rows: int, size: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The arguments of a call."""
    return (
        torch.randn(rows, 2 * size, device=device).to(dtype),
        torch.empty(rows, size, device=device, dtype=dtype),
    )


def table(op: str, dtype: torch.dtype, device: str, peers: Any) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    runs = providers(op, dtype, device, peers)

    def run(rows: int, size: int, provider: str) -> Figure | float:
        torch.compiler.reset()  # each shape is compiled separately
        x, out = make(rows, size, dtype, device)
        try:
            runs[provider](x, out)
        except RuntimeError as error:
            if provider == "sgljit":
                raise
            sys.stderr.write(f"{provider} does not take {rows} x {size} of {op}: {error}\n")
            return math.nan
        torch.testing.assert_close(out, exact(op, x), rtol=0.02, atol=0.02 if op in ACTIVATIONS else 0.1)
        num_bytes = 3 * rows * size * dtype.itemsize
        return measure(runs[provider], lambda: make(rows, size, dtype, device), num_bytes=num_bytes, seconds=0.03)

    shapes = SHAPES[device] + (MORE_SHAPES[device] if op == "silu_and_mul" else [])
    shapes = shapes if op in ACTIVATIONS else OF_GPT_OSS[device]
    places = get_benchmark_range(shapes, shapes[1:2])
    rows = sweep(run, ["rows", "size"], places, list(runs))
    for row in rows:
        row["copy"] = row["sgljit"].copy_microseconds
    return rows


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of the gated activations")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", default=",".join(OPS), help="which, with commas between")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--peers", type=Path, help="a folder with peers.py")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    peers = None
    if arguments.peers is not None:
        sys.path.insert(0, str(arguments.peers))
        peers = importlib.import_module("peers").Peers(arguments.peers.resolve())
    tables = {op: table(op, arguments.dtype, arguments.device, peers) for op in arguments.ops.split(",")}
    note = (
        f"{str(arguments.dtype).removeprefix('torch.')}; the size is that of the output's rows. Microseconds per call, "
        "median; in brackets, the percent of a plain copy that moves as many bytes."
    )
    sys.stdout.write(write_results(arguments.output, "Gated activations", tables, note=note, device=arguments.device))


if __name__ == "__main__":
    main()
