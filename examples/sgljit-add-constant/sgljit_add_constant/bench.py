"""How fast is the op, beside PyTorch and a plain copy?

python -m sgljit_add_constant.bench
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
        "sgljit": ops["add_constant"].add_constant,
        "PyTorch": torch.add,
    }
    table = []
    for length in get_benchmark_range([4096, 2**19, 2**25], [2**19]):

        def make(length: int = length) -> tuple[torch.Tensor, int]:
            return torch.arange(length, device=device, dtype=torch.int32), 7

        num_bytes = 2 * length * torch.int32.itemsize  # read, and written
        figures = {name: measure(run, make, num_bytes=num_bytes) for name, run in runs.items()}
        table.append({"length": length, **figures})
    note = "Microseconds of a call, and the percent of the rate of a plain copy."
    print(write_results(None, "add_constant", {"int32": table}, note=note, device=device))


if __name__ == "__main__":
    main()
