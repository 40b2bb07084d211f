"""``SGLJIT_TRACE_CALLS``, ``_NVTX``, ``_SYNC``, ``_LOG`` and ``_CHECK``: what they say, and what they cost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from sgljit_core.errors import DriverError

CALL = """
import sys, torch
from sgljit_core import ops
op = ops["norm"].rmsnorm
x, weight = torch.ones(2, 64), torch.ones(64)
op(x, weight)
"""
COUNT = """
calls = []

def count(frame, event, argument):
    if event == "call" and "sgljit_" in frame.f_code.co_filename:
        calls.append(frame.f_code.co_name)

sys.setprofile(count)
op(x, weight)
sys.setprofile(None)
print(len(calls), "sgljit_tools.observing" in sys.modules)
"""
OPS = """
import torch
from sgljit_core import KernelFamily
FAMILY = KernelFamily("acme", "acme")

@FAMILY.op(mutates=("x",))
def fill(x: torch.Tensor, *, value: float = 1.0) -> None:
    x.fill_(value)

"""


def fresh(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has imported nothing."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


FORGET = """
import sys
for name in [name for name in sys.modules if name.startswith("sgljit")]:
    del sys.modules[name]
"""


@pytest.fixture
def run(children, private_cache) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a process that has imported torch, and nothing of ours, which reads these variables first."""
    return lambda code, **variables: children.script(FORGET + code, SGLJIT_CACHE_DIR=str(private_cache), **variables)


def test_a_call_costs_nothing_more_when_nothing_is_asked_for(run):
    calls = {
        traced: run(CALL + COUNT, SGLJIT_TRACE_CALLS=traced, SGLJIT_NVTX=traced.replace("1", "0"))
        for traced in ("", "0", "1")
    }
    assert calls[""].stdout == calls["0"].stdout == "1 False\n", calls[""].stderr
    count, is_there = calls["1"].stdout.split()
    assert int(count) > 3
    assert is_there == "True"


def test_each_call_is_a_line_before_it_runs(run):
    done = run(CALL, SGLJIT_TRACE_CALLS="1")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("sgljit["))  # a slow compiler is a warning
    assert re.fullmatch(
        r"sgljit\[\d+\] op norm\.rmsnorm \(sgljit-norm [\d.]+\): input=float32\[2, 64\] strides \[64, 1\] cpu, "
        r"weight=float32\[64\] strides \[1\] cpu, out=None, eps=1e-06",
        line,
    )


NVTX = """
import contextlib
import torch

@contextlib.contextmanager
def range(name):
    print("begin", name)
    try:
        yield
    finally:
        print("end", name)

torch.cuda.nvtx.range = range
torch.backends.cuda.is_built = lambda: True
"""


def test_each_call_is_a_range_of_nvtx(run):
    body = OPS.replace("x.fill_(value)", "print('body'); value < 0 and 1 / 0")
    calls = """
fill(torch.ones(3))
try:
    fill(torch.ones(3), value=-1.0)
except ZeroDivisionError:
    print("raised")
"""
    marked = "begin acme.fill\nbody\nend acme.fill\n"
    assert run(NVTX + body + calls, SGLJIT_NVTX="1").stdout == f"{marked}{marked}raised\n"
    assert run(NVTX + body + calls, SGLJIT_NVTX="0").stdout == "body\nbody\nraised\n"
    done = run(NVTX + body + calls, SGLJIT_NVTX="1", SGLJIT_TRACE_CALLS="1")
    assert done.stdout == f"{marked}{marked}raised\n"
    assert done.stderr.count("sgljit[") == 2


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this build has NVTX")
def test_without_nvtx_a_call_says_so(run):
    done = run(OPS + "fill(torch.ones(3))", SGLJIT_NVTX="1")
    assert "ConfigError: SGLJIT_NVTX=1 needs NVTX, which CUDA builds of PyTorch have: " in done.stderr


def test_the_last_line_of_a_process_that_crashes_is_the_call_that_did_it(run):
    crash = OPS.replace("x.fill_(value)", "value < 0 and __import__('os').abort()")
    done = run(
        f"{crash}\nfill(torch.ones(3))\nfill(torch.ones(5), value=-1.0)\nfill(torch.ones(7))", SGLJIT_TRACE_CALLS="1"
    )
    assert done.returncode == -signal.SIGABRT
    calls = [line.partition(": ")[2] for line in done.stderr.splitlines() if line.startswith("sgljit[")]
    assert calls == ["x=float32[3] strides [1] cpu, value=1.0", "x=float32[5] strides [1] cpu, value=-1.0"]


def test_calls_by_the_library_op_are_seen_too(run):
    done = run(f"{OPS}\ntorch.ops.sgljit_acme.fill(torch.ones(3), value=2.0)", SGLJIT_TRACE_CALLS="1")
    assert "op acme.fill: x=float32[3] strides [1] cpu, value=2.0" in done.stderr


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True
    device = property(lambda self: torch.device("cuda", 1))


