"""``sgljit test``: do the ops of installed families do what they declare?

pytest runs it, in a process of its own, which an op may crash: the tests that a family brings, then the kit's checks.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sgljit_core import ops
from sgljit_core.families import loading
from sgljit_core.machine import private
from sgljit_tools.environment import inherited_environment


def run_tests(
    families: Annotated[list[str] | None, typer.Argument(help="Such as norm.", metavar="FAMILY...")] = None,
    every: Annotated[bool, typer.Option("--all", help="Test every installed family.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default the CPU, and CUDA if there.")] = None,
    keyword: Annotated[str | None, typer.Option("-k", help="Run what this expression of pytest selects.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each result.")] = False,
    sanitize: Annotated[bool, typer.Option(help="Run it under compute-sanitizer, but for PyTorch's kernels.")] = False,
) -> None:
    """Run the tests of installed families, and the checks that every op must pass. Needs no checkout.

    testing.md lists the checks; `sgljit doctor` shows where the docs are.
    """
    if every == bool(families):
        raise typer.BadParameter("name the families to test, or give --all")
    if importlib.util.find_spec("pytest") is None:
        raise typer.BadParameter('pytest runs the tests, and is not installed: pip install "pytest>=8.3"')
    pytest = "-m pytest -q -rs -p no:cacheprovider"  # a fault is shown once
    command = [*(_sanitizer() if sanitize else ()), sys.executable, *pytest.split()]
    packages = []
    for name in sorted(ops) if every else families or ():
        family = ops[name].__name__
        if (spec := importlib.util.find_spec(loading.load(family).tests)) is not None:
            # A directory, which needs no __init__.py; or one module.
            packages += list(spec.submodule_search_locations or [str(spec.origin)])
        command += ["--sgljit-family", family]
    # Without a package of tests, one that has none: pytest would collect the working directory.
    command += packages or ["--pyargs", "sgljit_tools.testing"]
    command += ["--sgljit-here"] if sanitize else []  # the sanitizer follows no process
    command += ["--sgljit-device", device] if device else []
    command += ["-k", keyword] if keyword else []
    raise typer.Exit(_run(command, as_json=as_json))


def _sanitizer() -> list[str]:
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise typer.BadParameter("compute-sanitizer is not on PATH; NVIDIA's CUDA toolkit has it")
    # Compilers and PyTorch's own kernels are left alone: under it they take longer than all else.
    others = ["--target-processes", "application-only", "--kernel-name-exclude", "kernel_substring=at6native"]
    return [program, "--error-exitcode", "1", *others]


def _run(command: list[str], *, as_json: bool) -> int:
    # Threads of OpenMP that wait would otherwise spin, on cores that compilers need.
    environment = inherited_environment(PYTHONPATH=":".join(filter(None, sys.path)), OMP_WAIT_POLICY="PASSIVE")
    # In a directory that is empty, so that no configuration of pytest counts.
    with tempfile.TemporaryDirectory(prefix="test-", dir=private.process_directory()) as empty:
        results = Path(empty, "results")
        results.touch()
        # Torch logs at DEBUG, which is of no use to an author.
        command += ["--rootdir", empty, "-p", "no:logging", "--import-mode=importlib"]
        command += ["--sgljit-json", str(results)] if as_json else []
        output = subprocess.DEVNULL if as_json else None
        status = subprocess.run(command, env=environment, cwd=empty, check=False, stdout=output).returncode
        typer.echo(results.read_text(), nl=False)
    if as_json and status < 0:
        typer.echo(json.dumps({"test": "", "outcome": "crashed", "seconds": 0.0, "text": f"signal {-status}"}))
    return status
