"""Calls in a process of their own."""

from __future__ import annotations

import functools
import operator
import signal
import time

import pytest

from sgljit_tools.recording import process
from sgljit_tools.recording.process import CrashedError, Worker

THREE = functools.partial(operator.add, 1, 2)


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.close()


def test_after_an_interrupted_call_the_next_gets_its_own_answer(worker):
    def interrupt(*_):
        raise KeyboardInterrupt

    assert worker.run(THREE) == 3
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            worker.run(functools.partial(time.sleep, 2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert worker.run(THREE) == 3


def test_a_call_that_never_ends_is_told_and_the_next_has_a_new_process(worker, monkeypatch):
    assert worker.run(THREE) == 3
    monkeypatch.setattr(process, "_SECONDS", 0.5)
    with pytest.raises(CrashedError, match=r"no answer after 0.5 s: the process ended with SIGKILL"):
        worker.run(functools.partial(time.sleep, 60))
    monkeypatch.undo()
    assert worker.run(THREE) == 3
