"""docs/tutorial.md, done to the letter by a reader with core and tools; both roads of `sgljit new`, to the wheel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import isolated
import pages
import pytest

TUTORIAL = pages.snippets(isolated.ROOT / "docs" / "tutorial.md")
STEPS = re.compile(r"^ *- run: (.+)$", re.MULTILINE)

pytestmark = pytest.mark.slow


@pytest.fixture
def reader(distribution, tmp_path) -> isolated.Environment:
    """An environment with the core and the tools, and what its reader's pip would fetch."""
    own = [distribution(name) for name in ("sgljit-core", "sgljit-engines", "sgljit-tools")]
    fetched = ["pip", "pytest", "build", "hatchling", "editables", "wheel", *isolated.cuda_compilers()]
    environment = isolated.Environment(tmp_path / "environment", own, extra=fetched)
    environment.install(*own)
    pages.shims(environment.bin, environment.python)
    return environment


def variables(reader: isolated.Environment) -> dict[str, str]:
    """A reader's, whose pip has no index and builds with the backend that is installed; short benchmarks."""
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}
    return {**reader.variables, **offline, "CI": "1"}


def test_the_tutorial_from_top_to_bottom(reader, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    pages.run(TUTORIAL, reader.python, work, variables(reader), gpu=False)
    assert {path.name for path in work.iterdir()} == {"acme-kernels", "acme-ports", "dist"}


@pytest.mark.parametrize("road", ["variants", "load_jit"])
def test_a_new_distribution_passes_its_own_workflow_and_the_checkers_of_types_and_style(reader, tmp_path, road):
    def run(text: str, directory: Path) -> str:
        return isolated.run("bash", "-ec", text, cwd=directory, env=variables(reader))

    project = tmp_path / "acme-kernels"
    run(f"sgljit new acme-kernels --family acme --op row_sum --road {road}", tmp_path)
    run('pip install --editable ".[test]"', project)

    tools = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    mypy = ("mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'mypy'}", "acme_kernels")
    for checker in (("ruff", "check", "--no-cache"), ("ruff", "format", "--check", "--no-cache"), mypy):
        isolated.run(*checker, cwd=project, env=tools)

    steps = STEPS.findall((project / ".github" / "workflows" / "ci.yml").read_text())
    # The others install, in the workflow's own machine.
    own = [step for step in steps if not step.startswith(("pip install", "echo /opt"))]
    assert [step.split()[:3] for step in own] == [
        ["sgljit", "test", "acme"],
        ["python", "-m", "acme_kernels.bench"],
        ["python", "-m", "build"],
        ["sgljit", "wheel", "dist/*-none-any.whl"],
    ]
    for step in [*own, "pytest -q"]:
        here = re.sub(r" --platform \S+| --cuda-arch 10\.0", "", step)
        run(here.replace("-m build", "-m build --no-isolation"), project)

    run(f"pip install --no-deps --force-reinstall {project}/dist/*-linux_*.whl", tmp_path)
    run("sgljit test acme -k 'test_ or results'", tmp_path)
    run("pip uninstall --yes acme-kernels", tmp_path)
    assert "acme" not in run("sgljit list", tmp_path)
