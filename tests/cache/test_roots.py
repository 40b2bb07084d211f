"""Roots that cannot be written, or that somebody else could have written. Each is really made."""

from __future__ import annotations

import os
import subprocess

import pytest
from kit import LOAD, artifacts, python

from sgljit_core import errors

AS_NOBODY = """
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ["TMPDIR"] = scratch
"""


def test_the_root_is_made_for_the_user_alone(load, cache):
    load()
    assert cache.stat().st_mode & 0o777 == 0o700
    for path in cache.rglob("*"):
        assert path.lstat().st_mode & 0o022 == 0, path


def test_read_only(load, children, compiler, cache, mount):
    load()
    mount(cache, "--bind", str(cache))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(cache)], check=True)
    assert children.run() == "1\n"  # a hit
    assert compiler.calls() == 1
    twice = LOAD + 'markers, flags = ("b",), ("-DVALUE=3",)\n' + LOAD
    output = children.run(twice, markers=("a",), flags=("-DVALUE=2",))
    assert output.splitlines()[-2:] == ["2", "3"] or output.endswith("2\n3\n")
    assert output.count("cannot be written (Read-only file system)") == 1
    assert "SGLJIT_CACHE_DIR" in output


def test_full_disk(children, cache, mount, compiler):
    mount(cache, "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs")
    assert children.run() == "1\n"
    room = os.statvfs(cache)
    (cache / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize))
    assert children.run() == "1\n"  # a hit
    assert compiler.calls() == 1
    output = children.run(markers=("more",), flags=("-DVALUE=2",))
    assert output.endswith("2\n")
    assert output.count("cannot be written (") == 1
    assert "pace left on" in output
    assert len(artifacts(cache)) == 1
    (cache / "ballast").unlink()
    assert children.run(markers=("more",), flags=("-DVALUE=2",)) == "2\n"
    assert len(artifacts(cache)) == 2


def test_a_disk_that_fills_up_while_the_compiler_writes(children, cache, mount, compiler, csrc):
    """There is room for the source and for the objects, not for more."""
    mount(cache, "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs")
    (csrc / "number.cpp").write_text(
        '#include "value.h"\n__attribute__((used)) char ballast[60000] = {1};\nint number() { return VALUE; }\n'
    )
    output = children.run()
    assert output.endswith("1\n")
    assert "cannot be written (no space left on its device)" in output or "did not take an artifact" in output
    assert artifacts(cache) == []
    assert not list((cache / ".staging").glob("*"))


def test_a_root_that_another_user_may_only_read(load, children, scratch, cache, compiler):
    """As a system-wide cache that root filled. Hits work; a miss serves the process alone."""
    load()
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    compiler.directory.chmod(0o777)
    environment = {"XDG_RUNTIME_DIR": "", "HOME": "/nonexistent"}
    assert children.run(AS_NOBODY + LOAD, env=environment, scratch=str(scratch)) == "1\n"
    assert compiler.calls() == 1
    miss = {"markers": ("miss",), "flags": ("-DVALUE=2",)}
    output = children.run(AS_NOBODY + LOAD, env={**environment, "SGLJIT_CXX": "g++"}, scratch=str(scratch), **miss)
    assert output.endswith("2\n")
    assert "cannot be written (Permission denied)" in output
    assert not [path for path in scratch.rglob("*") if path.is_file() and path.suffix == ".so"]


def test_a_root_of_another_user_is_refused(root_user, load, cache):
    cache.mkdir(mode=0o700)
    os.chown(cache, 1000, 1000)
    with pytest.raises(errors.UntrustedCacheError) as caught:
        load()
    text = str(caught.value)
    assert f"{cache} belongs to user 1000, not to you (user 0)" in text
    assert "chown -R 0" in text
    assert "SGLJIT_TRUST_SHARED_CACHE=1" in text
    assert "or set SGLJIT_CACHE_DIR to another directory" in text


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_root_that_others_can_write_is_refused(load, cache, mode):
    cache.mkdir()
    os.chown(cache, -1, 60000)
    cache.chmod(mode)
    with pytest.raises(errors.UntrustedCacheError) as caught:
        load()
    assert f"{cache} can be written by group or others (mode 0{mode:o})" in str(caught.value)
    assert f"chmod -R go-w {cache}" in str(caught.value)


def test_a_root_may_be_a_link_of_the_users_own(load, cache, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "elsewhere")
    assert load().number() == 1
    assert len(artifacts(tmp_path / "elsewhere")) == 1


