"""bench/layer.py measures the small work of a layer of each model, after it has compared the results."""

from __future__ import annotations

import os
import subprocess
import sys

import isolated
import pytest

COMMAND = [sys.executable, str(isolated.ROOT / "tests" / "from_checkout.py"), "bench/layer.py", "--device", "cpu"]


@pytest.mark.slow
def test_the_page_has_a_row_for_each_model(tmp_path):
    page = tmp_path / "layer.md"
    environment = {**os.environ, "CI": "1"}
    subprocess.run([*COMMAND, "--output", str(page)], cwd=isolated.ROOT, env=environment, check=True, timeout=600)
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| 2 | ")]
    assert len(rows) == 6
    assert all(float(ours) > 0 and float(pytorch) > 0 for _, ours, pytorch, _ in rows)
