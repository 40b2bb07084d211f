"""``make demo``: find the kernel families, compile rmsnorm for this machine, check it and time it.

The cache is a temporary directory, so that the first load is a cold one every time. Cold and warm load are each
measured in a process of its own, from the call to the result, after torch has been imported and the device is ready.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.benchmark import Timer

from sgljit_core import __version__, ops
from sgljit_core.plugins import discovery as plugins

NUM_TOKENS, HIDDEN_SIZE = 4096, 4096  # a prefill of a model of 8 billion parameters
EPS = 1e-6
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MEASURES = (
    "largest relative error, sgljit",
    "largest relative error, torch",
    "time of a call, sgljit",
    "time of a call, torch",
    "time of a copy",
    "speed-up over torch",
    "share of the copy's rate",
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

console = Console()


def main() -> None:
    """Run the demo."""
    console.print(families())
    machine = torch.cuda.get_device_name() if DEVICE == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"\nrmsnorm, {NUM_TOKENS} tokens x {HIDDEN_SIZE} hidden, on {machine}, torch {torch.__version__}\n")
    with tempfile.TemporaryDirectory(prefix="sgljit-demo-") as cache:
        os.environ["SGLJIT_CACHE_DIR"] = cache
        language = "CUDA" if DEVICE == "cuda" else "C++"
        console.print(f"compiling the {language} kernel into an empty cache ...")
        console.print(f"  cold load {seconds_to_first_result():8.3f} s")
        console.print(f"  warm load {seconds_to_first_result():8.3f} s   (a new process, the same cache)\n")
        console.print(comparison())


def families() -> Table:
    """The installed families; nothing of theirs is imported for this."""
    table = Table(
        "family", "distribution", "version", title=f"Kernel families of sgljit-core {__version__}", min_width=48
    )
    for family, claims in plugins.installed().items():
        for plugin in claims:
            table.add_row(family, plugin.distribution, plugin.version)
    return table


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and a weight, the same every time."""
    torch.manual_seed(0)
    x = torch.randn(NUM_TOKENS, HIDDEN_SIZE, device=DEVICE)
    return x.to(dtype), torch.randn(HIDDEN_SIZE, device=DEVICE).to(dtype)


def seconds_to_first_result() -> float:
    """How long the first call of a fresh process takes."""
    command = [sys.executable, __file__, "--first-call"]
    # On a terminal the child shows its progress there.
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def first_call() -> None:
    """The work of the fresh process."""
    x, weight = inputs(torch.bfloat16)
    synchronize()
    start = time.perf_counter()
    ops["norm"].rmsnorm(x, weight)
    synchronize()
    print(time.perf_counter() - start)


def comparison() -> Table:
    """Errors and times beside PyTorch's own kernel, and beside a plain copy, which reads and writes as many bytes."""
    columns: list[tuple[str, ...]] = [MEASURES]
    for dtype in DTYPES:
        x, weight = inputs(dtype)
        out = torch.empty_like(x)

        def sgljit(x: torch.Tensor = x, weight: torch.Tensor = weight, out: torch.Tensor = out) -> torch.Tensor:
            ops["norm"].rmsnorm(x, weight, out, EPS)
            return out

        def pytorch(x: torch.Tensor = x, weight: torch.Tensor = weight) -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)

        def copy(x: torch.Tensor = x, out: torch.Tensor = out) -> torch.Tensor:
            return out.copy_(x)

        expected = torch.nn.functional.rms_norm(x.double(), weight.shape, weight.double(), EPS)
        errors = [max_relative_error(run(), expected) for run in (sgljit, pytorch)]
        times = [median_microseconds(run) for run in (sgljit, pytorch, copy)]
        columns.append(
            (
                *(f"{error:.2e}" for error in errors),
                *(f"{microseconds:,.1f} us" for microseconds in times),
                f"{times[1] / times[0]:.1f} x",
                f"{100 * times[2] / times[0]:.0f} %",
            )
        )
    table = Table("", title="rmsnorm of sgljit beside torch.nn.functional.rms_norm and a copy")
    for dtype in DTYPES:
        table.add_column(str(dtype).removeprefix("torch."), justify="right")
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return table


def max_relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error of a token: norm of the difference over the norm."""
    return float(((got.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def median_microseconds(run: Callable[[], torch.Tensor]) -> float:
    """Median time of a call, the output's allocation included where the function allocates it."""
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=1).median * 1e6


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    first_call() if sys.argv[1:] == ["--first-call"] else main()
