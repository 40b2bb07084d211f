"""Compilers that do not end, or take all memory."""

from __future__ import annotations

import sys
import threading

import pytest

from sgljit_core import errors
from sgljit_core.machine import jobs, supervisor


def test_a_compiler_that_does_not_end_is_ended(load, compiler, monkeypatch):
    monkeypatch.setattr(supervisor, "SECONDS", 1.0)
    compiler.hold()
    otherwise = threading.Timer(60, compiler.let_go)  # or nothing would end this test where nothing ends the compiler
    otherwise.start()
    with pytest.raises(errors.CompileError, match=r"the compiler did not end within 0\.0166667 minutes and was ended"):
        load()
    otherwise.cancel()


def test_a_compiler_that_takes_all_memory_fails_with_the_limit(load, compiler, monkeypatch):
    monkeypatch.setattr(supervisor, "LEAST_MEMORY", 1 << 28)
    monkeypatch.setattr(jobs, "available_memory", lambda: 1 << 28)
    text = compiler.path.read_text()
    greedy = f"{sys.executable} -c 'x = [bytearray(1 << 20) for _ in range(4096)]'"
    compiler.path.write_text(text.replace("\nexec ", f"\n{greedy} || {{ echo out of memory; exit 1; }}\nexec "))
    with pytest.raises(errors.CompileError, match=r"ran out of memory: it could take 0\.2 GiB.*SGLJIT_JOBS=1"):
        load()


def test_who_holds_the_only_place_for_a_compiler_does_not_wait_for_another(monkeypatch):
    """As a signal's handler that interrupts it would."""
    monkeypatch.setenv("SGLJIT_JOBS", "1")
    ended = threading.Event()

    def work():
        with jobs.running(cuda=False), jobs.running(cuda=False):
            ended.set()

    threading.Thread(target=work, daemon=True).start()
    assert ended.wait(60)
