"""How close is a row map, the headers' form of an elementwise op, to a plain copy?

    python bench/row_map.py [--output bench/results/row_map.md]

silu_and_mul of examples/, bfloat16, beside torch.compile and PyTorch, at the sizes of real models. The bytes of a call
are those of the input, read once, and of the output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from sgljit_silu_and_mul import reference, silu_and_mul
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results

# The intermediate sizes of Qwen3 0.6B, Llama 3.1 8B and 70B, Qwen3 32B, and a rank of DeepSeek V3's experts.
HIDDEN = [3072, 14336, 28672, 25600, 2048]
TOKENS = {"cuda": [1, 64, 512, 2048, 8192], "cpu": [1, 512]}


def eager(x: torch.Tensor, out: torch.Tensor) -> None:
    """The op in plain PyTorch."""
    gate, value = x.chunk(2, dim=-1)
    torch.mul(torch.nn.functional.silu(gate), value, out=out)


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description="Time of silu_and_mul")
    parser.add_argument("--device", choices=list(TOKENS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="write the page here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = arguments.device
    runs: dict[str, Callable[..., object]] = {"sgljit": silu_and_mul, "PyTorch": eager}
    if device == "cuda":
        runs["torch.compile"] = torch.compile(eager, dynamic=False)

    def run(tokens: int, hidden: int, provider: str) -> Figure:
        def make() -> tuple[torch.Tensor, torch.Tensor]:
            x = torch.randn(tokens, 2 * hidden, device=device, dtype=torch.bfloat16)
            return x, torch.empty(tokens, hidden, device=device, dtype=torch.bfloat16)

        if provider == "torch.compile":
            torch.compiler.reset()
        x, out = make()
        runs[provider](x, out)
        expected = torch.empty_like(out)
        reference.silu_and_mul(x, expected)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        return measure(runs[provider], make, num_bytes=6 * tokens * hidden, seconds=0.1)

    shapes = [(tokens, hidden) for hidden in HIDDEN for tokens in TOKENS[device]]
    rows = sweep(run, ["tokens", "hidden"], get_benchmark_range(shapes, [(16, 2048)]), list(runs))
    note = "Microseconds per call, median; in brackets, the percent of a plain copy that moves as many bytes."
    page = write_results(arguments.output, "Row maps: silu_and_mul", {"bfloat16": rows}, note=note, device=device)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
