"""Every device file under NVRTC and under nvcc: the same results, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Runs the samples of every op of every installed family and saves what each leaves in its arguments, as bytes.
# With "nvcc", variants are compiled by nvcc, under the name that NVRTC gives them.
RUN = """
import concurrent.futures, itertools, subprocess, sys, tempfile
from pathlib import Path
import torch
from sgljit_core import nvrtc, ops, plugins, registry, toolchain

compiler, output = sys.argv[1:]
compiled = set()

def by_nvcc(found, source, expression, options, headers, nvrtcs=nvrtc.compile_kernel):
    compiled.add(source)
    image, symbol = nvrtcs(found, source, expression, options, headers)
    tools = toolchain.find_toolchain(cuda=True, needed_for="a test")
    with tempfile.TemporaryDirectory() as directory:
        unit = Path(directory, "variant.cu")
        unit.write_text(f"{source}\\nvoid* keep() {{ return reinterpret_cast<void*>(&{expression}); }}\\n")
        taken = [o for o in options if o != "-default-device" and not o.startswith("--gpu-architecture")]
        (arch,) = [o.removeprefix("--gpu-architecture=") for o in options if o.startswith("--gpu-architecture")]
        command = [str(tools.nvcc.path), f"-ccbin={tools.cxx.path}", "-cubin", f"-arch={arch}",
                   "--expt-relaxed-constexpr", *taken, "-o", str(unit.with_suffix(".cubin")), str(unit)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\\n{done.stderr}")
        other = unit.with_suffix(".cubin").read_bytes()
    assert other != image
    return other, symbol

if compiler == "nvcc":
    nvrtc.compile_kernel = by_nvcc

def run(case):
    family, op, arguments = case
    result = getattr(ops[family], op)(*arguments)
    torch.cuda.synchronize()
    left = [result, *arguments]
    return family, op, [t.contiguous().view(torch.uint8).cpu() for t in left if isinstance(t, torch.Tensor)]

cases = []
for family, claims in plugins.installed().items():
    spec = plugins.load(family, claims)
    if not list(spec.csrc.glob("*.cuh")):
        continue
    for op in spec.ops:
        if op.samples is None:
            continue
        torch.manual_seed(1)
        samples = list(registry.resolve(op.samples)(torch.device("cuda")))
        cases += [(family, op.name, arguments) for arguments in samples]
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    torch.save(list(pool.map(run, cases)), output)
print("device files:", len(compiled))
"""


@pytest.mark.gpu
def test_nvcc_and_nvrtc_give_the_same_results_for_every_op(tmp_path):
    left = {}
    for compiler in ("nvrtc", "nvcc"):
        cache, output = tmp_path / f"cache-{compiler}", tmp_path / compiler
        cache.mkdir(mode=0o700)
        done = subprocess.run(
            [sys.executable, "-c", RUN, compiler, str(output)],
            env={**os.environ, "SGLJIT_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        left[compiler] = torch.load(output)
    assert "device files: 0" not in done.stdout
    assert {family for family, _, _ in left["nvcc"]} >= {"norm", "hicache"}
    for one, other in zip(left["nvrtc"], left["nvcc"], strict=True):
        assert one[:2] == other[:2]
        for a, b in zip(one[2], other[2], strict=True):
            assert torch.equal(a, b), one[:2]
    assert Path(tmp_path / "cache-nvcc").is_dir()
