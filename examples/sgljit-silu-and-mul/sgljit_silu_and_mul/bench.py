"""How fast is the op, beside PyTorch and a plain copy?

python -m sgljit_silu_and_mul.bench
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sgljit_core import ops
from sgljit_tools.benchmark import get_benchmark_range, measure
from sgljit_tools.benchmark.results import write_results


def main() -> None:
    """Print a table: microseconds of a call, and the percent of the rate of a plain copy."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    runs: dict[str, Callable[..., object]] = {
        "sgljit": ops["silu_and_mul"].silu_and_mul,
        "PyTorch": lambda x, out: torch.mul(torch.nn.functional.silu(x.chunk(2, 1)[0]), x.chunk(2, 1)[1], out=out),
    }
    table = []
    for rows, columns in get_benchmark_range([(1, 4096), (128, 4096), (8192, 4096)], [(128, 4096)]):

        def make(rows: int = rows, columns: int = columns) -> tuple[torch.Tensor, torch.Tensor]:
            x = torch.randn(rows, 2 * columns, device=device, dtype=torch.bfloat16)
            return x, torch.empty_like(x[:, :columns])

        num_bytes = 3 * rows * columns * torch.bfloat16.itemsize  # two read, and one written
        figures = {name: measure(run, make, num_bytes=num_bytes) for name, run in runs.items()}
        table.append({"rows": rows, "columns": columns, **figures})
    note = "Microseconds of a call, and the percent of the rate of a plain copy."
    print(write_results(None, "silu_and_mul", {"bfloat16": table}, note=note, device=device))


if __name__ == "__main__":
    main()