def test_a_shared_root_may_be_trusted(load, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("SGLJIT_TRUST_SHARED_CACHE", "1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o777)
    cache.symlink_to(tmp_path / "elsewhere")
    assert load().number() == 1
    assert len(artifacts(cache)) == 1


AS_MEMBER = """
import os
os.umask(0o077)
os.setgroups([60000]); os.setgid(user); os.setuid(user)
os.environ.update(TMPDIR=scratch, XDG_RUNTIME_DIR="")
"""


def test_the_members_of_a_group_share_a_cache(children, scratch, cache):
    """Each hits, builds, locks and cleans up what another made, under any umask."""
    cache.mkdir()
    os.chown(cache, 0, 60000)
    cache.chmod(0o2770)

    def run(user, value, code=LOAD, **environment):
        environment = {"SGLJIT_TRUST_SHARED_CACHE": "1", **environment}
        build = {"markers": (value,), "flags": (f"-DVALUE={value}",)}
        return children.run(AS_MEMBER + code, env=environment, user=user, scratch=str(scratch), **build)

    assert run(60001, "1") == "1\n"
    assert run(60002, "1", SGLJIT_JIT="error") == "1\n"
    assert run(60002, "2") == "2\n"
    assert run(60001, "2", SGLJIT_JIT="error") == "2\n"
    assert len(artifacts(cache)) == 2
    for lock in (cache / ".locks").iterdir():
        lock.rename(lock.with_name("any"))  # the other's lock is met, whatever the key
    for path in [cache / ".locks" / f"{i:03x}.lock" for i in range(4096)]:
        os.link(cache / ".locks" / "any", path)
    for artifact in artifacts(cache):
        (artifact / "module.so").write_bytes(b"")
    for user, value in ((60002, "1"), (60001, "2")):
        output = run(user, value, "import logging; logging.basicConfig(level=20)\n" + LOAD)
        assert output.endswith(f"{value}\n")
        assert "unlocked" not in output
        assert "cannot be" not in output
    assert len(artifacts(cache)) == 2
    prune = "from sgljit_tools import cache\nprint(len(cache.prune(older_than=0).artifacts))"
    assert run(60001, "0", prune) == "2\n"
    assert artifacts(cache) == list((cache / ".staging").iterdir()) == []


@pytest.mark.parametrize("name", ["module.so", "manifest.json", "."])
def test_an_artifact_that_others_can_write_is_refused(children, cache, name):
    children.run()
    (artifact,) = artifacts(cache)
    (artifact / name).chmod(0o777)
    child = children.start()
    child.end()
    assert child.process.exitcode == 1
    assert "UntrustedCacheError" in child.output
    assert "can be written by group or others (mode 0777)" in child.output


def test_an_artifact_of_another_user_is_refused(root_user, children, cache):
    children.run()
    (artifact,) = artifacts(cache)
    os.chown(artifact / "module.so", 1000, 1000)
    child = children.start()
    child.end()
    assert child.process.exitcode == 1
    assert "module.so belongs to user 1000, not to you" in child.output


@pytest.mark.parametrize("home", ["", "/nonexistent/home"])
def test_without_a_home(children, scratch, home):
    """A user without HOME whom the user database does not know either: no home at all."""
    become = "import os\nos.environ.pop('HOME')\nos.environ.update(home)\n"
    become += "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
    output = children.run(
        become + LOAD,
        env={"SGLJIT_CACHE_DIR": "", "XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": "", "TMPDIR": str(scratch)},
        home={"HOME": home} if home else {},
    )
    assert output.endswith("1\n")
    if home:
        assert "cannot be written (Permission denied)" in output
        assert "SGLJIT_CACHE_DIR names the cache" in output
    else:
        assert len(artifacts(scratch / "sgljit-54321" / "cache")) == 1


NO_LOCKS = """
#include <errno.h>
int lockf(int, int, long) { errno = ENOLCK; return -1; }
int lockf64(int, int, long) { errno = ENOLCK; return -1; }
"""


TWO_PROCESSES = """
import logging, os, sys
import tvm_ffi
logging.basicConfig(level=20)
csrc, load = sys.argv[1:]
for _ in range(2):
    if os.fork() == 0:
        exec(load, {"csrc": csrc, "markers": (), "flags": ()})
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def test_a_file_system_that_cannot_lock(csrc, cache, tmp_path):
    """As NFS without a lock service. The work is not shared, everything else is."""
    library = tmp_path / "nolock.so"
    (tmp_path / "nolock.c").write_text(NO_LOCKS)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, "-x", "c", tmp_path / "nolock.c"], check=True)
    result = python(TWO_PROCESSES, str(csrc), LOAD, LD_PRELOAD=str(library))
    assert result.stdout == "1\n1\n", result.stderr
    assert result.stderr.count("compiled number") == 1  # the second was a hit
    assert len(artifacts(cache)) == 1


def test_prebuilt_artifacts_that_may_not_be_read_are_passed_over_with_the_command_that_helps(
    load, children, cache, csrc, scratch
):
    load()
    cache.chmod(0o755)  # as `sgljit cache import` leaves a directory that another user then names
    own = str(scratch / "own")
    environment = {"SGLJIT_PREBUILT_PATH": str(cache), "SGLJIT_CACHE_DIR": own}
    output = children.run(AS_NOBODY + LOAD, scratch=str(scratch), env=environment)
    assert output.endswith("1\n"), output
    assert f"you may not read it. Its owner can allow it: chmod -R a+rX {cache}" in output


@pytest.mark.parametrize("root", ["file", "/proc/nothing"])
def test_a_root_that_is_no_directory_costs_only_the_sharing(children, tmp_path, root):
    (tmp_path / "file").touch()
    output = children.run(env={"SGLJIT_CACHE_DIR": str(tmp_path / root)})
    assert output.endswith("1\n"), output
    assert f"the cache {tmp_path / root} cannot be written" in output
