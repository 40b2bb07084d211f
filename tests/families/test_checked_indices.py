"""Indices and counts out of range are refused on the CPU, and on CUDA where ``SGLJIT_CHECK_INDICES`` says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from families import checked_calls

from .test_every_op_in_graphs import EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_out_of_range_is_refused_and_nothing_is_written(device):
    path = os.pathsep.join([str(EXAMPLES / "sgljit-prologues"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("SGLJIT_CHECK_INDICES", None)
    if device == "cuda":
        environment["SGLJIT_CHECK_INDICES"] = "1"
    line = [sys.executable, checked_calls.__file__, device]
    result = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"{family}.{name} {index}" for family, name, index, _ in checked_calls.CASES]
