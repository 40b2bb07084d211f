"""Beside an inference engine: sgljit changes nothing of what is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import isolated
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

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


def test_the_oldest_environment_has_the_oldest_releases_that_the_metadata_allows():
    """All but torch, of which no other build for the CPU is published on PyPI."""
    oldest = {}
    for place in ("", "engines/sgljit-engines", "tools/sgljit-tools", "tools/sgljit-triton"):
        project = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"]
        compilers = project.get("optional-dependencies", {}).get("compiler", ())  # Triton
        for one in map(Requirement, [*project["dependencies"], *compilers]):
            (bound,) = (specifier.version for specifier in one.specifier if specifier.operator == ">=")
            assert oldest.setdefault(one.name, Version(bound)) == Version(bound), f"{place} needs another {one}"
    del oldest["sgljit-core"], oldest["sgljit-engines"]
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
