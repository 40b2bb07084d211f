"""File locks: between processes, and between the threads of one, which record locks do not tell apart."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from sgljit_core.machine import locks
from sgljit_core.machine.locks import FileLock

TRY = "import sys\nfrom pathlib import Path\nfrom sgljit_core.machine.locks import FileLock\n"
TRY += "lock = FileLock(Path(sys.argv[1]), 'theirs')\nprint(lock.try_acquire(), lock.holder().split()[1])"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def by_another_process(path):
    """Whether another process gets the lock, and whom it then takes for the holder."""
    done = subprocess.run([sys.executable, "-c", TRY, path], capture_output=True, text=True, check=True)
    return done.stdout.split()


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_another_process_gets_it_when_it_is_given_back(path):
    lock = FileLock(path, "ours")
    assert lock.try_acquire()
    assert by_another_process(path) == ["False", str(os.getpid())]
    lock.release()
    assert by_another_process(path)[0] == "True"


def test_another_thread_neither_gets_it_nor_takes_it_from_its_holder(path):
    lock, other = FileLock(path, "ours"), FileLock(path, "theirs")
    assert lock.try_acquire()
    assert in_a_thread(other.try_acquire) is False
    assert "building ours since" in in_a_thread(other.holder)
    in_a_thread(other.release)
    assert by_another_process(path) == ["False", str(os.getpid())]
    lock.release()
    assert in_a_thread(other.try_acquire) is True
    in_a_thread(other.release)


def test_a_handler_of_a_signal_shares_the_lock_of_the_thread_that_it_interrupts(path):
    lock, handlers = FileLock(path, "ours"), FileLock(path, "its handler's")
    assert lock.try_acquire()
    assert handlers.try_acquire()
    handlers.release()
    assert by_another_process(path) == ["False", str(os.getpid())]
    lock.release()
    assert by_another_process(path)[0] == "True"


def test_a_forked_child_holds_nothing(path):
    lock = FileLock(path, "ours")
    assert lock.try_acquire()
    child = os.fork()
    if child == 0:
        os._exit(FileLock(path, "theirs").try_acquire())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert by_another_process(path) == ["False", str(os.getpid())]
    lock.release()


def test_a_file_that_cannot_be_locked_is_an_error_each_time(tmp_path):
    lock = FileLock(tmp_path / "no" / "such" / "place", "ours")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            lock.try_acquire()


def test_a_waiter_loses_an_eighth_of_the_time_and_looks_at_the_end(monkeypatch):
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    looks = list(locks.back_off(300))
    assert looks[0] == 0
    assert looks[-1] == pytest.approx(300)
    for earlier, later in itertools.pairwise(looks):
        assert later - earlier <= min(max(0.005, earlier / 8), 0.5) + 1e-9
    assert len(looks) < 700
