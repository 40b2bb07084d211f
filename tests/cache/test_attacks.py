"""Another user of the machine tries to get code into ours, to destroy our files, or to stop us. Each is played.

The victim is user 4001, the attacker user 4002: what the attacker does is done by root, and then given to 4002.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from kit import LOAD, artifacts, change_manifest, made, until

import sgljit_tools.cache
from sgljit_core import errors
from sgljit_core.machine import locks, private, processes, roots

VICTIM, ATTACKER, GROUP = 4001, 4002, 60000
AS_VICTIM = f"import os\nos.umask(0o022)\nos.setgroups([{GROUP}]); os.setgid({VICTIM}); os.setuid({VICTIM})\n"
NO_HOME = {"SGLJIT_CACHE_DIR": "", "XDG_CACHE_HOME": "", "XDG_RUNTIME_DIR": ""}
EVIL = "666\n"


@pytest.fixture(autouse=True)
def for_two_users(scratch, compiler):
    """Both users can read the sources and run the compiler."""
    compiler.directory.chmod(0o777)


@pytest.fixture
def evil(load, tmp_path):
    """A module of the attacker's: ``number`` returns 666."""
    load("evil", flags=("-DVALUE=666",), build_directory=tmp_path / "evil")
    (artifact,) = artifacts(tmp_path / "evil")
    shutil.copy(artifact / "module.so", tmp_path / "evil.so")
    return tmp_path / "evil.so"


def owned(directory: Path, user: int, mode: int = 0o755) -> Path:
    """A new directory of a user."""
    directory.mkdir()
    os.chown(directory, user, user)
    directory.chmod(mode)
    return directory


def replace(directory: Path, evil: Path) -> None:
    """Put a directory of the attacker's in the place of one, with the module where the linker's is expected."""
    directory.rename(directory.with_name("away"))
    owned(directory, ATTACKER, 0o777)
    shutil.copy(evil, directory / "module.so")
    os.chown(directory / "module.so", ATTACKER, ATTACKER)
    (directory / "module.so").chmod(0o755)


def replace_while_it_is_compiled(child, compiler, evil: Path, *places: Path) -> str:
    """Let a build link, replace what lies in ``places``, and see what the victim loads."""
    compiler.hold("after-link")
    until(lambda: compiler.is_held("after-link") or child.process.exitcode is not None)
    for place in places:
        for directory in [*place.glob("*")] if place.is_dir() else []:
            replace(directory, evil)
    compiler.let_go("after-link")
    child.end()
    assert EVIL not in child.output, "code of the attacker ran as the victim"
    return child.output


def test_a_fallback_directory_that_another_user_made_first_is_not_used(children, scratch, compiler, evil):
    mine = owned(scratch / f"sgljit-{VICTIM}", ATTACKER, 0o777)
    owned(mine / "cache", ATTACKER, 0o777)
    compiler.hold("after-link")
    code = "import os\ndel os.environ['HOME']\n" + AS_VICTIM + LOAD + "markers = ('again',)\n" + LOAD
    child = children.start(code, env={**NO_HOME, "TMPDIR": str(scratch)})
    output = replace_while_it_is_compiled(child, compiler, evil, mine / "cache" / ".staging")
    assert output.endswith("1\n1\n")
    assert output.count("there is no cache: what is compiled now serves this process alone") == 1
    assert f"{mine} belongs to user {ATTACKER}, not to you (user {VICTIM})" in output
    assert list((mine / "cache").iterdir()) == []
    assert [path for path in scratch.rglob("*") if path.is_file()] == []  # nothing is left of the private build


def swap(root: Path, evil: Path, owner: int) -> None:
    """Let the artifact of a root be the attacker's module, and the root and all below it be ``owner``'s."""
    (artifact,) = artifacts(root)
    code = evil.read_bytes()
    (artifact / "module.so").write_bytes(code)
    change_manifest(artifact, size=len(code), sha256=hashlib.sha256(code).hexdigest())
    for path in (root, *root.rglob("*")):
        os.chown(path, owner, owner)
        path.chmod(0o755)


