"""One variant, many at once: threads and processes that meet a kernel that nobody has made yet."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

TOGETHER = """
import logging, sys, threading
import torch
from sgljit_core import CppType, ops, override_cuda_arch
from sgljit_norm.plugin import FAMILY
from sgljit_tools.testing import build_variant

class Compiles(logging.Handler):
    def emit(self, record):
        if record.sgljit["event"] == "build_started":
            print("compiles", record.sgljit["build"], flush=True)

logger = logging.getLogger("sgljit")
logger.addHandler(Compiles())
logger.setLevel(logging.INFO)
THREADS, ON_GPU = int(sys.argv[1]), sys.argv[2] == "cuda"
failures = []

def use(i):
    try:
        if ON_GPU:
            x = torch.full((4, 4104), 2.0, device="cuda", dtype=torch.bfloat16)
            ops["norm"].rmsnorm(x, torch.full((4104,), 3.0, device="cuda", dtype=torch.bfloat16))
            assert x.eq(3).all(), x
        else:
            with override_cuda_arch(9, 0):
                functor = CppType("norms::RMSNorm<false>")
                shape = 4104 | 8 << 40 | 544 << 48
                build_variant(FAMILY, "norm.h", "device::row_program", functor, 3, 544, 0, True, 0x222, 0x40, shape)
    except BaseException as error:
        failures.append(error)

FAMILY.host_module()
if ON_GPU: torch.zeros(1, device="cuda")
print("ready", flush=True)
sys.stdin.read()  # until all are
threads = [threading.Thread(target=use, args=(i,)) for i in range(THREADS)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if failures: raise failures[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_eight_processes_of_many_threads_that_meet_a_new_variant_compile_it_once(tmp_path, device):
    threads = 64 if device == "cuda" else 8
    (tmp_path / "cache").mkdir(mode=0o700)
    environment = {**os.environ, "SGLJIT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TOGETHER, str(threads), device]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(8)]
    try:
        before = [process.stdout.readline() for process in processes]
        before += [process.stdout.readline() for process, line in zip(processes, before, strict=True) if "co" in line]
        assert before.count("ready\n") == 8, [process.communicate() for process in processes]
        for process in processes:
            process.stdin.close()
            process.stdin = None  # communicate() would flush it
        ended = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 8, ended
    assert len([line for line in before if line.startswith("compiles norm.norm")]) == 1
    compiled = "".join(output for output, _ in ended)
    assert compiled.count("compiles ") == 1, compiled
    assert "norm.device.row_program<norms::RMSNorm<false>, 3, " in compiled


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_graph_that_is_captured_after_the_first_call_replays_it(dtype):
    from sgljit_core import ops

    x = torch.randn(8, 4112, device="cuda").to(dtype)
    weight = torch.randn(4112, device="cuda").to(dtype)
    out, expected = torch.empty_like(x), torch.empty_like(x)
    ops["norm"].rmsnorm(x, weight, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops["norm"].rmsnorm(x, weight, out)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)
