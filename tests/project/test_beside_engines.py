"""Beside an inference engine: sgljit changes neither what is installed nor what the engine's tvm-ffi code sees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import isolated
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from sgljit_core import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The engines' wheels are found for the Python and the system that they are published for.
ENGINES = {"sglang": ("0.5.23", "manylinux_2_34_x86_64"), "vllm": ("0.33.0", "manylinux_2_28_x86_64")}
ROOT = isolated.ROOT


def pip(*arguments: str, report: Path) -> dict:
    """What pip would install. Skips the test where pip has no index to ask."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--dry-run", "--report", os.fspath(report)]
    result = subprocess.run(command, capture_output=True, text=True)
    if re.search(r"from versions: none|connection|resolve host", result.stderr, re.IGNORECASE):
        pytest.skip(f"no package index: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    return json.loads(report.read_text())


@pytest.fixture(scope="module", params=ENGINES)
def requirements(request, tmp_path_factory) -> list[Requirement]:
    """What an engine requires, by its published metadata."""
    version, platform = ENGINES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    wheel = ("--python-version", "3.12", "--platform", platform, "--only-binary", ":all:", "--target", str(directory))
    install = ("install", "--ignore-installed", "--no-deps", *wheel, f"{request.param}=={version}")
    (found,) = pip(*install, report=directory / "report.json")["install"]
    every = [Requirement(text) for text in found["metadata"]["requires_dist"]]
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]


def install_stub(site: Path, name: str, version: str) -> None:
    """Make pip believe that a distribution, which requires nothing, is installed."""
    info = site / f"{canonicalize_name(name).replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.slow
def test_installing_beside_an_engine_changes_none_of_its_pins(requirements, distribution, tmp_path):
    pins = {
        canonicalize_name(one.name): specifier.version
        for one in requirements
        for specifier in one.specifier
        if specifier.operator == "==" and "*" not in specifier.version
    }
    assert pins["apache-tvm-ffi"] == "0.1.11"
    assert "torch" in pins
    venv.create(tmp_path / "engine")
    python = tmp_path / "engine" / "bin" / "python"
    (site,) = (tmp_path / "engine").glob("lib/*/site-packages")
    for name, version in pins.items():
        install_stub(site, name, version)

    wheels = [str(distribution(name).wheel) for name in isolated.PROJECTS]
    report = pip("--python", str(python), "install", *wheels, report=tmp_path / "report.json")
    added = {canonicalize_name(one["metadata"]["name"]): one["metadata"]["version"] for one in report["install"]}
    assert added.keys() >= set(isolated.PROJECTS)
    assert not added.keys() & pins.keys()
    allowed = {canonicalize_name(one.name): one.specifier for one in requirements}
    wrong = {name: version for name, version in added.items() if version not in allowed.get(name, SpecifierSet())}
    assert not wrong


STATE = """
import gc, json, logging, os, signal, sys, threading, warnings
import importlib_metadata, torch, tvm_ffi  # the first adds a finder of its own to sys.meta_path
from tvm_ffi import core
from tvm_ffi.registry import list_global_func_names

def state():
    return {
        "global functions": sorted(list_global_func_names()),
        "error classes": {name: id(cls) for name, cls in core.ERROR_NAME_TO_TYPE.items()},
        "members of torch.Tensor": {name: id(value) for name, value in vars(torch.Tensor).items()},
        "environment": dict(os.environ),
        "import machinery": [sys.path[:], len(sys.meta_path), len(sys.path_hooks)],
        "hooks": [id(sys.excepthook), id(sys.unraisablehook), id(threading.excepthook)],
        "signals": {int(one): repr(signal.getsignal(one)) for one in signal.valid_signals()},
        "warnings": repr(warnings.filters),
        "logging": [repr(logging.root.handlers), logging.root.level],
        "garbage collector": [gc.isenabled(), gc.get_threshold()],
        "torch": [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.get_num_threads()],
    }

def changes(before, after):
    return sorted(key for key in before if before[key] != after[key])
"""


def changed(code: str) -> list:
    script = STATE + "before = state()\n" + textwrap.dedent(code)
    return json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


def test_a_change_of_the_state_is_seen():
    code = """
        os.environ["X"] = "1"
        tvm_ffi.register_global_func("x.y", print)
        tvm_ffi.register_error("Strange", OSError)
        torch.Tensor.mine = 1
        gc.disable()
        print(json.dumps(changes(before, state())))
    """
    seen = ["environment", "error classes", "garbage collector", "global functions", "members of torch.Tensor"]
    assert changed(code) == seen


def test_importing_sgljit_changes_no_state_that_an_engine_sees():
    code = """
        import sgljit_core, sgljit_norm
        list(sgljit_core.ops), sgljit_core.ops["norm"], sgljit_norm.rmsnorm, sgljit_core.load_jit, sgljit_core.freeze
        print(json.dumps(changes(before, state())))
    """
    assert changed(code) == []


def test_using_an_op_adds_names_of_sgljit_alone():
    code = """
        import sgljit_core, sgljit_norm
        sgljit_norm.rmsnorm(torch.ones(2, 8), torch.ones(8))
        after = state()
        had, has = before["error classes"], after["error classes"]
        classes = [name for name in has if had.get(name) != has[name]]
        functions = [name for name in after["global functions"] if name not in before["global functions"]]
        print(json.dumps([changes(before, after), classes, functions]))
    """
    keys, classes, functions = changed(code)
    assert keys == ["error classes", "global functions"]
    assert set(classes) <= {*errors.__all__, "KeyboardInterrupt", "SystemExit", "sgljit.Passing"}
    assert functions
    assert all(name.startswith("sgljit.") for name in functions)


def test_the_oldest_environment_has_the_oldest_releases_that_the_metadata_allows():
    """All but torch, of which no other build for the CPU is published on PyPI."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = {}
    for one in map(Requirement, project["dependencies"]):
        (bound,) = (specifier.version for specifier in one.specifier if specifier.operator == ">=")
        oldest[one.name] = Version(bound)
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = {one.name: next(iter(one.specifier)).version for one in map(Requirement, filter(_is_pin, lines))}
    assert pinned.pop("torch") == _pin("torch")
    assert oldest.pop("torch") == Version("2.11")
    del pinned["pytest"]
    assert {name: Version(version) for name, version in pinned.items()} == oldest


def _is_pin(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def _pin(name: str) -> str:
    text = (ROOT / "constraints.txt").read_text()
    return re.search(rf"^{name}==(\S+)", text, re.MULTILINE)[1]
