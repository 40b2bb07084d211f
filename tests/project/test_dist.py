"""What ``make dist`` builds: the same bytes each time, complete, and installed from an index on every Python here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import isolated
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = isolated.ROOT
NAMES = [name for name in isolated.PROJECTS if name != "sgljit-core"]
LICENSE = (ROOT / "LICENSE").read_bytes()


def interpreters() -> dict[str, Path]:
    """The Pythons of this machine that the project supports, by version: on PATH, or installed by pyenv."""
    root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    found = {}
    for minor in range(10, 20):
        known = sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))
        place = known[-1] if known else shutil.which(f"python3.{minor}")
        if place:
            found[f"3.{minor}"] = Path(place)
    return found


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("dist", ROOT / "release" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """What ``make dist`` leaves."""
    if not (ROOT / ".git").exists():
        pytest.skip("a release is made of a commit, and this is no checkout")
    into = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, ROOT / "release" / "dist.py", "--into", into]
    isolated.run(*command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")})
    return into


@pytest.fixture(scope="module")
def index(built, tmp_path_factory) -> str:
    """The address of a directory that is laid out as a package index (PEP 503)."""
    root = tmp_path_factory.mktemp("index")
    for file in [*built.glob("*.whl"), *built.glob("*.tar.gz")]:
        place = root / canonicalize_name(file.name.partition("-")[0])
        place.mkdir(exist_ok=True)
        shutil.copy(file, place)
    for place in root.iterdir():
        links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in sorted(place.iterdir()))
        (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return root.as_uri()


@pytest.mark.parametrize("name", NAMES)
def test_each_distribution_has_the_licence(name):
    assert (ROOT / isolated.PROJECTS[name] / "LICENSE").read_bytes() == LICENSE


@pytest.mark.slow
def test_the_licence_is_inside_of_every_file(built):
    wheels, sdists = sorted(built.glob("*.whl")), sorted(built.glob("*.tar.gz"))
    assert len(wheels) == len(sdists) == len(isolated.PROJECTS)
    for file in wheels:
        with zipfile.ZipFile(file) as wheel:
            (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/licenses/LICENSE"))
            assert wheel.read(name) == LICENSE, file.name
    for file in sdists:
        with tarfile.open(file) as sdist:
            (member,) = (one for one in sdist if re.fullmatch(r"[^/]+/LICENSE", one.name))
            assert sdist.extractfile(member).read() == LICENSE, file.name


@pytest.mark.slow
def test_two_builds_of_a_commit_have_the_same_bytes(built, script, tmp_path):
    """In another directory, by another user's habits, at another time."""
    sources = tmp_path / "elsewhere"
    sources.mkdir()
    script.export("HEAD", sources)
    for path in sources.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    files = script.build(sources, tmp_path / "again", script.commit_time("HEAD"))
    assert script.hashes(files) == (built / "SHA256SUMS").read_text()
    isolated.run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=built)


@pytest.mark.slow
def test_the_bill_of_materials_names_what_is_installed(built):
    bill = json.loads((built / "sgljit.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    components = {one["name"]: one for one in bill["components"]}
    needed = {"torch", "apache-tvm-ffi", "pluggy", "packaging", "importlib_metadata", "cryptography", "typer"}
    assert needed | {*NAMES} <= components.keys()
    assert {"pytest", "ruff", "mypy", "twine"}.isdisjoint(components)
    assert all(one["version"] and one["purl"].startswith("pkg:pypi/") for one in components.values())
    assert "Apache-2.0" in json.dumps(components["sgljit-norm"]["licenses"])
    assert str(ROOT) not in json.dumps(bill)
    assert "timestamp" not in bill["metadata"]


@pytest.mark.slow
def test_all_of_it_is_installed_from_an_index_with_what_it_requires(built, index, tmp_path):
    wheels = [isolated.Built(ROOT, file, file) for file in built.glob("*.whl")]
    environment = isolated.Environment(tmp_path / "environment", wheels)
    environment.pip("install", "--index-url", index, *isolated.PROJECTS)
    listed = environment.run(environment.bin / "sgljit", "list", "--json", "--strict")
    assert {one["family"] for one in json.loads(listed)["families"]} >= {"norm", "rope", "moe", "kvcache"}
    code = "import torch; from sgljit_core import ops; print(ops['norm'].rmsnorm(torch.ones(2, 64), torch.ones(64)))"
    environment.run_code(code)


@pytest.mark.slow
@pytest.mark.parametrize("version", interpreters())
def test_each_python_of_this_machine_takes_it(index, tmp_path, version):
    """Without torch, and without the command: their wheels are for one Python, and here are those of this one."""
    environment = tmp_path / "environment"
    isolated.run(interpreters()[version], "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python, site = environment / "bin" / "python", environment / "lib" / f"python{version}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "--python", python, "--isolated", "--no-cache-dir", "install", "--no-deps"]
    isolated.run(*pip, "--index-url", index, *isolated.PROJECTS, cwd=tmp_path)
    for distribution in isolated.closure(
        map(Requirement, ("importlib-metadata", "packaging", "pluggy")), without=set()
    ).values():
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                link = site.joinpath(*file.parts)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(str(file.locate())).resolve())
    own = sorted(path for path in site.glob("sgljit_*") if path.is_dir() and ".dist-info" not in path.name)
    assert len(own) == len(isolated.PROJECTS)
    isolated.run(python, "-W", "error", "-m", "compileall", "-q", *own, cwd=tmp_path)
    code = "import sgljit_core, sys; assert 'norm' in list(sgljit_core.ops); assert 'torch' not in sys.modules"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SGLJIT_"))}
    isolated.run(python, "-W", "error", "-c", code, cwd=tmp_path, env=variables)
