"""bench/instant_variants.py calls a kernel by what the headers keep to themselves: it must follow them."""

from __future__ import annotations

import subprocess
import sys

import isolated
import pytest

COMMAND = [sys.executable, str(isolated.ROOT / "tests" / "from_checkout.py"), "bench/instant_variants.py"]


@pytest.mark.slow
def test_the_page_has_the_calls_on_the_cpu(tmp_path):
    page = tmp_path / "instant_variants.md"
    command = [*COMMAND, "--variants", "1", "--peer-variants", "1", "--output", str(page)]
    subprocess.run(command, cwd=isolated.ROOT, check=True, timeout=600)
    rows = dict(line.strip("| ").split(" | ")[:2] for line in page.read_text().splitlines() if line.startswith("| "))
    for call in ("rmsnorm op", "rmsnorm exported", "nothing", "kernel alone"):
        assert float(rows[call]) > 0
