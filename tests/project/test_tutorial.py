"""docs/tutorial.md, done to the letter by a reader who has the core alone; both roads of `sgljit new`, to the wheel.

A snippet's first line names the file that it is, or else it is run. Marks after the language: ``network`` is what the
environment already has, ``fails`` ends with a failure, ``output`` is what the snippet before it prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import isolated
import pytest

PAGE = (isolated.ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}
WORKFLOW = re.compile(r"^ *- run: (.+)$", re.MULTILINE)

pytestmark = pytest.mark.slow


@pytest.fixture
def reader(distribution, tmp_path) -> isolated.Environment:
    """An environment with the wheel of the core, and what its reader's pip would fetch."""
    core = distribution("sgljit-core")
    tools = ["pip", "pytest", "build", "hatchling", "editables", "wheel", *isolated.cuda_compilers()]
    environment = isolated.Environment(tmp_path / "environment", [core], extra=tools)
    environment.install(core)
    for tool in ("pip", "pytest"):
        script = environment.bin / tool
        script.write_text(f'#!/bin/sh\nexec "{environment.python}" -m {tool} "$@"\n')
        script.chmod(0o755)
    return environment


def run(reader: isolated.Environment, text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a text as bash would; stdout has all that it prints."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=directory,
        env={**reader.variables, **OFFLINE, "CI": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )


def test_the_tutorial_from_top_to_bottom(reader, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    printed = ""
    assert {language for language, _, _ in SNIPPETS} == {"bash", "cpp", "python", "text"}
    assert {mark for _, mark, _ in SNIPPETS} == {"", "network", "fails", "output"}
    for language, mark, text in SNIPPETS:
        if file := re.match(r"(?:#|//) (\S+/\S+\.\w+)\n", text):
            assert (work / file[1]).parent.is_dir(), file[1]
            (work / file[1]).write_text(text)
        elif mark == "output":
            for line in text.splitlines():
                assert re.search(".*".join(map(re.escape, line.split("..."))), printed), f"{line}\n{printed}"
        elif mark != "network":
            (work / "snippet.py").write_text(text)
            done = run(reader, "python snippet.py" if language == "python" else text, work)
            printed = done.stdout
            assert (done.returncode == 0) == (mark != "fails"), f"{text}\n{printed}"
    assert {path.name for path in work.iterdir()} == {"acme-kernels", "acme-ports", "dist", "snippet.py"}


@pytest.mark.parametrize("road", ["variants", "load_jit"])
def test_a_new_distribution_passes_its_own_workflow_and_the_checkers_of_types_and_style(reader, tmp_path, road):
    run(reader, f"sgljit new acme-kernels --family acme --op row_sum --road {road}", tmp_path).check_returncode()
    project = tmp_path / "acme-kernels"
    isolated.run("ruff", "check", "--no-cache", cwd=project, env=on_path())
    isolated.run("ruff", "format", "--check", "--no-cache", cwd=project, env=on_path())
    isolated.run(
        "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}/mypy", "acme_kernels", cwd=project, env=on_path()
    )
    assert run(reader, 'pip install --editable ".[test]"', project).returncode == 0
    steps = WORKFLOW.findall((project / ".github" / "workflows" / "ci.yml").read_text())
    assert len(steps) == 9
    # What it installs is there, and the platform is that of the machine of the workflow.
    own = [step for step in steps if not re.match(r"pip install|echo /opt", step)]
    assert len(own) == 4
    for step in [*own, "pytest -q -p no:cacheprovider"]:
        done = run(
            reader, re.sub(r" --platform \S+| --cuda-arch 10\.0", "", step).replace("-m build", "-m build -n"), project
        )
        assert done.returncode == 0, f"{step}\n{done.stdout}"
    carrying = next((project / "dist").glob("*-linux_*.whl"))
    installed = run(
        reader,
        f"pip install --no-deps --force-reinstall {carrying} && sgljit test acme -k 'test_ or results'",
        tmp_path,
    )
    assert installed.returncode == 0, installed.stdout
    gone = run(reader, "pip uninstall --yes acme-kernels && sgljit list", tmp_path)
    assert "acme" not in gone.stdout.partition("Successfully")[2]


def on_path() -> dict[str, str]:
    """The variables of this process, with its own tools first on PATH."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
