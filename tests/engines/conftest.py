"""What runs is logged from a thread, seconds later: no test meets the line of an earlier one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_line_after_warm_up(monkeypatch):
    monkeypatch.setattr("sgljit_engines.Adapter._tell_when_quiet", lambda self: None)
