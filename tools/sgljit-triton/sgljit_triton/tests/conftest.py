"""A family of Triton kernels for the tests, on disk, and a process that launches them without a device."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

import sgljit_tools.recording
from sgljit_core import KernelFamily
from sgljit_core.compilers import toolchain
from sgljit_triton import TritonKernels

from .forked import Server

COMMON = """
import triton
import triton.language as tl


@triton.jit
def scaled(x, alpha):
    return x * alpha
"""
KERNELS = """
import triton
import triton.language as tl

from .common import scaled


@triton.jit
def add(x, y, out, n, alpha, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    if y is not None:
        value += scaled(tl.load(y + i, mask=i < n), alpha)
    tl.store(out + i, value, mask=i < n)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["out"])
def fill(out, n, flag, value, WIDE: tl.constexpr = 64):
    i = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    tl.store(out + i, tl.where(flag, value, 0), mask=i < n)
"""
OPS = '''
import torch

from sgljit_triton import TritonKernels

from .plugin import FAMILY

TRITON = TritonKernels(FAMILY)
ADD = TRITON.kernel("add.py", "add")
FILL = TRITON.kernel("add.py", "fill")
DTYPES = ("float16", "bfloat16", "float32")


@TRITON.op(mutates=("out",))
def add(x: torch.Tensor, y: torch.Tensor | None, out: torch.Tensor, *, alpha: float = 1.0) -> None:
    """out = x + alpha * y, of dense tensors."""
    for tensor in (x, y, out):
        if tensor is not None and (tensor.shape != out.shape or not tensor.is_contiguous()):
            raise ValueError(f"add: expected dense tensors of one shape, got {tensor.shape} and {out.shape}")
        name = str(out.dtype).removeprefix("torch.")
        if tensor is not None and (tensor.dtype != out.dtype or name not in DTYPES):
            raise ValueError(f"add: expected float tensors of one dtype, got {tensor.dtype} and {out.dtype}")
    n = out.numel()
    ADD.bind(BLOCK=256)((-(-n // 256), 1, 1), x, y, out, n, alpha)
'''
CALLS = """
from sgljit_core import TOKENS, TensorSpec


def add(model):
    rows = TensorSpec((TOKENS, 64), "bfloat16")
    yield {"x": rows, "y": rows, "out": rows}  # 16 divides the number of elements, for any number of tokens
    few = TensorSpec((3, 64), "bfloat16")
    yield {"x": few, "y": None, "out": few}
"""
REFERENCE = """
def add(x, y, out, *, alpha=1.0):
    out.copy_(x if y is None else x + alpha * y)
"""
SAMPLES = """
import torch


def add(device):
    for dtype in (torch.float32, torch.float16):
        for rows in (0, 1, 9):
            x = torch.randn(rows, 64, device=device).to(dtype)
            y = torch.randn(rows, 64, device=device).to(dtype)
            yield {"x": x, "y": y, "out": torch.empty_like(x), "alpha": 2.0}
            yield {"x": x, "y": None, "out": torch.empty_like(x)}
"""


def write_family(place: Path, name: str = "tri_family") -> Path:
    """Write an installed distribution with a family of Triton kernels; returns the package's directory."""
    package = place / name
    (package / "kernels").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "plugin.py": f'from sgljit_core import KernelFamily\nFAMILY = KernelFamily(name="{name}", package="{name}", '
        'sources="kernels")\n',
        "ops.py": OPS,
        "calls.py": CALLS,
        "reference.py": REFERENCE,
        "samples.py": SAMPLES,
        "kernels/common.py": COMMON,
        "kernels/add.py": KERNELS,
    }
    for file, text in files.items():
        (package / file).write_text(text)
    info = place / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sgljit.kernels]\n{name} = {name}.plugin:FAMILY\n")
    return package


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache for each test."""
    root = tmp_path / "cache"
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(root))
    return root


@pytest.fixture
def package(tmp_path):
    """The directory of a family's package, which processes of ``run`` can import."""
    return write_family(tmp_path / "site")


@pytest.fixture
def ops(package, monkeypatch):
    """The family's kernels as ``ADD`` and ``FILL``, declared in this process, without its ops."""
    monkeypatch.syspath_prepend(str(package.parent))
    kernels = TritonKernels(KernelFamily(name=package.name, package=package.name, sources="kernels"))
    return types.SimpleNamespace(ADD=kernels.kernel("add.py", "add"), FILL=kernels.kernel("add.py", "fill"))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The process that those of ``run`` are forked from, by the libraries that it begins with."""
    servers: dict[str, Server] = {}

    def get(preload: str) -> Server:
        if preload not in servers or not servers[preload].is_running:
            servers[preload] = Server(tmp_path_factory.mktemp("server"), LD_PRELOAD=preload)
        return servers[preload]

    yield get
    for one in servers.values():
        one.close()


@pytest.fixture
def run(package, server, request):
    """Run Python code in a process that finds the family; returns what it prints.

    The process has imported PyTorch before, unless it is ``fresh``. That of a GPU test is: CUDA works in no fork.
    """
    needs_gpu = request.node.get_closest_marker("gpu") is not None

    def run(code: str, *, fails: bool = False, fresh: bool = needs_gpu, **environment: str) -> str:
        path = [environment.pop("PYTHONPATH", ""), str(package.parent), *sys.path]
        env = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        code = textwrap.dedent(code)
        if fresh:
            done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
        else:
            done = server(env.get("LD_PRELOAD", "")).run(code, env)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A cache for tests that look at launches, not at the cache: the launcher and each variant are compiled once."""
    return tmp_path_factory.mktemp("shared") / "cache"


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """The path of a CUDA driver without a device that keeps the last launch."""
    place = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parent / "recording_driver.cpp"
    include = Path(sgljit_tools.recording.__file__).parent / "csrc"
    library = place / "libcuda.so.1"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1"]
    flags += ["-DSGL_NULL_MAJOR=9", "-DSGL_NULL_MINOR=0", f"-I{include}"]
    compiler = str(toolchain.find_cxx("the driver of a test").path)
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    return library
