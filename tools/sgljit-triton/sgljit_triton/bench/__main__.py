"""What does a launch of a Triton kernel cost, and a first call, beside those of C++ kernels with as many arguments?

    python -m sgljit_triton.bench [--output FILE]

Needs a GPU, and Triton for what is compiled. First calls are measured in new processes, which find everything in the
cache; those of Triton kernels run as if Triton were not installed. With sgljit-moe and the example installed, the sum
of experts is compared as well. With CI set in the environment: fewer processes, and one small shape.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from sgljit_core import KernelFamily
from sgljit_tools.benchmark import Figure, get_benchmark_range, measure
from sgljit_tools.benchmark.results import sweep, write_results
from sgljit_triton import TritonKernels

NOTE = (
    "Launches and calls: microseconds of a call from Python, without gradients, timed until the device has finished; "
    "the best of 40 turns of 500 calls, in which all take part. Both kernels that are launched take three numbers of a "
    "grid, two tensors and a None, six ints and a float, and write one element. Triton itself: `kernel[grid](...)` of "
    "the same function. First calls: milliseconds in a new process that has initialised CUDA and finds all in the "
    "cache, the median of the processes; the first call of a family loads its host part or launcher, that of another "
    "variant the kernel alone. Sums: microseconds per call in a CUDA graph, in brackets the percent of a plain copy "
    "that moves as many bytes. Sizes: of the artifacts for sm_90a of the calls that a family declares; lines of C++ "
    "with those of the loop for the CPU, lines of Triton with the checks of the op's body."
)
BESIDE = KernelFamily(name="triton_beside", package="sgljit_triton.bench")
TRITON = TritonKernels(KernelFamily(name="triton_bench", package="sgljit_triton.bench", sources="kernels"))
KERNEL = TRITON.kernel("beside.py", "beside")
GRID = (1, 1, 1)
OP_IN_CPP = "sgljit, op in C++"
KERNEL_OF_SUM = {"C++": "moe.moe.sum<", "Triton": "triton_example.moe_sum<"}


@functools.cache
def beside() -> Any:
    """The host part in C++."""
    return BESIDE.load_host("beside", cpp_files=["beside.cpp"], header_only=False)


@BESIDE.op(mutates=("output",), exports=beside)
def launch_beside(
    x: int,
    y: int,
    z: int,
    rows: torch.Tensor,
    output: torch.Tensor,
    weights: torch.Tensor | None,
    a: int,
    b: int,
    c: int,
    d: int,
    e: int,
    variant: int,
    scale: float,
) -> None:
    """The op in C++."""


@TRITON.op(mutates=("output",))
def launch_triton(
    rows: torch.Tensor,
    output: torch.Tensor,
    weights: torch.Tensor | None,
    a: int,
    b: int,
    c: int,
    d: int,
    e: int,
    variant: int,
    scale: float,
) -> None:
    """The op in Triton."""
    KERNEL.bind(BLOCK=128)(GRID, rows, output, weights, a, b, c, d, e, variant, scale)


def arguments(variant: int = 3) -> tuple[Any, ...]:
    """Rows, output, no weights, sizes, a variant and a scale."""
    rows = torch.zeros(64, device="cuda", dtype=torch.bfloat16)
    return rows, torch.zeros_like(rows), None, 4096, 32768, 4096, 8, 5, variant, 1.5


def launchers() -> dict[str, Callable[..., Any]]:
    """A launch by each provider, of the arguments."""
    own = native()
    found: dict[str, Callable[..., Any]] = {
        OP_IN_CPP: functools.partial(launch_beside, *GRID),
        "sgljit, op in Triton": launch_triton,
        "sgljit, C++ without an op": functools.partial(beside().launch_beside, *GRID),
        "sgljit, Triton without an op": functools.partial(KERNEL.bind(BLOCK=128), GRID),
        "Triton itself": lambda *args: own[GRID](*args, BLOCK=128),
    }
    try:
        found["Triton itself"](*arguments())
    except Exception as error:  # noqa: BLE001 - it compiles a launcher in C, for which Python's headers may be missing
        print(f"left out: Triton's own launch, which raises {type(error).__name__}: {error}", file=sys.stderr)
        del found["Triton itself"]
    return found


def native() -> Any:
    """The kernel's function for Triton's own launch."""
    place = Path(__file__).parent / "kernels" / "beside.py"
    spec = importlib.util.spec_from_file_location("sgljit_triton_beside", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.beside


@torch.no_grad()
def in_turns(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of each call, host time included: the best of several turns, in which all take part."""
    best = dict.fromkeys(calls, float("inf"))
    turns, number = get_benchmark_range([40], [2])[0], get_benchmark_range([500], [10])[0]
    for _ in range(turns):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(number):
                call()
            torch.cuda.synchronize()
            best[name] = min(best[name], 1e6 * (time.perf_counter() - start) / number)
    return best


def launches() -> list[dict[str, Any]]:
    """Host time of a launch."""
    calls = {}
    for name, launch in launchers().items():
        given = arguments()
        launch(*given)
        torch.cuda.synchronize()
        assert given[1][0] == given[-1], name  # a figure of another computation would mean nothing
        calls[name] = functools.partial(launch, *given)
    found = in_turns(calls)
    first = found[OP_IN_CPP]
    return [{"launch": name, "us": one, "of the op in C++": one / first} for name, one in found.items()]


