"""What the tests share: small builds on a cold cache, child processes, and distributions that are built once."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import isolated
import pytest
from kit import COMPILER, Children, Compiler, compilers_for_cuda, made

from sgljit_core import load_jit
from sgljit_core.compilers.toolchain import Toolchain


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a cold cache, which does not exist yet."""
    root = tmp_path / "cache"
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(root))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(made(tmp_path / "run")))
    return root


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    """Sources of a function ``number`` that returns VALUE, of value.h."""
    return _written(made(tmp_path / "csrc"))


def _written(directory: Path) -> Path:
    (directory / "number.cpp").write_text('#include "value.h"\nint number() { return VALUE; }\n')
    (directory / "value.h").write_text("#pragma once\n#ifndef VALUE\n#define VALUE 1\n#endif\n")
    return directory


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the module of such sources: keys do not depend on where these lie."""
    directory = tmp_path_factory.mktemp("built")
    root, wrappers = directory / "cache", [("number", "number")]
    csrc = _written(made(directory / "csrc"))
    load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=wrappers, csrc=csrc, build_directory=root)
    return root


@pytest.fixture
def warm_cache(cache: Path, _built: Path) -> Path:
    """The root of a cache that holds the module of ``csrc``."""
    return Path(shutil.copytree(_built, cache))


@pytest.fixture
def load(csrc: Path, cache: Path) -> Callable[..., Any]:
    """Load the module of ``csrc`` in this process."""

    def load(*markers: str, flags: tuple[str, ...] = (), csrc: Path = csrc, **options: Any) -> Any:
        wrappers = [("number", "number")]
        options = {"cpp_files": ["number.cpp"], "cpp_wrappers": wrappers, "extra_cflags": flags, **options}
        return load_jit("number", *markers, csrc=csrc, **options)

    return load


@pytest.fixture(scope="session")
def _server() -> None:
    forkserver.set_forkserver_preload(["children"])
    with pytest.MonkeyPatch.context() as patch:  # the server's sys.path is its own
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()


@pytest.fixture
def children(_server: None, cache: Path, csrc: Path, tmp_path: Path) -> Iterator[Children]:
    """Processes of this test; those that still run at its end are killed."""
    with _children(csrc, made(tmp_path / "outputs")) as group:
        yield group


@contextlib.contextmanager
def _children(csrc: Path, outputs: Path) -> Iterator[Children]:
    group = Children(csrc, outputs)
    yield group
    for child in group.started:
        if child.process.is_alive():
            child.kill()


@pytest.fixture
def script(_server: None, tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run code as ``python -c`` does, with the cache of this process: ``script(code, "argument", VARIABLE="value")``.

    The process has imported torch, and neither found families nor loaded a module.
    """
    with _children(tmp_path, made(tmp_path / "scripts")) as group:

        def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
            return group.script(f"import sys; sys.argv = {['-c', *arguments]}\n{code}", **environment)

        yield run


@pytest.fixture
def sgljit(children: Children) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line: ``sgljit("cache", "list", VARIABLE="value")``."""
    return children.sgljit


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """The host compiler of this test and its children."""
    real = shutil.which(os.environ.get("SGLJIT_CXX") or os.environ.get("CXX") or "g++")
    assert real
    directory = made(tmp_path / "compiler")
    script = COMPILER.replace("$REAL", real).replace("$DIRECTORY", str(directory))
    (directory / "g++").write_text(script)
    (directory / "g++").chmod(0o755)
    monkeypatch.setenv("SGLJIT_CXX", str(directory / "g++"))
    return Compiler(directory)


@pytest.fixture(scope="session")
def nvcc() -> Toolchain:
    """The compilers for CUDA. The test is skipped where there are none, or nvcc is too old for this machine."""
    return compilers_for_cuda()


@pytest.fixture
def mount() -> Iterator[Callable[..., Path]]:
    """Mount something for the length of the test; skips it where that is not permitted."""
    mounted: list[Path] = []

    def mount(point: Path, *arguments: str) -> Path:
        point.mkdir(exist_ok=True, parents=True)
        result = subprocess.run(["mount", *arguments, str(point)], capture_output=True, text=True)
        if result.returncode != 0:
            pytest.skip(f"cannot mount here: {result.stderr.strip()}")
        mounted.append(point)
        return point

    yield mount
    for point in reversed(mounted):
        subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.fixture
def root_user() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory of the test, which is not below pytest's where other users read it: each run of pytest that begins,
    and some tests begin one, closes the directory of all runs to them."""
    if "scratch" not in request.fixturenames:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="sgljit-test-", ignore_cleanup_errors=True) as directory:
        yield Path(directory).resolve()


@pytest.fixture
def scratch(root_user: None, tmp_path: Path, csrc: Path) -> Path:
    """A place for the temporary files of other users, who can read the test's files, too."""
    directory = made(tmp_path / "scratch")
    directory.chmod(0o1777)
    for path in (csrc, tmp_path):
        path.chmod(0o755)
    return directory


@pytest.fixture(scope="session")
def distribution(run_directory: Path) -> Callable[[str], isolated.Built]:
    """Build a distribution of this repository, by name, from a copy of the sources: once in a run."""

    @functools.cache
    def get(name: str) -> isolated.Built:
        sources = run_directory / "sources"
        project, built = sources / isolated.ROOT.name / isolated.PROJECTS[name], run_directory / name
        with isolated.locked(run_directory / "distributions.lock"):
            if not sources.exists():
                isolated.copy_sources(isolated.ROOT, sources)
            if not built.exists():
                built.mkdir()
                isolated.build(project, built)
        return isolated.Built.found(project, built)

    return get
