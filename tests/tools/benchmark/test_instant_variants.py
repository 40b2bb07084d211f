"""bench/instant_variants.py calls a kernel by what the headers keep to themselves: it must follow them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import isolated
import pytest
import torch

COMMAND = [sys.executable, str(isolated.ROOT / "tests" / "from_checkout.py"), "bench/instant_variants.py"]


@pytest.mark.slow
def test_the_page_has_the_calls_on_the_cpu(tmp_path):
    page = tmp_path / "instant_variants.md"
    command = [*COMMAND, "--variants", "1", "--peer-variants", "1", "--output", str(page)]
    subprocess.run(command, cwd=isolated.ROOT, check=True, timeout=600)
    rows = dict(line.strip("| ").split(" | ")[:2] for line in page.read_text().splitlines() if line.startswith("| "))
    for call in ("rmsnorm op", "rmsnorm exported", "nothing", "kernel alone"):
        assert float(rows[call]) > 0


@pytest.mark.slow
def test_the_first_calls_of_a_prologue_are_compared_and_timed(monkeypatch):
    prologues = pytest.importorskip("sgljit_prologues.ops")
    monkeypatch.syspath_prepend(str(isolated.ROOT / "bench"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bench = importlib.import_module("instant_variants")
    monkeypatch.setattr(bench, "ops", {"prologues": prologues})  # the example may be no installed plugin
    monkeypatch.setattr(bench, "HEAD_SIZES", bench.HEAD_SIZES[:1])
    bench.build_host_part_of_prologues()
    (seconds,) = bench.first_calls_of_a_prologue()
    assert seconds > 0
    monkeypatch.setattr(prologues, "qwen3", lambda **_: None)
    with pytest.raises(AssertionError):
        bench.first_calls_of_a_prologue()