@pytest.fixture
def around(monkeypatch):
    """What runs in place of the body of an op whose calls are waited for, on a GPU that need not be there."""
    from sgljit_core import KernelFamily
    from sgljit_core.plugins.origin import Origin
    from sgljit_core.torch_ops.schema import Declaration
    from sgljit_tools import observing

    def scale(x: torch.Tensor, by: float) -> None:
        """Never called."""

    stream = type("Stream", (), {"cuda_stream": 0x7F})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(observing, "SETTINGS", observing.Settings(log="", trace_calls=False, nvtx=False, sync=True))
    assert KernelFamily("acme", "acme")
    declaration = Declaration(Origin("acme", "scale"), scale, ("x",), None, None)
    return lambda body: observing.around(declaration, body)


def test_an_error_of_the_gpu_is_raised_at_its_call(around, monkeypatch):
    state = {"failed": False, "waits": 0}

    def synchronize(device: int) -> None:
        assert device == 1
        state["waits"] += 1
        if state["failed"]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    tensor = torch.ones(4).as_subclass(OnGpu)
    good, bad = around(lambda x, by: None), around(lambda x, by: state.update(failed=True))
    good(tensor, 2.0)
    assert state["waits"] == 2
    of_the_call = (
        r"^the GPU reported an error of this call: op acme\.scale: x=float32\[4\] strides \[1\] cuda:1, by=3\.0 "
        r"on stream 0x7f\nCUDA error: an illegal memory access was encountered$"
    )
    with pytest.raises(DriverError, match=of_the_call):
        bad(tensor, 3.0)
    with pytest.raises(
        DriverError, match=r"^the GPU reported an error of something that ran before this call: op acme"
    ):
        good(tensor, 2.0)


def test_nothing_waits_on_the_cpu_or_while_a_graph_is_captured(around, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: pytest.fail("it waits"))
    assert around(lambda x, by: 7)(torch.ones(2), 1.0) == 7
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert around(lambda x, by: 8)(torch.ones(2).as_subclass(OnGpu), 1.0) == 8


@pytest.mark.gpu
def test_an_assertion_of_a_kernel_is_raised_at_the_op_that_launched_it(private_cache):
    code = f"""{OPS}
def out_of_range(x): torch.zeros(3, device="cuda")[torch.tensor([7], device="cuda")]
@FAMILY.op(mutates=("x",))
def bad(x: torch.Tensor) -> None:
    out_of_range(x)
fill(torch.ones(3, device="cuda"))
bad(torch.ones(5, device="cuda"))
"""
    done = fresh(code, SGLJIT_SYNC="1", SGLJIT_CACHE_DIR=str(private_cache))  # CUDA does not work in a fork
    assert (
        "DriverError: the GPU reported an error of this call: op acme.bad: x=float32[5] strides [1] cuda:0"
        in done.stderr
    )


@pytest.mark.parametrize(("level", "seen"), [("info", False), ("debug", True)])
def test_records_of_the_log_are_printed(run, level, seen):
    done = run(CALL, SGLJIT_LOG=level)
    found = re.search(r"^[\d-]+ [\d:,]+ DEBUG sgljit\[\d+\]: loaded norm\.norm for ", done.stderr, re.MULTILINE)
    assert bool(found) == seen, done.stderr


def test_records_of_the_log_are_json(run):
    done = run(CALL, SGLJIT_LOG="json")
    records = [json.loads(line) for line in done.stderr.splitlines()]
    loaded = next(one for one in records if one["event"] == "loaded")
    assert {"time", "level", "logger", "process", "text", "build", "tier"} <= loaded.keys()
    assert loaded["family"] == "norm"


def test_a_value_that_cannot_be_read_and_missing_tools_are_named(run):
    code = "from sgljit_core import ops; ops"
    for name, value, values in (("SGLJIT_LOG", "loud", "info, debug, json"), ("SGLJIT_SYNC", "yes", "0, 1")):
        said = run(code, **{name: value}).stderr.splitlines()[-1]
        assert said == f"sgljit_core.errors.ConfigError: {name} must be one of {values}; got {value!r}"
    hidden = "import sys; sys.modules['sgljit_tools'] = None; from sgljit_core import ops; ops"
    said = fresh(hidden, SGLJIT_SYNC="1").stderr.splitlines()[-1]
    assert said.endswith('SGLJIT_LOG, _NVTX, _SYNC and _TRACE_CALLS need: pip install "sgljit-core[tools]"')


CHECKED = """
#include <sgl_kernel/memory_rows.h>
static bool checks(bool otherwise) { return host::checks_indices(otherwise); }
"""


def test_one_variable_turns_on_the_checks_of_indices(run):
    code = f"""
from sgljit_core import load_jit
module = load_jit("checks", cpp_sources={CHECKED!r}, cpp_wrappers=[("checks", "checks")])
print(module.checks(False), module.checks(True))
"""
    for variables, answer in (
        ({}, "False True"),
        ({"SGLJIT_CHECK": "0"}, "False True"),
        ({"SGLJIT_CHECK": "1"}, "True True"),
        ({"SGLJIT_CHECK": "1", "SGLJIT_CHECK_INDICES": "0"}, "False False"),
    ):
        done = run(code, **variables)
        assert done.stdout.strip() == answer, done.stderr
