"""What holds for every test of the repository: the core's, the plugins' and the examples'."""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib.util
import os
import re
import shlex
import shutil
import sys
import zlib
from pathlib import Path

import pytest

from sgljit_tools.testing.pytest_plugin import skip_without_gpu

# Threads of OpenMP that wait would otherwise spin, on cores that the other processes of a run need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The C++ that inductor writes is PyTorch's: without vectors it compiles faster.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# Until the tests begin almost all that is made stays. To look it through, again and again and once more at the end of
# the process, would take seconds.
gc.disable()
atexit.register(gc.freeze)

# A test's outcome must not depend on who runs it; only which compilers there are is the reader's choice.
_KEPT = ("SGLJIT_NVCC", "SGLJIT_CXX")
_ROOT = Path(__file__).parent
_TESTS_OF_OPS = (
    *("plugins/", "engines/", "tests/engines/", "tests/families/", "tests/headers/test_row_program.py"),
    *("tests/tools/recording/", "tests/tools/testing/"),
)


@pytest.fixture(scope="session")
def run_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this run, which is one for all its processes where pytest-xdist spreads it over several."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@pytest.fixture(scope="session", autouse=True)
def private_cache(run_directory: Path):
    """One cache for the run, cold unless the Makefile names one: the user's own is neither read nor written."""
    cache = Path(os.environ.get("SGLJIT_TEST_CACHE") or run_directory / "cache")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - set(_KEPT):
            if name.startswith("SGLJIT_") or name == "TVM_FFI_CUDA_ARCH_LIST":
                patch.delenv(name)
        cache.mkdir(mode=0o700, exist_ok=True)
        patch.setenv("SGLJIT_CACHE_DIR", os.fspath(cache))
        # Its compilers wait neither for other runs of this user nor, as a rule, for each other: workers would idle.
        runtime = run_directory / "run"
        runtime.mkdir(mode=0o700, exist_ok=True)
        patch.setenv("XDG_RUNTIME_DIR", os.fspath(runtime))
        patch.setenv("SGLJIT_JOBS", str(2 * len(os.sched_getaffinity(0))))
        # On a busy machine any build may be long enough for a warning, and tests count warnings.
        patch.setattr("sgljit_core.builds.record._LONG_SECONDS", 3600.0)
        yield cache


@pytest.fixture(scope="module", autouse=True)
def one_version_of_a_loop(request: pytest.FixtureRequest, run_directory: Path, private_cache: Path):
    """Tests of ops and adapters compile the version of a CPU loop that this processor runs, in half the time.

    The others, which no op would run here, are compiled by tests/headers, and by the slow tests in the wheels of a
    release, where an emulator runs them.
    """
    real = shutil.which(os.environ.get("SGLJIT_CXX") or os.environ.get("CXX") or "g++")
    is_of_ops = request.path.relative_to(_ROOT).as_posix().startswith(_TESTS_OF_OPS)
    version = _version_here() if is_of_ops else None
    if real is None or version is None:
        yield
        return
    script = run_directory / "compiler" / "g++"
    script.parent.mkdir(exist_ok=True)
    own = script.with_name(f"{os.getpid()}")
    own.write_text(f'#!/bin/sh\nexec {shlex.quote(real)} -DSGL_ONLY_VERSION={version} "$@"\n')
    own.chmod(0o755)
    own.replace(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLJIT_CXX", os.fspath(script))
        yield


@functools.cache
def _version_here() -> str | None:
    """The name of the version in sgl_kernel/cpu/isa.h that this processor runs; None where there is no choice."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    for name, needed in (("run_avx512", "avx512f avx512bw avx512dq avx512vl"), ("run_avx2", "f16c avx2 fma")):
        if flags.issuperset(needed.split()):
            return name
    return None


@pytest.fixture(autouse=True)
def own_random_numbers(request: pytest.FixtureRequest) -> None:
    """A test's random inputs are its own: they do not depend on the tests that ran in the process before."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def shared_gpu(request: pytest.FixtureRequest, run_directory: Path):
    """The processes of a run share one GPU's memory: a test returns what it took, and one at a time takes very much."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    import torch  # not at the top: tests of what is imported run in this process, too

    with (run_directory / "gpu.lock").open("w") as lock:
        if re.search("more_than_2_31|more_elements_than_32", request.node.name):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        torch.cuda.empty_cache()


# `make test-gpu` runs where nothing may be installed: what is not there must not stop the tests that need a GPU.
_OPTIONAL = [name for name in ("hypothesis",) if importlib.util.find_spec(name) is None]
_left_out: list[str] = []


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the files that import an optional package which is not installed."""
    if not _OPTIONAL or not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    text = collection_path.read_text(encoding="utf-8")
    missing = [name for name in _OPTIONAL if re.search(rf"^(?:from|import) {name}\b", text, re.MULTILINE)]
    _left_out.extend(f"{collection_path.name} (needs {name})" for name in missing)
    return True if missing else None


def pytest_collection_finish() -> None:
    """Collect garbage from here on, without what is there by now: the modules and thousands of tests."""
    gc.freeze()
    gc.enable()


def pytest_report_collectionfinish() -> list[str]:
    """Name the files that were left out."""
    return [f"not collected: {', '.join(_left_out)}"] if _left_out else []


# Each has a test of a minute or more.
_LONG = {"test_both_compilers", "test_every_architecture", "test_readme", "test_triton_example", "test_tutorial"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first, so that none is left at the end for one core alone; skip what needs a GPU without one.

    The kit's plugin skips those of the families' own tests alone.
    """
    items.sort(key=lambda item: item.path.stem not in _LONG)
    skip_without_gpu(items)