def first_calls(provider: str) -> list[float]:
    """In a new process: milliseconds of the first call, and of that of another variant."""
    if provider != "C++":
        sys.modules["triton"] = None  # type: ignore[assignment]
    first, second = arguments(2), arguments(19)
    import tvm_ffi  # noqa: F401 - an engine has it

    torch.cuda.synchronize()
    seconds = []
    for given in (first, second):
        torch.cuda.synchronize()
        start = time.perf_counter()
        if provider == "C++":
            beside().launch_beside(*GRID, *given)
        else:
            KERNEL.bind(BLOCK=128)(GRID, *(given if given is first else (*given[:8], 32, given[9])))
        torch.cuda.synchronize()
        seconds.append(1e3 * (time.perf_counter() - start))
    return seconds


def table_of_first_calls() -> list[dict[str, Any]]:
    """A row for each provider."""
    rows = []
    for provider in ("C++", "Triton"):
        command = [sys.executable, "-m", "sgljit_triton.bench", "--first-calls", provider]
        for given in (arguments(2), arguments(19)):  # filled here: what a process finds
            beside().launch_beside(*GRID, *given)
            KERNEL.bind(BLOCK=128)(GRID, *(given if given[8] == 2 else (*given[:8], 32, given[9])))
        runs = []
        for _ in range(get_benchmark_range([11], [3])[0]):
            done = subprocess.run(
                command, env={**os.environ, "SGLJIT_JIT": "error"}, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise SystemExit(done.stderr)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        first, second = (statistics.median(column) for column in zip(*runs, strict=True))
        rows.append({"kernel": f"sgljit, {provider}", "first call, ms": first, "another variant, ms": second})
    return rows


def table_of_sums() -> list[dict[str, Any]]:
    """``moe_sum`` in C++ and in Triton."""
    from sgljit_moe import moe_sum as in_cpp
    from sgljit_triton_example import moe_sum as in_triton

    def make(tokens: int, k: int, hidden: int) -> tuple[Any, ...]:
        rows = torch.randn(tokens, k, hidden, device="cuda").bfloat16()
        return rows, torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16)

    def run(tokens: int, k: int, hidden: int, provider: str) -> Figure:
        op = in_triton if provider == "Triton" else in_cpp
        rows, output = make(9, k, hidden)
        op(rows, output)
        torch.testing.assert_close(output, rows.float().sum(1).bfloat16())
        num_bytes = 2 * tokens * hidden * (k + 1)
        return measure(op, lambda: make(tokens, k, hidden), num_bytes=num_bytes, seconds=0.03)

    places = [(tokens, 8, hidden) for hidden in (4096, 7168) for tokens in (1, 8, 64, 512, 4096)]
    return sweep(run, ["tokens", "k", "hidden"], get_benchmark_range(places, places[1:2]), ["Triton", "C++"])


def calls_of_sums() -> list[dict[str, Any]]:
    """Host time of a call of either op, with the checks of its arguments."""
    from sgljit_moe import moe_sum as in_cpp
    from sgljit_triton_example import moe_sum as in_triton

    rows = torch.randn(1, 8, 4096, device="cuda").bfloat16()
    given = rows, torch.empty(1, 4096, device="cuda", dtype=torch.bfloat16)
    calls = {"moe_sum, C++": functools.partial(in_cpp, *given), "moe_sum, Triton": functools.partial(in_triton, *given)}
    return [{"op": name, "us": one} for name, one in in_turns(calls).items()]


def table_of_sizes() -> list[dict[str, Any]]:
    """Size on disk and lines of source of the sum of experts, in C++ and in Triton."""
    import sgljit_moe
    import sgljit_triton_example

    example = Path(sgljit_triton_example.__file__).parent
    sources = {
        ("moe", "C++"): Path(sgljit_moe.__file__).parent.glob("csrc/sum*"),
        ("triton_example", "Triton"): (example / "kernels" / "moe_sum.py", example / "ops.py"),
    }
    rows = []
    for (family, language), files in sources.items():
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "sgljit_core", "cache"]
            environment = {**os.environ, "SGLJIT_CACHE_DIR": cache}
            run = functools.partial(subprocess.run, env=environment, check=True, stdout=subprocess.PIPE)
            run([*command, "build", family, "--cuda-arch", "9.0"])
            listed = run([*command, "list", "--json"])
        kernels = [
            one["bytes"]
            for one in json.loads(listed.stdout)["artifacts"]
            if one["target"] == "sm_90a" and KERNEL_OF_SUM[language] in one["build"]
        ]
        lines = sum(len(file.read_text().splitlines()) for file in files)
        size = statistics.mean(kernels) / 1000
        rows.append({"moe_sum in": language, "kernels": len(kernels), "kB of each": size, "lines of source": lines})
    return rows


def main() -> None:
    """Measure, print the page, and write it."""
    parser = argparse.ArgumentParser(description="Launches and first calls of Triton kernels")
    parser.add_argument("--output", type=Path, help="write the page here")
    parser.add_argument("--first-calls", choices=["C++", "Triton"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU: launches are what this measures")
    if given.first_calls:
        print(json.dumps(first_calls(given.first_calls)))
        return
    tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "Launches": launches,
        "First calls": table_of_first_calls,
    }
    if all(importlib.util.find_spec(name) for name in ("sgljit_moe", "sgljit_triton_example")):
        tables |= {"Calls of the sum of experts": calls_of_sums, "Sum of experts": table_of_sums}
        tables["Sizes"] = table_of_sizes
    page = ""
    made: dict[str, list[dict[str, Any]]] = {}
    for title, table in tables.items():
        made[title] = table()
        page = write_results(given.output, "Triton kernels", made, note=NOTE)  # a run may be cut short
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