def test_a_fallback_directory_of_another_user_is_no_shared_cache(children, scratch, evil):
    """The setting is about a directory that somebody named. The name of this one can be guessed."""
    mine = owned(scratch / f"sgljit-{VICTIM}", VICTIM)
    code, environment = AS_VICTIM + LOAD, {"TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    assert children.run(code, env={**environment, "SGLJIT_CACHE_DIR": str(mine / "cache")}) == "1\n"
    swap(mine / "cache", evil, ATTACKER)
    os.chown(mine, ATTACKER, ATTACKER)
    environment = {**environment, **NO_HOME, "SGLJIT_TRUST_SHARED_CACHE": "1"}
    output = children.run("import os\ndel os.environ['HOME']\n" + code, env=environment)
    assert output.endswith("1\n")
    assert f"{mine} belongs to user {ATTACKER}, not to you (user {VICTIM})" in output
    assert "SGLJIT_TRUST_SHARED_CACHE" not in output


@pytest.mark.parametrize("name", [".staging", ".locks"])
def test_an_open_directory_below_a_closed_root_is_refused(children, scratch, compiler, evil, name):
    root = owned(scratch / "cache", VICTIM)
    child = children.run(AS_VICTIM + LOAD, env={"SGLJIT_CACHE_DIR": str(root), "TMPDIR": str(scratch)})
    assert child == "1\n"
    (root / name).chmod(0o777)
    compiler.hold("after-link")
    environment = {"SGLJIT_CACHE_DIR": str(root), "TMPDIR": str(scratch)}
    child = children.start(AS_VICTIM + LOAD, env=environment, markers=("b",), flags=("-DVALUE=2",))
    output = replace_while_it_is_compiled(child, compiler, evil, *([root / name] if name == ".staging" else []))
    assert f"UntrustedCacheError: {root / name} can be written by group or others (mode 0777)" in output
    assert f"Close it (chmod -R go-w {root / name}), or set SGLJIT_CACHE_DIR to another directory" in output


@pytest.mark.parametrize("depth", range(5))
def test_a_directory_on_the_way_to_an_artifact_that_others_can_write_is_refused(children, scratch, depth):
    root = owned(scratch / "cache", VICTIM)
    environment = {"SGLJIT_CACHE_DIR": str(root), "TMPDIR": str(scratch)}
    assert children.run(AS_VICTIM + LOAD, env=environment) == "1\n"
    (artifact,) = artifacts(root)
    place = artifact.parents[depth]
    place.chmod(0o777)
    child = children.start(AS_VICTIM + LOAD, env=environment)
    child.end()
    assert f"UntrustedCacheError: {place} can be written by group or others" in child.output


ANCESTORS = {
    "of the attacker": (ATTACKER, 0o755, "belongs to user 4002, not to you (user 4001)", "Let it belong to you or to"),
    "of the attacker, sticky": (
        ATTACKER,
        0o1777,
        "belongs to user 4002, not to you (user 4001)",
        "or set SGLJIT_CACHE",
    ),
    "open to all": (VICTIM, 0o777, "can be written by group or others (mode 0777)", "or chmod +t "),
    "open to a group": (0, 0o775, "can be written by group or others (mode 0775)", "Close it (chmod go-w "),
}


@pytest.mark.parametrize("kind", ANCESTORS)
def test_a_root_in_a_directory_that_others_can_change_is_refused(children, scratch, compiler, evil, kind):
    owner, mode, reason, remedy = ANCESTORS[kind]
    place = owned(scratch / "place", owner, mode)
    root = owned(place / "cache", VICTIM, 0o700)
    compiler.hold("after-link")
    child = children.start(AS_VICTIM + LOAD, env={"SGLJIT_CACHE_DIR": str(root), "TMPDIR": str(scratch)})
    until(lambda: compiler.is_held("after-link") or child.process.exitcode is not None)
    if compiler.is_held("after-link"):  # the attacker renames the root, and rebuilds what the victim looks for
        (staging,) = (root / ".staging").iterdir()
        root.rename(place / "away")
        there = owned(root, ATTACKER, 0o777)
        owned(there / ".staging", ATTACKER, 0o777)
        shutil.copytree(place / "away" / ".staging" / staging.name, staging)
        replace(staging, evil)
        compiler.let_go("after-link")
    child.end()
    assert EVIL not in child.output, "code of the attacker ran as the victim"
    assert f"UntrustedCacheError: {place} {reason}" in child.output
    assert remedy in child.output


def test_a_root_in_a_sticky_directory_of_root_is_used(children, scratch):
    root = owned(scratch / "cache", VICTIM, 0o700)
    assert children.run(AS_VICTIM + LOAD, env={"SGLJIT_CACHE_DIR": str(root), "TMPDIR": str(scratch)}) == "1\n"
    assert len(artifacts(root)) == 1


@pytest.mark.parametrize("sticky", [True, False])
def test_a_link_of_another_user_on_the_way_is_refused(children, scratch, tmp_path, sticky):
    """They can let it lead elsewhere at any time. In a directory of our own nobody could."""
    place = scratch if sticky else owned(tmp_path / "closed", VICTIM)
    root = owned(tmp_path / "mine", VICTIM, 0o700)
    (place / "link").symlink_to(root)
    os.lchown(place / "link", ATTACKER, ATTACKER)
    environment = {"SGLJIT_CACHE_DIR": str(place / "link" / "cache"), "TMPDIR": str(scratch)}
    child = children.start(AS_VICTIM + LOAD, env=environment)
    child.end()
    assert f"{place / 'link'} is a symbolic link of user {ATTACKER}, not of yours (user {VICTIM})" in child.output
    assert list(root.iterdir()) == []


def acl(user: int, rights: int) -> bytes:
    """An access control list that gives a user rights: owner rwx, user, group r-x, mask rwx, others r-x."""
    none = 0xFFFFFFFF
    entries = [(0x01, 7, none), (0x02, rights, user), (0x04, 5, none), (0x10, 7, none), (0x20, 5, none)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.parametrize("group", [VICTIM, 0], ids=["a group", "the user's own group"])
def test_an_access_control_list_counts(scratch, load, cache, group):
    cache.mkdir(mode=0o700)
    os.chown(cache, 0, group)
    try:
        os.setxattr(cache, "system.posix_acl_access", acl(ATTACKER, 7))
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    with pytest.raises(errors.UntrustedCacheError, match="can be written by group or others"):
        load()


def test_the_group_that_is_the_user_alone_may_write(load, cache):
    """Root is alone in its group, as all users are where the umask is 002."""
    cache.mkdir()
    cache.chmod(0o775)
    assert load().number() == 1


FOREIGN = (".staging/web/index.html", ".staging/draft.me.now", ".locks/mail.1", ".answers/letter.json", "notes/a")


@pytest.fixture
def full(tmp_path):
    """A directory with somebody's old files, under names that a cache uses, too."""
    place = made(tmp_path / "www")
    for name in FOREIGN:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    for i in range(40):
        (place / ".locks" / f"mail.{i}").write_text("mine")
    for path in place.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return place


def test_a_directory_that_holds_other_files_does_not_become_a_cache(children, sgljit, full, load, monkeypatch):
    load()
    with pytest.raises(errors.NotACacheError):
        sgljit_tools.cache.copy(full)
    before = sorted(full.rglob("*"))
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(full))
    with pytest.raises(errors.NotACacheError) as caught:
        load("b", flags=("-DVALUE=2",))
    held = ".answers, .locks, .staging, notes"
    assert str(caught.value).splitlines() == [
        f"{full} is no cache of sgljit: it holds {held}, and no CACHEDIR.TAG of sgljit.",
        "A cache removes old files. So let SGLJIT_CACHE_DIR name a directory that is empty or does not exist yet, or "
        "empty this one",
    ]
    for command in (["prune"], ["prune", "--days", "0"], ["import", str(full / "notes" / "a")]):
        result = sgljit("cache", *command, "--directory", str(full))
        assert result.returncode != 0
        assert f"{full} is no cache of sgljit" in result.stderr
    assert sorted(full.rglob("*")) == before


def test_the_tag_of_another_programs_cache_is_not_ours(load, cache):
    cache.mkdir(mode=0o700)
    (cache / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# made by cargo\n")
    with pytest.raises(errors.NotACacheError, match=r"it holds CACHEDIR\.TAG, and no"):
        load()


@pytest.mark.parametrize("content", ["nothing", "lost+found", "a tag that a killed process began"])
def test_an_empty_directory_becomes_a_cache_and_says_so_to_backup_programs(load, cache, content):
    cache.mkdir(mode=0o700)
    if content == "lost+found":
        (cache / content).mkdir()
    elif content != "nothing":
        (cache / "CACHEDIR.TAG").touch()
    load()
    text = (cache / "CACHEDIR.TAG").read_text()
    assert text.startswith("Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache of sgljit")


def test_only_names_of_its_own_form_are_removed_from_a_cache_and_all_are_named(load, cache, sgljit):
    load()
    foreign = [cache / name for name in FOREIGN]
    dead = f"{processes.current().rpartition('-')[0]}-1"
    mine = [cache / ".staging" / f"host.cpu.number.{dead}.00000000", cache / ".answers" / f"{0:032x}.json"]
    for path in (*mine, *foreign, cache / ".staging" / f"number.{processes.current()}.00000000"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1e9, 1e9))
    foreign += [path, cache / ".staging" / f"number.{'0' * 12}-1-1.00000000"]  # a build of this process, and elsewhere
    foreign[-1].touch()
    dry = sgljit("cache", "prune", "--dry-run").stdout
    assert dry.endswith("would remove 0 artifacts, 0 bytes, and 2 leftovers of builds\n")
    assert all(path.exists() for path in mine)
    said = sgljit("cache", "prune").stdout
    assert said.endswith("removed 0 artifacts, 0 bytes, and 2 leftovers of builds\n")
    assert all(f"leftover  {path}\n" in said for path in mine)
    assert not any(path.exists() for path in mine)
    assert all(path.exists() for path in foreign)


def test_a_build_says_in_the_log_what_it_removes(load, cache, caplog):
    load()
    dead = f"{processes.current().rpartition('-')[0]}-1"
    left = made(cache / ".staging" / f"host.cpu.number.{dead}.00000000")
    caplog.set_level("INFO", "sgljit")
    load("b", flags=("-DVALUE=2",))
    (record,) = [record for record in caplog.records if record.sgljit["event"] == "collected"]
    assert record.getMessage() == f"removed from {cache}: .staging/{left.name}"
    assert record.sgljit["paths"] == [str(left)]


def test_a_lock_file_that_is_a_link_to_our_file_does_not_destroy_it(children, scratch):
    root = owned(scratch / "cache", VICTIM)
    environment = {"SGLJIT_CACHE_DIR": str(root), "TMPDIR": str(scratch)}
    assert children.run(AS_VICTIM + LOAD, env=environment) == "1\n"
    letter = scratch / "letter"
    letter.write_text("dear reader")
    os.chown(letter, VICTIM, VICTIM)
    (root / ".locks").chmod(0o777)
    shutil.rmtree(root / ".locks")
    owned(root / ".locks", VICTIM, 0o777)
    for number in range(4096):
        os.link(letter, root / ".locks" / f"{number:03x}.lock")
    child = children.start(AS_VICTIM + LOAD, env=environment, markers=("b",), flags=("-DVALUE=2",))
    child.end()
    assert letter.read_text() == "dear reader"


@pytest.fixture
def hold_every_lock(children, cache):
    """Runs code as a member of the group of a shared cache, in its directory of locks, until they are held."""
    locks = cache / ".locks"
    roots.make(cache)
    locks.mkdir()
    for directory in (cache, locks):
        os.chown(directory, 0, GROUP)
        directory.chmod(0o2770)
    descriptors = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))\n"

    def hold(code):
        holder = children.start(descriptors + AS_VICTIM.replace("4001", "4002") + code, directory=str(locks))
        until(lambda: holder.output == "held\n" or holder.process.exitcode is not None)
        return holder

    return hold


