"""One variant, many at once: threads and processes that meet a kernel that nobody has made yet."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

# The processes are forked when everything is imported and CUDA is not touched yet, and begin at the same moment.
TOGETHER = """
import logging, os, sys, threading
import torch, tvm_ffi
from sgljit_core import ops, override_cuda_arch
from sgljit_norm.plugin import FAMILY
from sgljit_norm.ops import host_module

class Compiles(logging.Handler):
    def emit(self, record):
        if record.sgljit["event"] == "build_started":
            print("compiles", record.sgljit["build"], flush=True)

logger = logging.getLogger("sgljit")
logger.addHandler(Compiles())
logger.setLevel(logging.INFO)
host_module()
print("together")
sys.stdout.flush()
PROCESSES, THREADS, ON_GPU = 8, int(sys.argv[1]), sys.argv[2] == "cuda"

def use(i, failures):
    try:
        if ON_GPU:
            x = torch.full((i + 1, 4104), 2.0, device="cuda", dtype=torch.bfloat16)
            ops["norm"].rmsnorm(x, torch.full((4104,), 3.0, device="cuda", dtype=torch.bfloat16))
            assert x.eq(3).all(), x
        else:
            with override_cuda_arch(9, 0):
                FAMILY.build_variant("rmsnorm.cuh", "norm_kernels::rmsnorm", 4104, True, torch.bfloat16)
    except BaseException as error:
        failures.append(error)

waits, begins = os.pipe()
children = []
for _ in range(PROCESSES):
    if (child := os.fork()) == 0:
        os.close(begins)
        os.read(waits, 1)  # until the parent closes its end
        failures = []
        threads = [threading.Thread(target=use, args=(i, failures)) for i in range(THREADS)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        for failure in failures[:1]: print("failed:", type(failure).__name__, failure, flush=True)
        os._exit(len(failures) > 0)
    children.append(child)
os.close(begins)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_eight_processes_of_many_threads_that_meet_a_new_variant_compile_it_once(tmp_path, device):
    threads = 64 if device == "cuda" else 8
    (tmp_path / "cache").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, str(threads), device],
        env={**os.environ, "SGLJIT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = done.stdout.split("together\n")
    assert before.count("compiles norm") == 1
    assert after.count("compiles ") == 1, after
    assert "4104" in after


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
