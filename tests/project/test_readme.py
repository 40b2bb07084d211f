"""The README holds: its commands run, its code runs, its links lead somewhere."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import isolated
import pytest

README = (isolated.ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

# Commands that set up or test the whole checkout, and what runs them.
ELSEWHERE = {
    "make demo": "test_make_demo",
    "make test": ".ci/run",
}


def make(*arguments: str, cwd: Path, env: dict[str, str]) -> str:
    """Run make as a user would, not as a part of the make that runs the tests."""
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES"}
    inner = {name: value for name, value in env.items() if name not in outer}
    return isolated.run("make", *arguments, cwd=cwd, env=inner)


def test_every_block_is_run():
    assert {language for language, _ in BLOCKS} == {"bash", "python"}
    for command, place in ELSEWHERE.items():
        assert f"\n{command}\n" in README, command
        assert place in globals() or command in (isolated.ROOT / place).read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_from_top_to_bottom(distribution, tmp_path):
    """Run the README's commands and code in its order, in an environment that starts with the requirements alone."""
    required = [distribution(name) for name in ("sgljit-core", "sgljit-engines", "sgljit-norm", "sgljit-tools")]
    tools = ["pip", "pytest", "hatchling", "hatch-fancy-pypi-readme", "editables", "wheel", *isolated.cuda_compilers()]
    environment = isolated.Environment(tmp_path / "environment", required, extra=tools)
    for tool in ("pip", "pytest"):
        script = environment.bin / tool
        script.write_text(f'#!/bin/sh\nexec "{environment.python}" -m {tool} "$@"\n')
        script.chmod(0o755)
    checkout = isolated.copy_sources(isolated.ROOT, tmp_path)
    # The reader's pip would fetch the build backend; here the one that is installed is taken.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}
    variables = {**environment.variables, **offline}
    for language, text in BLOCKS:
        if language == "python":
            isolated.run(environment.python, "-c", text, cwd=checkout, env=variables)
            continue
        for command in filter(None, text.splitlines()):
            if command not in ELSEWHERE:
                isolated.run("bash", "-ec", command, cwd=checkout, env=variables)
    assert "-xcuda" in (tmp_path / "my-kernels" / ".clangd").read_text()


@pytest.mark.slow
def test_make_demo():
    if not list(Path(sys.prefix).glob(".ready-*")):
        pytest.skip("the tests' environment was not set up by make")
    printed = make("demo", f"VENV={sys.prefix}", cwd=isolated.ROOT, env=dict(os.environ))
    assert "sgljit-norm" in printed
    assert "rmsnorm" in printed


@pytest.mark.slow
def test_make_test_gpu_needs_no_installation(distribution, tmp_path):
    """In a plain checkout, with an interpreter that has the dependencies and pytest and nothing of sgljit."""
    required = [distribution(name) for name in isolated.PROJECTS]
    environment = isolated.Environment(tmp_path / "environment", required, extra=["pytest"])
    checkout = isolated.copy_sources(isolated.ROOT, tmp_path)
    families = "import sgljit_core; print(sorted(sgljit_core.ops))"
    found = isolated.run(
        environment.python, "tests/from_checkout.py", "-c", families, cwd=checkout, env=environment.variables
    )
    assert "'add_constant'" in found
    assert "'norm'" in found
    printed = make("test-gpu", "PYTHON=python3", "PYTEST=--collect-only -q", cwd=checkout, env=environment.variables)
    assert re.search(r"sgljit_norm/tests/\S+::", printed), printed
    assert not list(checkout.rglob("*.dist-info"))


@pytest.mark.slow
def test_an_imported_cache_needs_no_compiler(distribution, tmp_path):
    required = [distribution(name) for name in ("sgljit-core", "sgljit-engines", "sgljit-norm", "sgljit-tools")]
    environment = isolated.Environment(tmp_path / "environment", required)
    environment.install(*required)
    code = "import torch; from sgljit_core import ops; ops['norm'].rmsnorm(torch.ones(2, 128), torch.ones(128))"
    environment.run_code(code)
    archive = tmp_path / "kernels.zip"
    environment.run("sgljit", "cache", "export", archive)

    elsewhere = tmp_path / "elsewhere"
    bare = {**environment.variables, "PATH": str(environment.bin), "SGLJIT_CACHE_DIR": str(elsewhere)}
    use = (environment.python, "-c", code)
    with pytest.raises(AssertionError, match="ToolchainNotFoundError"):
        isolated.run(*use, cwd=environment.home, env=bare)
    isolated.run(environment.bin / "sgljit", "cache", "import", archive, cwd=environment.home, env=bare)
    isolated.run(*use, cwd=environment.home, env=bare)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (isolated.ROOT / target).exists(), target