HELD_FIFO = """
import fcntl, os, time
for number in range(4096):
    path = f"{directory}/{number:03x}.lock"
    os.mkfifo(path)
    os.chmod(path, 0o666)
    fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


LINKED = """
import os
for number in range(4096):
    os.symlink(letter, f"{directory}/{number:03x}.lock")
print("held", flush=True)
"""


def test_a_lock_file_of_a_shared_cache_that_is_a_link_to_our_file_does_not_destroy_it(
    children, scratch, hold_every_lock
):
    letter = scratch / "letter"
    letter.write_text("dear reader")
    os.chown(letter, VICTIM, VICTIM)
    assert hold_every_lock(f"letter = {str(letter)!r}{LINKED}").output == "held\n"
    environment = {"SGLJIT_TRUST_SHARED_CACHE": "1", "TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    assert children.run(AS_VICTIM + LOAD, env=environment) == "1\n"
    assert letter.read_text() == "dear reader"


def test_locks_that_a_member_of_a_group_holds_for_ever_delay_a_build_and_no_more(children, scratch, hold_every_lock):
    """They are FIFOs, whose note nobody ever writes."""
    assert hold_every_lock(HELD_FIFO).output == "held\n"
    short = "from sgljit_core.builds import making\nmaking.LOCK_SECONDS = 0.3\n"
    environment = {"SGLJIT_TRUST_SHARED_CACHE": "1", "TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    output = children.run(short + AS_VICTIM + LOAD, env=environment)
    assert output.endswith("1\n")
    assert "another process has held the lock of number for cpu-" in output


LEASED = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
for number in range(4096):
    descriptor = os.open(f"{directory}/{number:03x}.lock", os.O_RDWR | os.O_CREAT, 0o660)
    os.fchmod(descriptor, 0o660)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
time.sleep(600)
"""


