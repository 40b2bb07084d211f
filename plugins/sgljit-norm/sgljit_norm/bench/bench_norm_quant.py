"""How fast are the norms in FP8 and int8 against two kernels, PyTorch, torch.compile and a plain copy?

    python -m sgljit_norm.bench.bench_norm_quant [--device cpu|cuda] [--ops rmsnorm_quant.token,...] [--output FILE]

bfloat16 in; a group is 128 elements. The bytes of a call are those of the input, the residual, read and written, and
the output. "Two ops" is the norm and the quantisation of sgljit-quant. SGLang has no such kernel.
With CI set in the environment: one small shape for each.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import rms_norm

from sgljit_core import ops
from sgljit_norm import reference
from sgljit_quant.bench.kinds import Kind
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Tensors = tuple[torch.Tensor, ...]
Run = Callable[..., object]

DTYPE, EPS = torch.bfloat16, 1e-6
SHAPES = {
    # of Qwen3-MoE, Llama and Qwen3, DeepSeek-V3, Llama 70B
    "cuda": [(tokens, size) for size in (2048, 4096, 7168, 8192) for tokens in (1, 16, 128, 1024, 4096, 16384)],
    "cpu": [(1, 4096), (128, 4096), (2048, 4096)],
}


KINDS = {
    "given": Kind("per_tensor_quant_fp8", "given"),
    "token": Kind("per_token_quant_fp8", "token"),
    "token_int8": Kind("per_token_quant_int8", "token", torch.int8),
    "group": Kind("per_token_group_quant_fp8", "group"),
    "group_packed": Kind("per_token_group_quant_fp8", "packed"),
}
OPS = [f"{op}.{kind}" for op in ("rmsnorm_quant", "fused_add_rmsnorm_quant") for kind in KINDS]


def make(op: str, tokens: int, size: int, device: str) -> Tensors:
    """The arguments of a call: input, residual if the op has one, weight, result and scales."""
    name, _, kind = op.partition(".")
    rows = [torch.randn(tokens, size, device=device).to(DTYPE) for _ in range(1 + ("add" in name))]
    weight = torch.ones(size, device=device).to(DTYPE)
    return *rows, weight, *KINDS[kind].outputs(tokens, size, device)


def eager(kind: Kind, *arguments: torch.Tensor) -> None:
    """The op in plain PyTorch."""
    x, *residual, weight, q, s = arguments
    if residual:
        x = residual[0].add_(x)
    kind.eager(rms_norm(x, weight.shape, weight, EPS), q, s)


def two_ops(kind: Kind, *arguments: torch.Tensor) -> None:
    """A norm into a new tensor, or one in place of its input, and a quantisation."""
    x, *residual, weight, q, s = arguments
    y = x if residual else torch.empty_like(x)
    if residual:
        ops["norm"].fused_add_rmsnorm(x, residual[0], weight, EPS)
    else:
        ops["norm"].rmsnorm(x, weight, y, EPS)
    kind.run(y, q, s)


def providers(op: str, device: str) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    name, _, of_kind = op.partition(".")
    kind = KINDS[of_kind]
    runs: dict[str, Run] = {"sgljit": functools.partial(getattr(ops["norm"], name), **kind.options)}
    runs["two ops"] = functools.partial(two_ops, kind)
    runs["PyTorch"] = functools.partial(eager, kind)
    # On the CPU it would time a C++ compiler's vectors against torch's own; it makes no one kernel of packed scales.
    if device == "cuda" and kind.scales != "packed":
        runs["torch.compile"] = torch.compile(runs["PyTorch"], dynamic=False)
    return runs


def table(op: str, device: str) -> list[dict[str, Any]]:
    """One table: rows by shape, columns by provider."""
    runs, kind = providers(op, device), KINDS[op.partition(".")[2]]

    def run(tokens: int, size: int, provider: str) -> Figure:
        if provider == "torch.compile":
            torch.compiler.reset()  # each shape is compiled separately
        arguments = make(op, tokens, size, device)
        x, *residual, weight, _, _ = arguments
        exact = x.double() + sum(tensor.double() for tensor in residual)
        reference.rmsnorm(exact, weight, None, EPS)
        runs[provider](*arguments)
        kind.check(exact, *arguments[-2:], slack=2**-6)

        def more() -> Tensors:
            *rows, _, q, s = make(op, tokens, size, device)
            return *rows, weight, q, s  # kernels read a model's weights each time they run, so all calls share them

        return measure(runs[provider], more, num_bytes=(7 if residual else 3) * tokens * size, seconds=0.03)

    rows = sweep(run, ["tokens", "size"], get_benchmark_range(SHAPES[device], [(128, 1024)]), list(runs))
    for row in rows:
        row["copy"] = row["sgljit"].copy_microseconds
    return rows


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Time of the norms whose result is quantised")
    parser.add_argument("--device", choices=list(SHAPES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", default=",".join(OPS), help="which, with commas between")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    note = (
        "bfloat16 in. Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes "
        "as the op must read and write."
    )
    tables: dict[str, list[dict[str, Any]]] = {}
    page = ""
    for op in arguments.ops.split(","):
        tables[op.replace(".", ", ")] = table(op, arguments.device)
        # So far: a run may be cut short.
        page = write_results(arguments.output, "Norms, quantised", tables, note=note, device=arguments.device)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
