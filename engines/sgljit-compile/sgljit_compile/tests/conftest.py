"""Adapters log no line after a warm-up: it comes seconds later, and another test would get it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_line_after_warm_up(monkeypatch):
    monkeypatch.setattr("sgljit_engines.Adapter._tell_when_quiet", lambda self: None)
