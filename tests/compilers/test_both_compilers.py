"""Every device file under NVRTC and under nvcc: both take it, and on a GPU the results are the same, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Has nvcc compile what NVRTC compiles, under the name that NVRTC gives it.
BY_NVCC = """
import concurrent.futures, functools, subprocess, sys, tempfile
from pathlib import Path
import torch
from sgljit_core import ops, override_cuda_arch
from sgljit_core.compilers import nvrtc
from sgljit_core.families import loading
from sgljit_core.plugins import discovery as plugins
from sgljit_core.compilers import toolchain
from sgljit_core.jit import kernels as variants

compiled = set()

def by_nvcc(found, source, expressions, options, headers, nvrtcs=nvrtc.compile_kernel):
    if not expressions:  # headers alone
        return nvrtcs(found, source, expressions, options, headers)
    compiled.add(source)
    image, (symbol, signature), log = nvrtcs(found, source, expressions, options, headers)
    tools = toolchain.find_toolchain(cuda=True, needed_for="a test")
    with tempfile.TemporaryDirectory() as directory:
        unit = Path(directory, "variant.cu")
        unit.write_text(f"{source}\\nvoid* keep() {{ return reinterpret_cast<void*>(&{expressions[0]}); }}\\n")
        taken = [o for o in options if o != "-default-device" and not o.startswith("--gpu-architecture")]
        (arch,) = [o.removeprefix("--gpu-architecture=") for o in options if o.startswith("--gpu-architecture")]
        command = [str(tools.nvcc.path), f"-ccbin={tools.cxx.path}", "-cubin", f"-arch={arch}",
                   "--expt-relaxed-constexpr", *taken, "-o", str(unit.with_suffix(".cubin")), str(unit)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\\n{done.stderr}")
        other = unit.with_suffix(".cubin").read_bytes()
    assert other != image
    assert symbol.encode() in other
    return other, [symbol, signature], log
"""

# Compiles one declared variant of every kernel, with no GPU, and prints the device files that it met.
COMPILE = """
from sgljit_tools.recording.recorder import record

nvrtc.compile_kernel = by_nvcc
kernels_of, met, missing = {}, set(), set()
for one in record(plugins.installed(), cuda_arch="9.0", on_cpu=False, tokens=(1, 7, 8, 64, 512, 4096)).wanted:
    if one.spec.kernel:
        kernels_of.setdefault(one.spec.family, []).append(one)
with override_cuda_arch(9, 0):
    for family, kernels in kernels_of.items():
        spec = loading.load(family)
        for one in kernels:
            name, functor = [*one.spec.kernel.split(",")[0].split("<", 2), ""][:2]
            kernel = (spec.name, name, functor if "row_program" in name else "")
            if kernel not in met:
                met.add(kernel)
                variants.build(one)
        files = {file.name for file in spec.csrc.glob("*.cuh") if "__global__" in file.read_text()}
        missing |= {(spec.name, file) for file in files - {one.spec.cuda_files[0] for one in kernels}}
print(len(met), "kernels; device files without one:", sorted(missing))
"""

# Runs up to twelve samples of every op of every installed family and saves what each leaves in its arguments, as bytes.
# nvcc takes seconds for a kernel, and all samples together ask for a thousand.
RUN = """
compiler, output = sys.argv[1:]
if compiler == "nvcc":
    nvrtc.compile_kernel = by_nvcc

def contents(tensor):
    while hasattr(tensor, "memory"):  # a table of addresses, with what they point into
        tensor = tensor.memory
    return tensor

def run(case):
    family, op, arguments = case
    result = getattr(ops[family], op)(**arguments)
    torch.cuda.synchronize()
    left = [result, *(arguments[name] for name in sorted(arguments))]
    left = [contents(tensor) for tensor in left if isinstance(tensor, torch.Tensor)]
    return family, op, [tensor.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8) for tensor in left]

def cases():
    for spec in map(loading.load, plugins.installed()):
        for op in spec.declared().values():
            if op.samples is not None:
                torch.manual_seed(1)
                samples = list(op.samples(torch.device("cuda")))
                for arguments in samples[:: -(-len(samples) // 12)]:
                    yield spec.name, op.name, arguments

with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(run, list(cases())))  # compiles, side by side; samples may share memory
torch.save([run(case) for case in cases()], output)
print(len(compiled))
"""

FAMILIES = {"norm", "hicache", "quant", "activation", "rope", "kvcache", "moe", "sampling"}


def child(code: str, cache: Path, *arguments: str) -> str:
    cache.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", BY_NVCC + code, *arguments],
        env={**os.environ, "SGLJIT_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_nvcc_takes_every_declared_kernel(nvcc, tmp_path):
    printed = child(COMPILE, tmp_path / "cache")
    assert int(printed.split()[0]) >= 4
    assert printed.endswith("device files without one: []\n")


@pytest.mark.slow
@pytest.mark.gpu
def test_nvcc_and_nvrtc_give_the_same_results_for_every_op(tmp_path):
    left = {}
    for compiler in ("nvrtc", "nvcc"):
        output = tmp_path / compiler
        sources = int(child(RUN, tmp_path / f"cache-{compiler}", compiler, str(output)))
        left[compiler] = torch.load(output)
    assert {family for family, _, _ in left["nvcc"]} >= FAMILIES
    assert sources >= len(FAMILIES)  # it was nvcc that compiled
    for one, other in zip(left["nvrtc"], left["nvcc"], strict=True):
        assert one[:2] == other[:2]
        for a, b in zip(one[2], other[2], strict=True):
            assert torch.equal(a, b), one[:2]
