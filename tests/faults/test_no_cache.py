"""Where the cache, its root or its neighbours cannot be used there is no cache: everything else is as usual."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from kit import LOAD, artifacts, leftovers, made, mostly_slow, until

AS_NOBODY = """
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


def places(tmp_path: Path) -> dict[str, dict[str, str]]:
    closed, file, home = made(tmp_path / "closed"), tmp_path / "file", tmp_path / "home"
    file.touch()
    (home / ".cache" / "sgljit").mkdir(parents=True)
    (home / ".cache" / "sgljit").chmod(0o700)
    none = {"SGLJIT_CACHE_DIR": "", "XDG_CACHE_HOME": ""}
    return {
        "a cache below a closed directory": {"SGLJIT_CACHE_DIR": str(closed / "cache")},
        "a cache below a file": {"SGLJIT_CACHE_DIR": str(file / "cache")},
        "prebuilt below a closed directory": {"SGLJIT_PREBUILT_PATH": str(closed / "prebuilt")},
        "prebuilt below a file": {"SGLJIT_PREBUILT_PATH": str(file / "prebuilt")},
        "a closed runtime directory": {"XDG_RUNTIME_DIR": str(closed / "run")},
        "a closed HOME": {**none, "HOME": str(closed)},
        "HOME is /dev/null": {**none, "HOME": "/dev/null"},
        "HOME holds the cache of somebody else": {**none, "HOME": str(home)},
    }


PLACES = list(places(Path(tempfile.mkdtemp())))


@pytest.mark.parametrize("name", mostly_slow(*PLACES, quick=3))
def test_a_place_that_is_closed_or_no_directory(name, children, scratch, tmp_path):
    own = {"SGLJIT_CACHE_DIR": str(scratch / "own"), "TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    environment = {**own, **places(tmp_path)[name]}
    if name == "HOME holds the cache of somebody else":
        for path in (tmp_path / "home", *(tmp_path / "home").rglob("*")):
            os.chown(path, 12345, 12345)
    code = AS_NOBODY + LOAD + 'flags = ("-DVALUE=2",)\n' + LOAD
    output = children.run(code, env=environment)
    *warnings, one, two = output.splitlines()
    assert (one, two) == ("1", "2")
    assert len(warnings) <= 1
    if "SGLJIT_PREBUILT_PATH" in environment:
        (warning,) = warnings
        assert "is not a directory" in warning
    if name == "HOME holds the cache of somebody else":
        assert warnings == []
        assert len(artifacts(scratch / "sgljit-65534" / "cache")) == 2


@pytest.mark.parametrize("private", [False, True], ids=["in the cache", "in TMPDIR"])
def test_staging_that_is_removed_while_a_compiler_runs_is_made_again(children, compiler, cache, tmp_path, private):
    temporary, file = made(tmp_path / "temporary"), tmp_path / "file"
    file.touch()
    environment = {"TMPDIR": str(temporary)}
    if private:
        environment["SGLJIT_CACHE_DIR"] = str(file)
    compiler.hold()
    child = children.start("import tempfile; tempfile.tempdir = None\n" + LOAD, env=environment)
    until(compiler.is_held)
    if private:
        shutil.rmtree(temporary)
    else:
        shutil.rmtree(cache / ".staging")
    compiler.let_go()
    assert child.join().splitlines()[-1] == "1"
    assert compiler.calls() == 2
    if not private:
        assert len(artifacts(cache)) == 1
        assert leftovers(cache) == []


REMOVED = """
import shutil
from sgljit_core.machine.supervisor import Supervisor
def run(self, command, *, cwd, **options):
    if cwd.parent.name == ".staging":  # nothing else may ever go
        Supervisor.run = real
        shutil.rmtree(cwd)
    return real(self, command, cwd=cwd, **options)
real, Supervisor.run = Supervisor.run, run
"""


def test_staging_that_is_removed_before_a_compiler_starts_is_made_again(children, cache):
    assert children.run(REMOVED + LOAD).splitlines()[-1] == "1"
    assert len(artifacts(cache)) == 1
    assert leftovers(cache) == []


NOWHERE = """
import tempfile
from sgljit_core import errors, load_jit
from sgljit_core.machine import private
private._places = lambda: [Path(file)]
try:
    load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
except errors.StorageError as error:
    print(error)
"""


def test_where_nothing_can_be_written_the_error_says_so_with_both_reasons(children, tmp_path):
    file = tmp_path / "file"
    file.touch()
    output = children.run(NOWHERE, file=str(file), env={"SGLJIT_CACHE_DIR": str(file / "cache")})
    assert f"number for cpu-x86_64 cannot be compiled for lack of a directory: {file}/cache cannot be written" in output
    assert "nor can one for temporary files (Not a directory)." in output
    assert "Make room, or let SGLJIT_CACHE_DIR or TMPDIR name a directory of yours that takes files" in output
