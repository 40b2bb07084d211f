"""No call, however wrong, may crash, hang, or give another result than the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")
FAMILIES = ("norm", "quant", "hicache", "wait_value")


def fuzz(family: str, seed: int, calls: int) -> None:
    """In a process of its own: a crash is its exit status, and a call that hangs ends it."""
    command = [sys.executable, str(FUZZ), str(seed), str(calls), family]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    ran = int(done.stdout.split()[-2])
    assert calls // 10 < ran < calls  # some are refused, some run


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_hundred_thousand_fuzzed_calls_are_refused_or_right(family, seed):
    fuzz(family, seed, calls=5000)
