"""The directory of a process: its own, and gone with it."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from sgljit_core.machine import private, processes


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private._of_process.cache_clear()
    yield tmp_path
    private._of_process.cache_clear()


def test_those_of_killed_processes_go_and_those_of_others_stay(place):
    mine = processes.current()
    dead = f"{mine.rpartition('-')[0]}-1"
    elsewhere = "0123456789ab-1-1"
    left, *kept = [place / f"sgljit.{owner}.abc" for owner in (dead, mine, elsewhere, "no owner")]
    for directory in (left, *kept):
        directory.mkdir()
        (directory / "headers.pch").touch()
    made = private.process_directory()
    assert sorted(place.iterdir()) == sorted([*kept, made])


def test_it_is_the_users_alone_and_the_same_until_somebody_removes_it(place):
    first = private.process_directory()
    assert first.stat().st_mode & 0o777 == 0o700
    assert private.process_directory() == first
    shutil.rmtree(first)
    assert private.process_directory() != first
    assert private.process_directory().is_dir()


def test_a_forked_child_has_another_and_leaves_its_parents(place):
    mine = private.process_directory()
    if os.fork() == 0:
        own = private.process_directory()
        private._remove(mine, private.os.getppid())
        os._exit(0 if own != mine and mine.is_dir() else 1)
    assert os.wait()[1] == 0
    assert mine.is_dir()
