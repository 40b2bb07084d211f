"""Flags in host memory, threads that wait; and what wrong arguments get."""

from __future__ import annotations

import multiprocessing
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi
from tvm_ffi import Module

from sgljit_core import load_jit, ops
from sgljit_core.errors import TensorMatchError
from sgljit_wait_value import Event, reference, samples
from sgljit_wait_value.plugin import FAMILY

family = ops["wait_value"]
CPU = torch.device("cpu")
CONDITIONS = ["eq", "ge", "and", "nor"]
SECONDS = 60  # no wait of these tests, and no child, outlasts them


def test_samples():
    for sample in samples.stream_wait_value(CPU):
        family.stream_wait_value(**sample, timeout=SECONDS)
    for sample in samples.stream_write_value(CPU):
        flag = sample["flag"]
        expected = flag.clone()
        reference.stream_write_value(**{**sample, "flag": expected})
        family.stream_write_value(**sample)
        assert torch.equal(flag, expected)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_conditions(condition: str, dtype: torch.dtype):
    """Against the reference, at the ends of the range: a wait that is not met runs into its timeout."""
    random.seed(0)
    limits = torch.iinfo(dtype)
    numbers = [0, 1, -1, 5, limits.min, limits.max, *(random.randint(limits.min, limits.max) for _ in range(4))]
    for seen in numbers:
        for value in numbers:
            flag = torch.tensor([seen], dtype=dtype)
            if reference.is_met(seen, value, condition, limits.bits):
                family.stream_wait_value(flag, value, condition=condition, timeout=SECONDS)
            else:
                with pytest.raises(TimeoutError):
                    family.stream_wait_value(flag, value, condition=condition, timeout=1e-4)


def test_a_counter_that_wraps_around():
    flag = torch.tensor([-(2**31)], dtype=torch.int32)  # one after the largest
    family.stream_wait_value(flag, 2**31 - 1, condition="ge", timeout=SECONDS)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("write", ["op", "store"])
def test_a_thread_sleeps_until_another_writes(write: str, dtype: torch.dtype):
    flag = torch.zeros(1, dtype=dtype)
    value = 1 if dtype == torch.int32 else 2**40  # a change of the upper half only
    times = []

    def release() -> None:
        time.sleep(0.3)
        times.append(time.monotonic())
        if write == "op":
            family.stream_write_value(flag, value)
        else:
            flag[0] = value

    thread = threading.Thread(target=release)
    start, busy = time.monotonic(), time.thread_time()
    thread.start()
    family.stream_wait_value(flag, value, timeout=SECONDS)
    end = time.monotonic()
    thread.join()
    assert end - start > 0.29
    assert end - times[0] < SECONDS / 2  # it is woken, also on a busy machine, and does not come to its timeout
    assert time.thread_time() - busy < 0.1


