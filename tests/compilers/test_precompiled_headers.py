"""Precompiled headers of NVRTC: each process has a directory of its own, which it removes."""

from __future__ import annotations

import os
import tempfile

from sgljit_core.compilers import nvrtc
from sgljit_core.machine import processes


def test_those_of_killed_processes_go_and_those_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = processes.current()
    dead = processes.Owner(mine.machine, mine.pid, mine.started + 1)
    elsewhere = processes.Owner("0123456789ab", 1, 1)
    left, *kept = [tmp_path / f"sgljit-pch.{owner}.abc" for owner in (dead, mine, elsewhere, "no owner")]
    for directory in (left, *kept):
        directory.mkdir()
        (directory / "headers.pch").touch()
    made = nvrtc.precompiled_directory.__wrapped__(os.getpid())
    assert sorted(tmp_path.iterdir()) == sorted([*kept, made])
