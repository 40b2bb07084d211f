"""How fast is the op, beside PyTorch and a plain copy?

python -m sgljit_triton_example.bench
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sgljit_core import ops
from sgljit_tools.benchmark import get_benchmark_range, measure
from sgljit_tools.benchmark.results import write_results

EXPERTS = 8


def main() -> None:
    """Print a table: microseconds of a call, and the percent of the rate of a plain copy."""
    if not torch.cuda.is_available():
        print("no CUDA device: on the CPU Triton's interpreter runs the kernel, whose speed says nothing")
        return
    runs: dict[str, Callable[..., object]] = {
        "sgljit": ops["triton_example"].moe_sum,
        "PyTorch": lambda rows, output: torch.sum(rows, 1, out=output),
    }
    table = []
    for tokens, hidden in get_benchmark_range([(1, 4096), (128, 4096), (4096, 4096)], [(128, 4096)]):

        def make(tokens: int = tokens, hidden: int = hidden) -> tuple[torch.Tensor, torch.Tensor]:
            rows = torch.randn(tokens, EXPERTS, hidden, device="cuda", dtype=torch.bfloat16)
            return rows, torch.empty_like(rows[:, 0])

        num_bytes = (EXPERTS + 1) * tokens * hidden * torch.bfloat16.itemsize  # read, and written
        figures = {name: measure(run, make, num_bytes=num_bytes) for name, run in runs.items()}
        table.append({"tokens": tokens, "hidden": hidden, **figures})
    note = "Microseconds of a call, and the percent of the rate of a plain copy."
    print(write_results(None, "moe_sum", {"bfloat16": table}, note=note, device="cuda"))


if __name__ == "__main__":
    main()