def test_many_threads_wait_for_one_flag():
    flag = torch.zeros(1, dtype=torch.int32)
    done = []
    threads = [
        threading.Thread(target=lambda: (family.stream_wait_value(flag, 1, timeout=SECONDS), done.append(1)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    family.stream_write_value(flag, 1)
    for thread in threads:
        thread.join()
    assert len(done) == 16


def test_ping_pong_between_threads():
    ping, pong = Event("cpu"), Event("cpu")

    def answer() -> None:
        for i in range(1, 501):
            ping.wait(i, timeout=SECONDS)
            pong.record(i)

    thread = threading.Thread(target=answer)
    thread.start()
    for i in range(1, 501):
        ping.record(i)
        pong.wait(i, timeout=SECONDS)
    thread.join()


def _release(flag: torch.Tensor) -> None:
    time.sleep(0.2)
    family.stream_write_value(flag, 7)


def test_another_process_writes():
    flag = torch.zeros(1, dtype=torch.int64).share_memory_()
    process = multiprocessing.get_context("spawn").Process(target=_release, args=(flag,))
    process.start()
    try:
        family.stream_wait_value(flag, 7, timeout=SECONDS)
        process.join(SECONDS)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_timeout():
    flag = torch.tensor([3], dtype=torch.int32)
    start = time.monotonic()
    with pytest.raises(TimeoutError) as raised:
        family.stream_wait_value(flag, 4, timeout=0.25)
    assert 0.25 <= time.monotonic() - start < 5
    assert str(raised.value) == "stream_wait_value: the flag is still 3 after 0.25 s, and the wait was for 'eq' 4"
    with pytest.raises(TimeoutError, match=r"is still 3 after 0\.001 s, and the wait was for 'ge' -2147483646$"):
        family.stream_wait_value(flag, 2**31 + 2, condition="ge", timeout=1e-3)  # of a 32-bit flag: a negative number


def test_ctrl_c_ends_a_wait():
    """A shell starts what it runs in the background with SIGINT ignored, which children inherit: theirs is set anew."""
    program = (
        "import signal, torch; from sgljit_core import ops; w = ops['wait_value']\n"
        f"signal.signal(signal.SIGINT, signal.default_int_handler); signal.alarm({SECONDS})\n"
        "flag = torch.zeros(1, dtype=torch.int32)\n"
        "w.stream_write_value(flag, 0)\n"  # compiled and loaded
        "try:\n"
        "    print('ready', flush=True)\n"
        f"    w.stream_wait_value(flag, 1, timeout={SECONDS})\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=SECONDS) == ("interrupted\n", None)
            assert process.returncode == 0
        finally:
            process.kill()


def test_a_signal_whose_handler_returns_does_not_end_a_wait():
    flag = torch.zeros(1, dtype=torch.int32)
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(TimeoutError):
            family.stream_wait_value(flag, 1, timeout=0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert calls


def test_event_between_threads():
    event = Event("cpu")
    assert not event.query()
    threading.Timer(0.1, event.set).start()
    event.wait(timeout=SECONDS)
    assert event.query()
    assert not event.query(2)
    event.record(2)
    event.wait(1, condition="ge", timeout=SECONDS)
    assert event.query(2)


def test_an_event_is_asked_for_any_value_that_it_takes():
    event = Event("cpu")
    for value in (2**31, 2**32 - 1, -1, -(2**31), 2**31 - 1):
        event.record(value)
        event.wait(value, timeout=SECONDS)
        assert event.query(value)
        assert event.query(value % 2**32)
        assert not event.query(value + 1)
    event.record(1)
    assert not event.query(2**32 + 1)  # no flag of 32 bits has it


def test_waiting_does_not_start_cuda():
    """A process that has only waited on the CPU can fork and use CUDA in the child."""
    program = (
        "import os, signal, torch; from sgljit_core import ops; f = torch.ones(1, dtype=torch.int32)\n"
        f"ops['wait_value'].stream_wait_value(f, 1, timeout={SECONDS})\n"
        "assert not torch.cuda.is_initialized()\n"
        "if torch.cuda.is_available() and os.fork() == 0:\n"
        f"    signal.alarm({SECONDS}); torch.zeros(1, device='cuda'); os._exit(0)\n"
        "else:\n"
        "    torch.cuda.is_available() and print(os.wait()[1])"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=2 * SECONDS)
    assert result.stdout in ("", "0\n")


ERRORS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "dtype": (
        {"flag": torch.zeros(1)},
        TensorMatchError,
        "the flag must be int32 or int64, got Tensor<1>[strides=<1>, dtype=float32, device=cpu]",
    ),
    "unsigned": (
        {"flag": torch.zeros(1, dtype=torch.uint32)},
        TensorMatchError,
        "the flag must be int32 or int64, got Tensor<1>[strides=<1>, dtype=uint32, device=cpu]",
    ),
    "empty": (
        {"flag": torch.zeros(0, dtype=torch.int32)},
        TensorMatchError,
        "the flag is empty: Tensor<0>[strides=<1>, dtype=int32, device=cpu]",
    ),
    "value": (
        {"value": 2**32},
        ValueError,
        "4294967296 does not fit the 32-bit flag Tensor<1>[strides=<1>, dtype=int32, device=cpu]",
    ),
    "condition": (
        {"condition": "lt"},
        ValueError,
        "condition must be 'eq', 'ge', 'and' or 'nor', got 'lt'",
    ),
    "mode": ({"mode": "spin"}, ValueError, "mode must be 'auto', 'driver' or 'kernel', got 'spin'"),
    "mode of a stream": (
        {"mode": "kernel"},
        ValueError,
        "the flag is for the CPU, but modes apply to CUDA streams: leave mode='auto'",
    ),
    "timeout": ({"timeout": 0.0}, ValueError, "timeout must be a positive number of seconds, got 0"),
    "timeout is not a number": ({"timeout": float("nan")}, ValueError, "timeout must be a positive number of seconds"),
    "device": ({"device": "cuda:x"}, ValueError, "device must be 'cpu', 'cuda' or 'cuda:' and a number, got 'cuda:x'"),
}


@pytest.mark.parametrize(("change", "error", "text"), ERRORS.values(), ids=ERRORS)
def test_wrong_arguments(change: dict[str, Any], error: type[Exception], text: str):
    call = {"flag": torch.zeros(1, dtype=torch.int32), "value": 0}
    with pytest.raises(error, match="^" + re.escape(f"stream_wait_value: {text}")):
        family.stream_wait_value(**{**call, **change})
    if not {"condition", "timeout"} & set(change):
        with pytest.raises(error, match="^" + re.escape(f"stream_write_value: {text}")):
            family.stream_write_value(**{**call, **change})


def test_a_flag_across_words():
    """No processor waits for such a flag without looking all the time, and a GPU faults."""
    flag = torch.frombuffer(bytearray(32), dtype=torch.int64, count=1, offset=4)
    text = rf"the flag's address must be a multiple of its size, got Tensor<1>\[.*\] at 0x{flag.data_ptr():x}$"
    with pytest.raises(TensorMatchError, match=f"^stream_wait_value: {text}"):
        family.stream_wait_value(flag, 0, timeout=SECONDS)
    with pytest.raises(TensorMatchError, match=f"^stream_write_value: {text}"):
        family.stream_write_value(flag, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_an_event_where_there_is_no_cuda():
    with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA driver|not compiled with CUDA|No CUDA GPUs"):
        Event()


MODES = [
    ({"device": "cpu", "mode": "zz"}, "mode must be 'auto', 'driver' or 'kernel', got 'zz'"),
    ({"mode": "polling"}, "mode must be 'auto', 'driver' or 'kernel', got 'polling'"),
    ({"device": "foo"}, "device must be a CUDA device or 'cpu', got 'foo'"),
    ({"device": "meta"}, "device must be a CUDA device or 'cpu', got 'meta'"),
    (
        {"device": "cpu", "mode": "kernel"},
        "mode='kernel' is for streams, and an event on the CPU is between threads: leave it out, or name a CUDA device",
    ),
    (
        {"device": "cpu", "pinned": True},
        "pinned=True is for streams, and an event on the CPU is between threads: leave it out, or name a CUDA device",
    ),
]


@pytest.mark.parametrize(("options", "text"), MODES)
def test_an_event_that_cannot_be(options: dict[str, Any], text: str):
    with pytest.raises(ValueError, match=f"^Event: {re.escape(text)}$"):
        Event(**options)


@pytest.fixture(scope="module")
def timeouts() -> Module:
    """csrc/timeouts.h, and functions that play kernels that give up."""
    tvm_ffi.register_error("TimeoutError", TimeoutError)
    names = ("take_report", "fill_report", "ring", "check")
    return load_jit(
        "timeouts",
        cpp_files=["timeouts.cpp"],
        cpp_wrappers=[(name, name) for name in names],
        csrc=Path(__file__).parent,
        extra_include_paths=[FAMILY.csrc],
    )


def give_up(timeouts: Module, device: int, flag: int, value: int, seen: int) -> None:
    timeouts.fill_report(device, timeouts.take_report(device, flag, value, seen))
    timeouts.ring(device)


def told(timeouts: Module) -> str:
    with pytest.raises(TimeoutError) as raised:
        timeouts.check()
    timeouts.check()  # once
    return str(raised.value)


def test_each_wait_that_gives_up_has_its_own_report(timeouts: Module):
    timeouts.check()
    give_up(timeouts, 0, 0x1000, 1, -1)
    assert told(timeouts) == (
        "stream_wait_value: 1 wait on a stream timed out, and the stream continued without it: after 0.25 s, at the "
        "flag at 0x1000, which was -1, and the wait was for 1"
    )
    give_up(timeouts, 0, 0x1000, 1, 5)
    give_up(timeouts, 1, 0x2000, 2, 6)
    give_up(timeouts, 0, 0x3000, 3, 7)
    assert told(timeouts) == (
        "stream_wait_value: 3 waits on a stream timed out, and the stream continued without them: "
        "after 0.25 s, at the flag at 0x1000, which was 5, and the wait was for 1; "
        "after 0.25 s, at the flag at 0x3000, which was 7, and the wait was for 3; "
        "after 0.25 s, at the flag at 0x2000, which was 6, and the wait was for 2"
    )


def test_a_report_that_is_not_finished_is_told_later(timeouts: Module):
    """Two waits give up at once: the one that is told first does not speak for the other."""
    slow = timeouts.take_report(0, 0x1000, 1, 0)
    give_up(timeouts, 0, 0x2000, 2, 0)
    text = told(timeouts)
    assert "1 wait on" in text
    assert "0x2000" in text
    timeouts.fill_report(0, slow)
    timeouts.check()  # not yet: it has not said so
    timeouts.ring(0)
    text = told(timeouts)
    assert "1 wait on" in text
    assert "0x1000" in text


def test_a_report_that_was_told_early_is_not_told_again(timeouts: Module):
    early = timeouts.take_report(0, 0x1000, 1, 0)
    timeouts.fill_report(0, early)
    give_up(timeouts, 0, 0x2000, 2, 0)
    assert "2 waits on" in told(timeouts)
    timeouts.ring(0)  # of the first
    timeouts.check()


def test_more_waits_than_reports_are_counted(timeouts: Module):
    for i in range(19):
        give_up(timeouts, 0, 0x1000 + i, i, 0)
    text = told(timeouts)
    assert "19 waits on a stream timed out" in text
    assert text.count("at the flag at") == 16
    assert "0x100f" in text
    assert text.endswith("; and 3 more")
    give_up(timeouts, 0, 0x5000, 1, 0)
    assert "1 wait on" in told(timeouts)


def test_an_argument_of_another_type():
    with pytest.raises(TypeError, match=re.escape("argument 1 (flag): expected tensor, got int")):
        family.stream_wait_value(3, 1)
    with pytest.raises(TypeError, match=re.escape("argument 2 (value): expected int, got float")):
        family.stream_wait_value(torch.zeros(1, dtype=torch.int32), 1.0)


def test_torch_compile_keeps_the_wait():
    """It returns nothing, and must not be dropped or moved before the write."""
    flag = torch.zeros(1, dtype=torch.int32)

    def write_and_wait(x: torch.Tensor) -> torch.Tensor:
        family.stream_write_value(flag, 5)
        family.stream_wait_value(flag, 5, mode="auto", timeout=10.0)
        family.stream_write_value(flag, 6)
        return x + 1

    compiled = torch.compile(write_and_wait, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    assert int(flag) == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_a_device_without_a_driver_is_a_runtime_error_as_the_readme_has_it(device: str):
    with pytest.raises(RuntimeError, match="no CUDA driver on this machine"):
        family.stream_write_value(torch.zeros(1, dtype=torch.int32), 1, device=device)
