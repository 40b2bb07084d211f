"""docs/variants.md: the family that it shows is built and run as it stands there, and its tables are complete."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import plugin_on_disk
import pytest
import torch

from sgljit_core import KernelFamily, load_jit, make_cpp_args

DOC = (Path(__file__).resolve().parents[2] / "docs" / "variants.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+\n(?://|#) (sgljit_scaling/\S+)\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL))


@pytest.fixture
def site(tmp_path) -> Path:
    """Where the family of the page is installed."""
    plugin_on_disk.install(tmp_path, "sgljit-scaling", "scaling", attribute=":FAMILY")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def run(site):
    """Runs Python there."""
    path = os.pathsep.join([str(site), *sys.path])

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=site,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_the_family_of_the_page_builds_ahead_and_passes_the_test_of_the_page(run):
    built = run("-m", "sgljit_core", "cache", "build", "scaling", "--cuda-arch", "9.0")
    assert "5 modules are ready" in built  # the host part, the CPU's function, scale3 once and scale5 twice
    assert " passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "sgljit_scaling/test_scaling.py")


@pytest.mark.parametrize(
    ("opening", "name"),
    [("namespace {", "scale_on_cpu"), ("namespace scaling {", "scaling::scale_on_cpu"), ("static", "scale_on_cpu")],
)
def test_a_deferred_function_may_be_static_and_in_a_namespace(children, private_cache, site, opening, name):
    csrc = site / "sgljit_scaling" / "csrc"
    text = FILES["sgljit_scaling/csrc/scaling_cpu.cpp"].replace("void scale_on_cpu", f"{opening} void scale_on_cpu")
    (csrc / "scaling_cpu.cpp").write_text(text + ("}\n" if opening.endswith("{") else ""))
    host_part = FILES["sgljit_scaling/csrc/scale3.cpp"].replace('"scale_on_cpu"', f'"{name}"')
    (csrc / "scale3.cpp").write_text(host_part)
    use = f"import sys\nsys.path.insert(0, {str(site)!r})\n"
    use += "import torch\nfrom sgljit_core import ops\nx = torch.ones(3)\nops['scaling'].scale3(x)\nprint(x.tolist())"
    printed = children.run(use, env={"SGLJIT_CACHE_DIR": str(private_cache)})
    assert printed.splitlines()[-1] == "[3.0, 3.0, 3.0]"


def test_the_table_of_keywords_is_that_of_the_functions():
    rows = re.findall(r"^\| (`.+?`) \| (yes|no) \|", DOC, re.MULTILINE)
    of_host = {name for names, yes in rows if yes == "yes" for name in re.findall(r"`(\w+)`", names)}
    listed = {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    assert of_host == set(inspect.signature(KernelFamily.load_host).parameters) - {"self", "args"}
    assert listed == set(inspect.signature(load_jit).parameters) - {"args"}


def test_the_table_of_dtypes_has_the_names_that_kernels_get():
    rows = re.findall(r"^\| (`(?:float|bfloat|int|bool).*) \|$", DOC, re.MULTILINE)
    cells = [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")] for row in rows]
    names = [pair for torch_names, _, device_names, _ in cells for pair in zip(torch_names, device_names, strict=True)]
    assert len(names) >= 10
    for name, device_name in names:
        assert make_cpp_args(getattr(torch, name)) == [device_name]
