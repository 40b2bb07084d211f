"""Waiting for room for a compiler, and compilers that do not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from kit import until

from sgljit_core import errors
from sgljit_core.machine import jobs, supervisor

HOLD = """
import sys, time
from pathlib import Path
from sgljit_core.machine import jobs
with jobs.running("slow kernel", cuda=False):
    Path(sys.argv[1]).touch()
    time.sleep(600)
"""


@pytest.fixture
def holder(cache, tmp_path, monkeypatch):
    """A process that holds the only job."""
    monkeypatch.setenv("SGLJIT_JOBS", "1")
    monkeypatch.setattr(jobs, "_given_up", set())
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "holding")])
    until((tmp_path / "holding").exists)
    yield process
    process.kill()
    process.wait()


def hold_twice(caplog) -> str:
    for what in ("mine", "another of mine"):
        with jobs.running(what, cuda=False):
            pass
    (record,) = [record for record in caplog.records if record.sgljit["event"] == "job_given_up"]
    return record.getMessage()


def test_a_stopped_process_is_not_waited_for(holder, caplog):
    os.kill(holder.pid, signal.SIGSTOP)
    start = time.monotonic()
    text = hold_twice(caplog)
    assert time.monotonic() - start < 5
    assert f"process {holder.pid} on " in text
    assert "(building slow kernel since " in text
    assert "does not go on; mine is compiled beside it" in text


def test_who_does_not_go_on_is_waited_for_once_and_not_for_ever(holder, caplog, monkeypatch):
    monkeypatch.setattr(jobs, "SECONDS", 0.5)
    start = time.monotonic()
    text = hold_twice(caplog)
    assert 0.5 < time.monotonic() - start < 10
    assert f"process {holder.pid} on " in text


def test_beside_a_holder_that_is_given_up_there_is_one_job_and_no_more(holder, monkeypatch):
    import threading

    monkeypatch.setattr(jobs, "SECONDS", 0.3)
    os.kill(holder.pid, signal.SIGSTOP)
    with jobs.running("first", cuda=False):
        hurried = threading.Event()
        entered = threading.Event()

        def second():
            with jobs.running("second", cuda=False, hurried=hurried.is_set):
                entered.set()

        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.3)
        hurried.set()
        thread.join(5)
    assert entered.is_set()


def test_a_compiler_that_does_not_end_is_ended(load, compiler, monkeypatch):
    monkeypatch.setattr(supervisor, "SECONDS", 1.0)
    compiler.hold()
    with pytest.raises(errors.CompileError, match=r"the compiler did not end within 0\.0166667 minutes and was ended"):
        load()


def test_a_compiler_that_takes_all_memory_fails_with_the_limit(load, compiler, monkeypatch):
    monkeypatch.setattr(supervisor, "LEAST_MEMORY", 1 << 28)
    monkeypatch.setattr(jobs, "available_memory", lambda: 1 << 28)
    text = compiler.path.read_text()
    greedy = f"{sys.executable} -c 'x = [bytearray(1 << 20) for _ in range(4096)]'"
    compiler.path.write_text(text.replace("\nexec ", f"\n{greedy} || {{ echo out of memory; exit 1; }}\nexec "))
    with pytest.raises(errors.CompileError, match=r"ran out of memory: it could take 0\.2 GiB.*SGLJIT_JOBS=1"):
        load()


IN_A_HANDLER = """
import signal
from sgljit_core import load_jit
def load(value):
    return load_jit("number", str(value), cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc,
                    extra_cflags=[f"-DVALUE={value}"])
found = []
def handler(*_):
    Path(hold).rename(hold + "-first")  # the first compiler goes on holding the job, and its thread the locks
    found.extend(load(value).number() for value in values)
    Path(hold + "-first").unlink()
signal.signal(signal.SIGUSR1, handler)
print(load(1).number(), found, load(1) is load(1))
"""


@pytest.mark.parametrize("phase", ["compile", "link"])
@pytest.mark.parametrize("values", [[2], [1, 2]], ids=str)
def test_a_first_use_in_a_signals_handler_does_not_wait_for_the_build_that_it_interrupts(
    children, compiler, phase, values, monkeypatch
):
    monkeypatch.setenv("SGLJIT_JOBS", "1")
    hold = compiler.directory / f"hold-{phase}"
    compiler.path.write_text(compiler.path.read_text().replace("do sleep", f"|| [ -e {hold}-first ]; do sleep", 1))
    compiler.path.write_text(compiler.path.read_text().replace("]; ||", "] ||"))
    compiler.hold(phase)
    child = children.start(IN_A_HANDLER, hold=str(hold), values=values)
    until(lambda: compiler.is_held(phase))
    start = time.monotonic()
    os.kill(child.process.pid, signal.SIGUSR1)
    assert child.join(60) == f"1 {values} True\n"
    assert time.monotonic() - start < 30