def test_leases_on_locks_do_not_delay_a_build(children, scratch, hold_every_lock):
    """Each makes whoever opens the file wait for 45 s, unless he asks not to."""
    holder = hold_every_lock(LEASED)
    if holder.process.exitcode is not None:
        pytest.skip(f"no leases here: {holder.output}")
    environment = {"SGLJIT_TRUST_SHARED_CACHE": "1", "TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    start = time.monotonic()
    assert children.run(AS_VICTIM + LOAD, env=environment) == "1\n"
    assert time.monotonic() - start < 40


def test_a_holder_of_a_lock_is_not_asked_for_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    for name in ("fifo", "deep", "link", "missing"):
        assert locks.FileLock(tmp_path / name, "op").holder() == "another process"


def test_staging_is_private_in_a_shared_cache_too(children, scratch, cache, compiler):
    roots.make(cache)
    os.chown(cache, 0, GROUP)
    cache.chmod(0o2770)
    compiler.hold()
    environment = {"SGLJIT_TRUST_SHARED_CACHE": "1", "TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    child = children.start(AS_VICTIM + LOAD, env=environment)
    until(compiler.is_held)
    (staging,) = (cache / ".staging").iterdir()
    mode, owner = staging.stat().st_mode & 0o777, staging.stat().st_uid
    compiler.let_go()
    assert child.join() == "1\n"
    assert (mode, owner) == (0o700, VICTIM)


def test_answers_of_another_member_are_not_believed(children, scratch, cache):
    """Each says that the compiler is another one, so that the victim's own artifact does not serve."""
    roots.make(cache)
    os.chown(cache, 0, GROUP)
    cache.chmod(0o2770)
    shared = {"SGLJIT_TRUST_SHARED_CACHE": "1", "TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    shared["SGLJIT_CXX"] = "g++"  # nothing is remembered of a script
    assert children.run(AS_VICTIM + LOAD, env=shared) == "1\n"
    answers = [path for path in (cache / ".answers").iterdir() if '["version"' in path.read_text()]
    assert answers
    for answer in answers:
        text = answer.read_text()
        false = text[: text.index('"answer"')] + '"answer": "g++ 99.9"}'
        answer.unlink()
        answer.write_text(false)
        os.chown(answer, ATTACKER, GROUP)
        answer.chmod(0o660)
    assert children.run(AS_VICTIM + LOAD, env={**shared, "SGLJIT_JIT": "error"}) == "1\n"


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_the_home_of_another_user_is_not_ours(children, scratch, variable, mode):
    """As where a command of another user's kept the variables of who called it."""
    place = owned(scratch / "home", ATTACKER, mode)
    code = AS_VICTIM + "os.environ.pop('HOME')\nos.environ.update(home)\n" + LOAD
    environment = {**NO_HOME, "TMPDIR": str(scratch)}
    assert children.run(code, env=environment, home={variable: str(place)}) == "1\n"
    assert len(artifacts(scratch / f"sgljit-{VICTIM}" / "cache")) == 1
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_a_default_cache_that_others_can_replace_is_passed_over(children, scratch, variable):
    """Nobody chose it, so that it costs the sharing alone."""
    place = owned(scratch / "home", VICTIM, 0o777)
    environment = {**NO_HOME, "TMPDIR": str(scratch), variable: str(place)}
    code = AS_VICTIM + LOAD + "markers = ('again',)\n" + LOAD
    output = children.run(code, env=environment)
    assert output.endswith("1\n1\n")
    assert output.count(f"{place} can be written by group or others (mode 0777)") == 1
    assert list(place.iterdir()) == []


def test_a_cache_that_was_replaced_since_its_last_use_is_looked_at_again(children, scratch, tmp_path):
    """By a directory with artifacts of the same user, in a place that they left open since."""
    place = owned(tmp_path / "place", VICTIM)
    root = owned(place / "cache", VICTIM, 0o700)
    code = AS_VICTIM + LOAD + "os.chmod(place, 0o777)\nopen(ready, 'w').close()\n"
    code += "import time\nwhile os.path.exists(ready): time.sleep(0.01)\nflags = ('-DVALUE=2',)\n" + LOAD
    ready = scratch / "ready"
    environment = {"SGLJIT_CACHE_DIR": str(root), "TMPDIR": str(scratch)}
    children.run(AS_VICTIM + LOAD, env=environment, flags=("-DVALUE=2",))
    child = children.start(code, env=environment, place=str(place), ready=str(ready))
    until(ready.exists)
    root.rename(place / "away")
    shutil.copytree(place / "away", root)
    for path in (root, *root.rglob("*")):
        os.chown(path, VICTIM, VICTIM)
    ready.unlink()
    child.end()
    assert f"UntrustedCacheError: {place} can be written by group or others (mode 0777)" in child.output


def test_prebuilt_artifacts_in_a_place_of_another_user_are_refused(children, scratch, load, cache):
    load()
    place = owned(scratch / "place", ATTACKER)
    shutil.copytree(cache, place / "prebuilt")  # root's, as a system's administrator leaves them
    for path in (place / "prebuilt").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (place / "prebuilt").chmod(0o755)
    environment = {"SGLJIT_CACHE_DIR": str(scratch / "own"), "SGLJIT_PREBUILT_PATH": str(place / "prebuilt")}
    child = children.start(AS_VICTIM + LOAD, env={**environment, "TMPDIR": str(scratch)})
    child.end()
    assert f"UntrustedCacheError: {place} belongs to user {ATTACKER}" in child.output
    assert "leave it out of SGLJIT_PREBUILT_PATH" in child.output


OPENED = """
import sys
def watch(event, arguments):
    if event in ("open", "os.symlink", "os.mkdir", "tempfile.mkdtemp", "tempfile.mkstemp"):
        if any(isinstance(one, str) and one.startswith(place) for one in arguments):
            print("used", event, arguments)
sys.addaudithook(watch)
"""


@pytest.mark.parametrize(("owner", "mode"), [(VICTIM, 0o777), (ATTACKER, 0o755), (ATTACKER, 0o1777)])
def test_a_tmpdir_in_which_others_can_replace_files_is_used_for_nothing(children, scratch, tmp_path, owner, mode):
    """Neither for a private build nor on the way of a library to the loader."""
    place = owned(scratch / "tmp", owner, mode)
    environment = {"SGLJIT_CACHE_DIR": "/proc/nothing", "XDG_RUNTIME_DIR": "", "TMPDIR": str(place)}
    code = AS_VICTIM + "import tempfile\ntempfile.tempdir = place\n" + OPENED + LOAD
    output = children.run(code, env=environment, place=str(place))
    assert output.endswith("1\n")
    assert "used" not in output, output


def test_where_no_directory_for_temporary_files_is_safe_the_error_says_so(children, scratch):
    place = owned(scratch / "tmp", VICTIM, 0o777)
    code = "from sgljit_core.machine import private\nprivate._places = lambda: [Path(place)]\n"
    child = children.start(AS_VICTIM + code + LOAD, env={"SGLJIT_CACHE_DIR": "/proc/nothing"}, place=str(place))
    child.end()
    assert "StorageError: number for cpu-" in child.output
    assert f"{place} can be written by group or others (mode 0777), so another user" in child.output
    assert "No directory for temporary files is safe: let TMPDIR name a directory that belongs to you" in child.output


def test_temporary_directories_of_other_users_are_left_alone(scratch, monkeypatch):
    """Under names that those of a killed process of ours would have."""
    dead = f"{processes.current().rpartition('-')[0]}-1"
    theirs = [scratch / f"{name}.{dead}.abc" for name in ("sgljit", "sgljit-pch")]
    for directory in theirs:
        directory.mkdir()
        (directory / "letter").touch()
        os.chown(directory, ATTACKER, ATTACKER)
    monkeypatch.setattr(private, "_places", lambda: [scratch])
    made, _ = private._of_process.__wrapped__(os.getpid())
    assert all((directory / "letter").exists() for directory in theirs)
    shutil.rmtree(made)


def test_a_directory_of_this_process_that_a_cleaner_removed_and_another_user_made_is_not_used(scratch, monkeypatch):
    monkeypatch.setattr(private, "_places", lambda: [scratch])
    private._of_process.cache_clear()
    first = private.process_directory()
    shutil.rmtree(first)
    owned(first, ATTACKER, 0o777)
    assert private.process_directory() != first
    private._of_process.cache_clear()


def test_an_archive_is_not_written_through_a_link_at_a_name_that_can_be_guessed(load, tmp_path):
    load()
    letter = tmp_path / "letter"
    letter.write_text("dear reader")
    place = owned(tmp_path / "shared", ATTACKER, 0o777)
    for name in (f".a.zip.{os.getpid()}", ".a.zip", "a.zip"):
        (place / name).symlink_to(letter)
    assert sgljit_tools.cache.export_archive(place / "a.zip") == 1
    assert letter.read_text() == "dear reader"
    assert not (place / "a.zip").is_symlink()


def test_a_tag_that_another_user_planted_makes_no_cache(children, scratch, full):
    """While the directory was open. It is closed by now, but what it says was never the victim's word."""
    shutil.copytree(full, scratch / "www")
    for path in (scratch / "www", *(scratch / "www").rglob("*")):
        os.chown(path, VICTIM, VICTIM)
    (scratch / "www" / "CACHEDIR.TAG").write_bytes(roots._TEXT)
    os.chown(scratch / "www" / "CACHEDIR.TAG", ATTACKER, ATTACKER)
    before = sorted((scratch / "www").rglob("*"))
    child = children.start(AS_VICTIM + LOAD, env={"SGLJIT_CACHE_DIR": str(scratch / "www"), "TMPDIR": str(scratch)})
    child.end()
    assert "NotACacheError" in child.output
    prune = "from sgljit_tools import cache\ncache.prune(Path(place), older_than=0)\n"
    child = children.start(AS_VICTIM + prune, place=str(scratch / "www"))
    child.end()
    assert "NotACacheError" in child.output
    assert sorted((scratch / "www").rglob("*")) == before


def test_a_fifo_in_the_place_of_a_tag_is_not_waited_for(children, cache):
    cache.mkdir(mode=0o700)
    os.mkfifo(cache / "CACHEDIR.TAG")
    child = children.start()
    child.end()
    assert "it holds CACHEDIR.TAG, and no CACHEDIR.TAG of sgljit" in child.output


@pytest.mark.parametrize("kind", ["fifo", "file", "link", "link to nothing", "directory"])
def test_whatever_another_user_put_in_the_place_of_a_fallback_directory(children, scratch, kind):
    place, elsewhere = scratch / f"sgljit-{VICTIM}", owned(scratch / "elsewhere", VICTIM)
    {
        "fifo": lambda: os.mkfifo(place),
        "file": place.touch,
        "link": lambda: place.symlink_to(elsewhere),
        "link to nothing": lambda: place.symlink_to(elsewhere / "nothing"),
        "directory": lambda: place.mkdir(mode=0o700),
    }[kind]()
    os.lchown(place, ATTACKER, ATTACKER)
    code = "import os\ndel os.environ['HOME']\n" + AS_VICTIM + LOAD
    output = children.run(code, env={**NO_HOME, "TMPDIR": str(scratch)})
    assert output.endswith("1\n")
    assert output.count("serves this process alone") == 1
    assert list(elsewhere.iterdir()) == []


def test_a_link_of_another_user_to_prebuilt_artifacts_is_refused(children, scratch, load, cache):
    load()
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (scratch / "prebuilt").symlink_to(cache)
    os.lchown(scratch / "prebuilt", ATTACKER, ATTACKER)
    environment = {"SGLJIT_CACHE_DIR": str(scratch / "own"), "SGLJIT_PREBUILT_PATH": str(scratch / "prebuilt")}
    child = children.start(AS_VICTIM + LOAD, env={**environment, "TMPDIR": str(scratch)})
    child.end()
    assert f"{scratch / 'prebuilt'} is a symbolic link of user {ATTACKER}" in child.output


def test_artifacts_that_another_user_put_beside_sources_are_not_the_plugins(children, scratch, csrc, evil, cache):
    """The sources lie in a directory of the victim's in /tmp, and what they would carry beside it."""
    with_family = LOAD.replace("extra_cflags=flags", "extra_cflags=flags, family='mine'")
    environment = {"SGLJIT_CACHE_DIR": str(scratch / "cache"), "TMPDIR": str(scratch), "XDG_RUNTIME_DIR": ""}
    sources = shutil.copytree(csrc, scratch / "csrc")
    for path in (sources, *sources.iterdir()):
        os.chown(path, VICTIM, VICTIM)
    arguments = {"csrc": str(sources)}
    assert children.run(AS_VICTIM + with_family, env=environment, **arguments) == "1\n"
    (scratch / "cache").rename(scratch / "prebuilt")
    swap(scratch / "prebuilt", evil, ATTACKER)
    assert children.run(AS_VICTIM + with_family, env=environment, **arguments) == "1\n"


@pytest.mark.parametrize("where", ["a root of the attacker", "a directory below a root"])
def test_why_something_is_compiled_is_not_what_another_user_says(children, scratch, load, cache, where):
    load(flags=("-DVALUE=666",))
    (lie,) = artifacts(cache)
    mine = scratch / "mine" if where == "a directory below a root" else scratch / f"sgljit-{VICTIM}" / "cache"
    shutil.copytree(cache, mine)
    owner = VICTIM if where == "a directory below a root" else ATTACKER
    for path in (*mine.parents, mine, *mine.rglob("*")):
        if path.is_relative_to(scratch) and path != scratch:
            os.chown(path, owner, owner)
            path.chmod(0o755 if path.is_dir() else 0o644)
    lie = mine / lie.relative_to(cache)
    for path in (lie, *lie.iterdir()):
        os.chown(path, ATTACKER, ATTACKER)
    code = "import os\ndel os.environ['HOME']\n" + AS_VICTIM + "import logging\nlogging.basicConfig(level=20)\n" + LOAD
    environment = {**NO_HOME, "TMPDIR": str(scratch)}
    if owner == VICTIM:
        environment["SGLJIT_CACHE_DIR"] = str(mine)
    output = children.run(code, env=environment)
    assert output.endswith("1\n")
    assert "VALUE=666" not in output


def test_prune_removes_nothing_through_a_directory_that_another_user_replaced(load, cache, tmp_path, monkeypatch):
    """Between the look at the cache and the removal."""
    from sgljit_core.cache import store

    load()
    (artifact,) = artifacts(cache)
    module = artifact.parents[1]
    module.parent.chmod(0o777)
    mine = Path(shutil.copytree(module, tmp_path / "mine"))
    stage = store.staging_directory

    def replace(root, name):
        module.rename(module.with_name("away"))
        module.symlink_to(mine)
        return stage(root, name)

    monkeypatch.setattr(store, "staging_directory", replace)
    with pytest.raises(errors.UntrustedCacheError, match="can be written by group or others"):
        sgljit_tools.cache.prune(older_than=0)
    assert list(mine.glob("*/*/module.so"))


@pytest.mark.parametrize("command", ["test", "wheel"])
def test_commands_use_no_tmpdir_in_which_others_can_replace_files(scratch, tmp_path, monkeypatch, command):
    from importlib import import_module

    place = owned(scratch / "tmp", ATTACKER, 0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    private._of_process.cache_clear()
    used = []

    def run(*args, cwd, **options):
        used.append(Path(cwd))
        raise KeyboardInterrupt

    module = import_module(f"sgljit_tools.cli.{command}")
    monkeypatch.setattr(module.subprocess, "run", run)
    zipfile.ZipFile(tmp_path / "a.whl", "w").close()
    calls = {
        "test": lambda: module._run([], as_json=False),
        "wheel": lambda: module.add_artifacts_to_wheel(tmp_path / "a.whl", ["9.0"]),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[command]()
    private._of_process.cache_clear()
    assert not used[0].is_relative_to(place)


def test_a_wheel_is_not_written_through_a_link(load, cache, tmp_path, monkeypatch):
    from sgljit_tools.cli import wheel

    load()
    letter = tmp_path / "letter"
    letter.write_text("dear reader")
    place = owned(tmp_path / "shared", ATTACKER, 0o777)
    (place / "a.whl").symlink_to(letter)

    def packed(step, given, option="", directory="", *rest, cwd):
        if step == "unpack":
            shutil.copytree(cache, Path(directory, "a", "prebuilt"))
        elif step == "pack":
            Path(directory, "a.whl").write_text("packed")

    monkeypatch.setattr(wheel, "_wheel", packed)
    monkeypatch.setattr(wheel, "in_a_process", lambda call, **environment: None)
    zipfile.ZipFile(tmp_path / "a.whl", "w").close()
    wheel.add_artifacts_to_wheel(tmp_path / "a.whl", ["9.0"], into=place)
    assert letter.read_text() == "dear reader"
    assert [(path.name, path.read_text()) for path in place.iterdir()] == [("a.whl", "packed")]


NAMELESS_ROOT = """
import ctypes
PR_SET_DUMPABLE, CLONE_NEWUSER = 4, 0x10000000
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # /proc/self belongs to the user again
if ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0:
    print("not permitted")
    os._exit(0)
Path("/proc/self/uid_map").write_text("4001 4001 1")
from sgljit_core import errors
from sgljit_core.machine import trust
assert os.stat("/").st_uid == 65534 and os.getuid() == 4001
os.close(trust.walk(Path(mine)))
os.close(trust.walk(Path("/usr/lib")))
try:
    trust.walk(Path(theirs))
except errors.UntrustedCacheError as error:
    print(error)
"""


def test_a_user_namespace_without_root(children, tmp_path):
    """Root's directories and the attacker's have the same nameless owner there. Only the latter can be made in /tmp."""
    mine, theirs = (Path(tempfile.mkdtemp()) for _ in range(2))
    try:
        os.chown(mine, VICTIM, VICTIM)
        os.chown(theirs, ATTACKER, ATTACKER)
        output = children.run(AS_VICTIM + NAMELESS_ROOT, mine=str(mine), theirs=str(theirs))
    finally:
        mine.rmdir()
        theirs.rmdir()
    if output == "not permitted\n":
        pytest.skip("a user may not make a user namespace here")
    assert f"{theirs} belongs to user 65534, not to you (user {VICTIM})" in output
