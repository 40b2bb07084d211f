"""The example of a family whose kernels are written in Triton passes its own tests from a plain checkout."""

from __future__ import annotations

import subprocess
import sys

import isolated
import pytest


@pytest.mark.slow
def test_the_example_passes_its_tests_and_the_kit_has_no_finding():
    pytest.importorskip("triton", reason="Triton's interpreter runs the kernel; pip install triton")
    example = isolated.ROOT / "examples" / "sgljit-triton-example"
    options = ["-q", "-p", "no:cacheprovider", "-c", str(example / "pyproject.toml"), "-m", "not gpu"]
    options += ["--sgljit-family", "triton_example", "--sgljit-device", "cpu"]
    command = [sys.executable, "tests/from_checkout.py", "-m", "pytest", *options, str(example)]
    done = subprocess.run(command, cwd=isolated.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
