"""No test of waiting may wait for ever."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

SECONDS = 300


@pytest.fixture(autouse=True)
def watchdog(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """End the process of a test that hangs, and say where: nothing milder ends a wait inside CUDA's driver."""
    with capfd.disabled():
        terminal = os.dup(2)
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=terminal)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(terminal)
