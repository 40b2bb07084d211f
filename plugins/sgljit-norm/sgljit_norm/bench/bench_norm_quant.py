"""How fast are the norms in FP8 and int8 against two kernels, PyTorch, torch.compile and a plain copy?

    python -m sgljit_norm.bench.bench_norm_quant [--device cpu|cuda] [--ops rmsnorm_quant.token,...] [--output FILE]

bfloat16 in; a group is 128 elements. The bytes of a call are those of the input, the residual, read and written, and
the output. "Two ops" is the norm and the quantisation of sgljit-quant, where that is installed. SGLang has no such
kernel.
With CI set in the environment: one small shape for each.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import rms_norm

from sgljit_core import ops
from sgljit_norm import reference
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

Tensors = tuple[torch.Tensor, ...]
Run = Callable[..., object]

DTYPE, GROUP, EPS = torch.bfloat16, 128, 1e-6
SHAPES = {
    # of Qwen3-MoE, Llama and Qwen3, DeepSeek-V3, Llama 70B
    "cuda": [(tokens, size) for size in (2048, 4096, 7168, 8192) for tokens in (1, 16, 128, 1024, 4096, 16384)],
    "cpu": [(1, 4096), (128, 4096), (2048, 4096)],
}


@dataclass(frozen=True)
class Kind:
    """The scales of a result, and its dtype.

    Attributes:
        scales: of "given", "token", "group", "powers" or "packed", four exponents to an int32.
        two: the quantisation that gives the same after a norm, and its options.
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
        """The options of the op."""
        return {"is_static": self.scales == "given", "scale_ue8m0": self.scales in ("powers", "packed")}

    def outputs(self, tokens: int, size: int, device: str) -> Tensors:
        """The result and its scales."""
        q = torch.empty(tokens, size, dtype=self.dtype, device=device)
        if self.scales == "packed":  # by columns, as DeepGEMM takes them
            padded = (tokens + 3) // 4 * 4
            return q, torch.zeros(-(-size // 512), padded, dtype=torch.int32, device=device).t()[:tokens]
        shape = {"given": (1,), "token": (tokens, 1)}.get(self.scales, (tokens, size // GROUP))
        return q, torch.full(shape, 6 / self.largest, device=device)

    def quantise(self, y: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> None:
        """The quantisation in plain PyTorch."""
        y = y.float() if self.scales in ("given", "token") else y.float().unflatten(-1, (-1, GROUP))
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
        q.copy_(scaled.clamp(-self.largest, self.largest).flatten(1).to(self.dtype))

    def check(self, exact: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> None:
        """Check that a kernel computes the op: a figure of another computation would mean nothing."""
        found = q.double()
        if self.scales == "packed":
            s = (s.clone(memory_format=torch.contiguous_format).view(torch.uint8).float() - 127).exp2()
        if self.scales not in ("given", "token"):
            s, exact, found = s.unsqueeze(-1), exact.unflatten(-1, (-1, GROUP)), found.unflatten(-1, (-1, GROUP))
        if self.scales == "given":
            exact = exact.clamp(-self.largest * s, self.largest * s)
        bound = exact.abs() / 14 + s * 2**-9 if self.dtype.is_floating_point else s * 1.01 + exact.abs() / 64
        assert ((found * s - exact).abs() <= bound).all(), self.scales


KINDS = {
    "given": Kind("given", ("per_tensor_quant_fp8", {"is_static": True})),
    "token": Kind("token", ("per_token_quant_fp8", {})),
    "token_int8": Kind("token", ("per_token_quant_int8", {}), torch.int8),
    "group": Kind("group", ("per_token_group_quant_fp8", {})),
    "group_packed": Kind("packed", ("per_token_group_quant_fp8", {"scale_ue8m0": True})),
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
    kind.quantise(rms_norm(x, weight.shape, weight, EPS), q, s)


def two_ops(kind: Kind, *arguments: torch.Tensor) -> None:
    """A norm into a new tensor, or one in place of its input, and a quantisation."""
    x, *residual, weight, q, s = arguments
    y = x if residual else torch.empty_like(x)
    if residual:
        ops["norm"].fused_add_rmsnorm(x, residual[0], weight, EPS)
    else:
        ops["norm"].rmsnorm(x, weight, y, EPS)
    name, options = kind.two
    getattr(ops["quant"], name)(y, q, s, **options)


def providers(op: str, device: str) -> dict[str, Run]:
    """The compared kernels by the names of the columns."""
    name, _, of_kind = op.partition(".")
    kind = KINDS[of_kind]
    runs: dict[str, Run] = {"sgljit": functools.partial(getattr(ops["norm"], name), **kind.options)}
    if "quant" in ops:
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
        kind.check(exact, *arguments[-2:])

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
