"""Commands of other distributions, by their entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def sgljit(tmp_path):
    """Run the command line beside a distribution with two commands, of which one cannot be imported."""
    (tmp_path / "acme_commands.py").write_text(
        'import typer\n\n\ndef greet(name: str) -> None:\n    """Greet somebody."""\n    typer.echo(f"hello {name}")\n'
    )
    info = tmp_path / "acme_commands-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-commands\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[sgljit.commands]\nbroken = acme_gone:run\ngreet = acme_commands:greet\n")

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, **variables}
        command = [sys.executable, "-m", "sgljit_core", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path("/"))

    return run


def test_a_command_of_another_distribution_runs_and_a_broken_one_is_a_warning(sgljit):
    done = sgljit("greet", "you")
    assert (done.returncode, done.stdout) == (0, "hello you\n")
    warning = "warning: acme-commands 1.5: the command broken cannot be loaded: ModuleNotFoundError("
    assert done.stderr.startswith(warning)


def test_own_commands_load_no_other(sgljit):
    done = sgljit("list", "--help")
    assert done.returncode == 0
    assert done.stderr == ""


def test_plugins_that_are_not_allowed_add_no_command(sgljit):
    done = sgljit("greet", "you", SGLJIT_PLUGINS="sgljit-norm")
    assert done.returncode == 2
    assert "No such command" in done.stderr
    assert "acme" not in done.stderr
