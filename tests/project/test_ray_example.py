"""Actors of a real Ray get their kernels from its object store."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys

import isolated
import pages
import pytest

from sgljit_remote.tests.real import missing

EXAMPLE = isolated.ROOT / "examples" / "ray_actors.py"


@pytest.mark.slow
def test_actors_load_what_their_driver_compiled(tmp_path):
    if importlib.util.find_spec("ray") is None:
        missing("pip install ray")
    command = [sys.executable, EXAMPLE, "--actors", "2"]
    for _ in range(3):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        if "The current node timed out during startup" not in done.stderr:  # of 30 s, which a busy machine may take
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ bytes of kernels are in the object store$", done.stdout, re.MULTILINE)
    for actor in (0, 1):
        assert f"actor {actor}: {{'hits': {{'cache': 2}}, 'builds': {{}}}}" in done.stdout
    assert "is refused and not used: " in done.stdout


def test_the_page_shows_the_actor_of_the_example():
    shown = [one for one in pages.snippets(isolated.ROOT / "docs" / "guides" / "ray.md") if "@ray.remote" in one.text]
    assert len(shown) == 1
    assert shown[0].text.strip() in EXAMPLE.read_text()
    ast.parse(EXAMPLE.read_text())  # also where Ray is not installed
