"""The garbage collector stays on behind imports, whatever other threads do."""

from __future__ import annotations

import gc
import threading

from sgljit_core import lazy


def test_the_collector_is_off_inside_and_on_again_behind():
    with lazy.collector_paused():
        assert not gc.isenabled()
        with lazy.collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_blocks_of_threads_that_overlap_leave_it_on():
    is_inside, may_end = threading.Event(), threading.Event()

    def other():
        with lazy.collector_paused():
            is_inside.set()
            may_end.wait(60)

    thread = threading.Thread(target=other)
    with lazy.collector_paused():
        thread.start()
        assert is_inside.wait(60)
    may_end.set()
    thread.join(60)
    assert gc.isenabled()


def test_a_block_of_another_thread_that_ends_behind_the_question_leaves_it_on(monkeypatch):
    monkeypatch.setattr(gc, "isenabled", lambda: False)  # it was off when asked; the other block has ended since
    with lazy.collector_paused():
        monkeypatch.undo()
    assert gc.isenabled()


def test_who_has_turned_it_off_finds_it_off():
    gc.disable()
    try:
        with lazy.collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
