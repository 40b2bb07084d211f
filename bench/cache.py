"""How long does a process wait for its module: on an empty cache, on a full one, and beside seven others?

The same function, y = x + 1 on a CPU tensor, through `load_jit`, `tvm_ffi.cpp.load_inline` and
`torch.utils.cpp_extension.load_inline`. Each measurement is the loading call in a fresh process, after its imports; the
engines take turns, and medians are compared. Eight processes start together on an empty cache: measured are the time
until the last one has its module, and the number of compiler runs. The goal on a full cache is 5 ms.

    python bench/cache.py [--rounds 5] [--output bench/results/cache.md]

Needs a host compiler and ninja (which sgljit does not use), no GPU and no nvcc.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGINES = {
    "sgljit_core.load_jit": "sgljit",
    "tvm_ffi.cpp.load_inline": "tvm",
    "torch.utils.cpp_extension.load_inline": "torch",
}

SGLJIT = """
#include <sgl_kernel/tensor.h>
void add_one(host::TensorView x, host::TensorView y) {
  auto N = host::SymbolicSize{"length"};
  host::TensorMatcher({N}).with_dtype<float>().with_device<kDLCPU>().verify(x).verify(y);
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < N.unwrap(); ++i) to[i] = from[i] + 1;
}
"""
TVM = """
void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = from[i] + 1;
}
"""
TORCH = """
void add_one(torch::Tensor x, torch::Tensor y) {
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = from[i] + 1;
}
"""

COUNTING = """#!/bin/sh
case " $* " in *" -c "*) echo compile >> {log} ;; esac
exec {compiler} "$@"
"""


def work(engine: str, directory: Path) -> None:
    """In a separate process: import, wait for the others, load, print the time that it took."""
    import torch

    if engine == "sgljit":
        import tvm_ffi  # noqa: F401 - load_jit would import it; not part of the measured time

        from sgljit_core import load_jit

        csrc = directory / "csrc"
        load = lambda: load_jit(  # noqa: E731
            "add_one", cpp_files=["add_one.cpp"], cpp_wrappers=[("add_one", "add_one")], csrc=csrc
        )
    elif engine == "tvm":
        from tvm_ffi.cpp import load_inline

        load = lambda: load_inline("add_one", cpp_sources=TVM, functions=["add_one"])  # noqa: E731
    else:
        from torch.utils.cpp_extension import load_inline

        load = lambda: load_inline("add_one", cpp_sources=[TORCH], functions=["add_one"])  # noqa: E731
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    module = load()
    seconds = time.perf_counter() - start
    x, y = torch.arange(4.0), torch.zeros(4)
    module.add_one(x, y)
    assert y.tolist() == [1, 2, 3, 4]
    print(seconds, flush=True)


def run(engine: str, cache: Path, processes: int = 1, environment: dict[str, str] | None = None) -> float:
    """Seconds until all of several processes that start together have their module."""
    variables = {"SGLJIT_CACHE_DIR": "sgljit", "TVM_FFI_CACHE_DIR": "tvm", "TORCH_EXTENSIONS_DIR": "torch"}
    places = {name: str(cache / place) for name, place in variables.items()}
    (cache / "csrc").mkdir(parents=True, exist_ok=True)
    (cache / "csrc" / "add_one.cpp").write_text(SGLJIT)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # ninja's wheel
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", engine, str(cache)],
            env={**os.environ, "PATH": path, **places, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(processes)
    ]
    for worker in workers:
        assert worker.stdout
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("\n")
        worker.stdin.flush()
    return max(float(worker.communicate()[0]) for worker in workers)


def compiler_runs(engine: str, cache: Path, compiler: str) -> tuple[float, int]:
    """Eight processes on an empty cache: seconds, and the number of compiler runs."""
    cache.mkdir()
    script = cache / "counting-c++"
    script.write_text(COUNTING.format(log=cache / "log", compiler=compiler))
    script.chmod(0o755)
    seconds = run(engine, cache, 8, {"CXX": str(script)})
    return seconds, (cache / "log").read_text().count("compile")


def measure(rounds: int, directory: Path) -> dict[str, dict[str, float]]:
    """Medians by engine and measurement."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    assert compiler, "no host compiler"
    results: dict[str, dict[str, list[float]]] = {name: {"cold": [], "warm": [], "eight": []} for name in ENGINES}
    counts = {}
    for index in range(rounds):
        for name, engine in ENGINES.items():
            cache = directory / f"{engine}-{index}"
            results[name]["cold"].append(run(engine, cache))
            run(engine, cache)  # fills what is remembered beside the cache
            results[name]["warm"] += [run(engine, cache) for _ in range(4)]
            if index < 3:
                seconds, counts[name] = compiler_runs(engine, directory / f"{engine}-eight-{index}", compiler)
                results[name]["eight"].append(seconds)
    medians = {name: {what: statistics.median(values) for what, values in r.items()} for name, r in results.items()}
    return {name: {**medians[name], "compiler runs": counts[name]} for name in ENGINES}


def rows_of(measured: dict[str, dict[str, float]]) -> list[dict[str, str]]:
    """A row for each engine."""
    ours = measured[next(iter(ENGINES))]
    columns = {"empty cache": "cold", "full cache": "warm", "8 processes, empty cache": "eight"}
    return [
        {
            "engine": f"`{name}`",
            **{column: f"{r[what]:.4f} ({r[what] / ours[what]:.1f})" for column, what in columns.items()},
            "their compiler runs": f"{r['compiler runs']:.0f}",
        }
        for name, r in measured.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", nargs=2, metavar=("ENGINE", "DIRECTORY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker[0], Path(arguments.worker[1]))
        return
    with tempfile.TemporaryDirectory() as directory:
        rows = rows_of(measure(arguments.rounds, Path(directory)))
    import tvm_ffi

    from sgljit_tools.benchmark.results import write_results

    note = (
        f"apache-tvm-ffi {tvm_ffi.__version__}. Seconds of the loading call in a fresh process, after imports; "
        "medians; in brackets, the multiple of ours."
    )
    print(
        write_results(arguments.output, "The cache compared with its peers", {"": rows}, note=note, device="cpu"),
        end="",
    )


if __name__ == "__main__":
    main()
