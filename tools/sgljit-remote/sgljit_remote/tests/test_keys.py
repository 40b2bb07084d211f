"""How long keys count, and how they are replaced."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from datetime import date, timedelta

import pytest

from sgljit_remote import bundles, cli, objects, signing, stats, transfer
from sgljit_remote.cli import main
from sgljit_remote.config import Settings
from sgljit_remote.errors import KeyFileError
from sgljit_remote.objects import object_name
from sgljit_remote.remote import Remote, put_in_place, session as session_of
from sgljit_remote.transfer import Choice

from .conftest import files
from .served import artifact

ONE, OTHER = artifact(1), artifact(2)
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NAME = object_name(LOCATION, TOOLCHAIN)
TODAY = datetime.datetime.now(datetime.timezone.utc).date()


@pytest.fixture
def clock(monkeypatch):
    """Sets how many days the clock is ahead."""

    def clock(days):
        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.datetime.now(tz) + timedelta(days=days)

        monkeypatch.setattr(signing, "datetime", Clock)

    return clock


@pytest.fixture
def pair(tmp_path):
    """Two keys that are trusted: the first until tomorrow, the second without end."""
    trusted = tmp_path / "trusted"
    trusted.mkdir(mode=0o755)
    signing.new_key(tmp_path / "old", TODAY + timedelta(days=1)).rename(trusted / "old.pub")
    signing.new_key(tmp_path / "new").rename(trusted / "new.pub")
    return trusted, signing.private_key(tmp_path / "old"), signing.private_key(tmp_path / "new")


def test_a_key_is_valid_to_the_end_of_its_last_day(pair, server, session, cache, clock):
    trusted, old, _ = pair
    server.objects[f"/{NAME}"] = objects.pack([ONE], old)
    for days in (0, 1):
        clock(days)
        one = session(unsigned=False, trusted_keys=(trusted,))
        assert one.fetch(LOCATION, TOOLCHAIN, cache / str(days)) == cache / str(days)


def test_an_expired_key_is_refused_by_its_name_and_the_other_serves(pair, server, session, cache, clock, said):
    trusted, old, new = pair
    server.objects[f"/{NAME}"] = objects.pack([ONE], old)
    server.objects[f"/{object_name(OTHER.manifest.location.path, TOOLCHAIN)}"] = objects.pack([OTHER], new)
    clock(2)
    one = session(unsigned=False, trusted_keys=(trusted,))
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert one.fetch(OTHER.manifest.location.path, TOOLCHAIN, cache) == cache
    assert files(cache) == [OTHER.place]
    (warning,) = said()
    until, today = TODAY + timedelta(days=1), TODAY + timedelta(days=2)
    assert (
        f"the key {trusted}/old.pub was valid until {until}, and it is {today}: what it has signed must be" in warning
    )


def test_a_process_that_outlives_a_key_trusts_it_no_longer(pair, server, session, cache, clock, said):
    trusted, old, _ = pair
    server.objects[f"/{NAME}"] = objects.pack([ONE], old)
    one = session(unsigned=False, trusted_keys=(trusted,))
    clock(2)
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert "old.pub was valid until" in said()[0]


def test_where_every_key_has_expired_the_remote_is_refused(pair, server, clock, said):
    trusted, _, _ = pair
    (trusted / "new.pub").unlink()
    clock(3650)  # also a clock that is ten years ahead
    settings = Settings(server.url, trusted_keys=(trusted,))
    with pytest.raises(
        KeyFileError, match=r"no key that is valid: the key .*old\.pub was valid until .*or set the clock"
    ):
        Remote(settings)
    assert session_of(settings) is None
    assert len(said()) == 1
    assert server.requests == []


def test_a_clock_that_is_ten_years_behind_refuses_nothing(pair, server, session, cache, clock):
    trusted, old, _ = pair
    server.objects[f"/{NAME}"] = objects.pack([ONE], old)
    clock(-3650)
    assert session(unsigned=False, trusted_keys=(trusted,)).fetch(LOCATION, TOOLCHAIN, cache) == cache


def test_an_expired_key_signs_nothing(pair, tmp_path, clock):
    clock(2)
    with pytest.raises(KeyFileError, match=r"the key .*old was valid until .*: it signs nothing any more"):
        signing.private_key(tmp_path / "old")


@pytest.fixture
def signs(pair, server, tmp_path):
    """The settings of a machine that publishes with the first key, and trusts both."""
    settings = {"is_writable": True, "unsigned": False, "trusted_keys": (pair[0],)}
    return {**settings, "signing_key": tmp_path / "old"}


def test_an_expired_signing_key_does_not_end_reading(pair, server, session, signs, cache, clock, said):
    server.objects[f"/{NAME}"] = objects.pack([ONE], pair[2])
    clock(2)
    one = session(**signs)
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert one.fetch(OTHER.manifest.location.path, TOOLCHAIN, cache) is None
    one.publish(OTHER)
    (warning,) = said()
    assert "nothing is published: the key " in warning
    assert "it signs nothing any more" in warning
    assert [name for name in server.requests if name.startswith("PUT")] == []  # no lease either


def test_a_key_that_expires_while_a_process_runs_signs_nothing_more(server, session, signs, clock, said):
    one = session(**signs)
    one.publish(ONE)
    assert f"/{NAME}" in server.objects
    clock(2)
    one.publish(OTHER)
    assert f"/{object_name(OTHER.manifest.location.path, TOOLCHAIN)}" not in server.objects
    assert "it signs nothing any more" in said()[0]


def test_a_push_with_an_expired_key_is_an_error_and_with_the_next_one_replaces(
    remote, session, signs, server, cache, clock, tmp_path
):
    def push(key, **more):
        return transfer.push(
            remote(**{**signs, "signing_key": tmp_path / key}), cache, Choice(), dry_run=False, progress=print, **more
        )

    put_in_place(ONE, cache)
    assert push("old") == 1
    clock(2)
    with pytest.raises(KeyFileError, match="it signs nothing any more"):
        push("old")
    push("new")  # the archive is new, and the object is not
    server.objects.pop("/sgljit-1/index.json")
    assert session(**signs).fetch(LOCATION, TOOLCHAIN, tmp_path / "second") is None
    push("new", replace=True)
    server.objects.pop("/sgljit-1/index.json")
    assert session(**signs).fetch(LOCATION, TOOLCHAIN, tmp_path / "second") == tmp_path / "second"


def test_a_revoked_key_is_a_strangers(pair, server, session, cache, said):
    trusted, old, _ = pair
    server.objects[f"/{NAME}"] = objects.pack([ONE], old)
    (trusted / "old.pub").unlink()
    assert session(unsigned=False, trusted_keys=(trusted,)).fetch(LOCATION, TOOLCHAIN, cache) is None
    assert "it is signed by none of the keys of SGLJIT_TRUSTED_KEYS" in said()[0]


@pytest.mark.parametrize(
    "line", ["valid_until: 2027-01-31", "valid-until: tomorrow", "valid-until: 2027-13-01", "a note"]
)
def test_a_line_that_could_be_a_misspelt_limit_is_refused(tmp_path, line):
    public = signing.new_key(tmp_path / "key")
    public.write_text(f"{line}\n{public.read_text()}")
    with pytest.raises(KeyFileError, match=r"begins with .*expected a line such as 'valid-until: 2027-01-31'"):
        signing.public_keys([public])


def test_two_limits_are_refused(tmp_path):
    public = signing.new_key(tmp_path / "key", date(2100, 1, 1))
    public.write_text(f"valid-until: 2200-01-01\n{public.read_text()}")
    with pytest.raises(KeyFileError, match="begins with 'valid-until: 2100-01-01'"):
        signing.public_keys([public])


def test_a_server_is_asked_before_the_library_that_verifies_is_imported(tmp_path, server, monkeypatch):
    """It takes longer to import than a small artifact takes to bring."""
    public = signing.new_key(tmp_path / "key")
    code = "import sys\nfrom sgljit_remote import remote\nfrom sgljit_remote.config import settings\n"
    code += "one = remote.Remote(settings())\nprint('cryptography' in sys.modules, one.archives())\n"
    code += "print('cryptography' in sys.modules)"
    variables = {**os.environ, "SGLJIT_REMOTE": server.url, "SGLJIT_TRUSTED_KEYS": str(public)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False {}\nTrue\n", "")


def test_a_public_key_in_another_layout_is_the_same_key(tmp_path):
    public = signing.new_key(tmp_path / "key")
    (plain,) = signing.public_keys([public])
    lines = public.read_text().splitlines()
    public.write_text("\n".join([lines[0], lines[1][:20], lines[1][20:], lines[2], ""]))
    (other,) = signing.public_keys([public])
    assert plain.key == other.key


def test_a_limit_behind_a_key_is_refused_as_nobody_would_read_it(tmp_path):
    public = signing.new_key(tmp_path / "key")
    for file in (public, tmp_path / "key"):
        file.write_text(f"{file.read_text()}valid-until: 2020-01-01\n")
    with pytest.raises(KeyFileError, match=r"key.pub has text behind the key, which nobody reads: b'valid-until: 2020"):
        signing.public_keys([public])
    with pytest.raises(KeyFileError, match="has text behind the key"):
        signing.private_key(tmp_path / "key")


def test_of_two_files_with_one_key_that_counts_which_is_valid(tmp_path):
    public = signing.new_key(tmp_path / "key")
    expired = tmp_path / "a.pub"
    expired.write_text(f"valid-until: 2020-01-01\n{public.read_text()}")
    trusted = signing.public_keys([expired, public])
    signature = signing.sign(b"text", signing.private_key(tmp_path / "key"))
    assert signing.signer(b"text", signature, trusted).path == public


@pytest.mark.usefixtures("waived")
def test_a_directory_of_keys_that_others_can_write_is_refused(tmp_path):
    public = signing.new_key(tmp_path / "key")
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    (trusted / "x.pub").symlink_to(public)
    assert len(signing.public_keys([trusted])) == 1
    trusted.chmod(0o777)
    with pytest.raises(KeyFileError, match="are not used") as caught:
        signing.public_keys([trusted])
    assert "SGLJIT_TRUST_SHARED_CACHE=1 accepts caches alone" in str(caught.value)
    assert f"chmod go-w {trusted}" in str(caught.value)


@pytest.mark.usefixtures("waived")
def test_a_key_that_others_can_write_is_refused(tmp_path):
    public = signing.new_key(tmp_path / "key")
    public.chmod(0o666)
    with pytest.raises(KeyFileError, match=r"is not used: .*can be written by group or others \(mode 0666\)"):
        signing.public_keys([public])


def test_the_command_makes_a_key_with_a_limit(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["key", "new", str(tmp_path / "key"), "--days", "30"])
    assert ended.value.code == 0
    for name in ("key", "key.pub"):
        assert (tmp_path / name).read_text().startswith(f"valid-until: {TODAY + timedelta(days=30)}\n-----BEGIN ")
    (key,) = signing.public_keys([tmp_path / "key.pub"])
    assert key.until == TODAY + timedelta(days=30)
    with pytest.raises(SystemExit) as ended:
        main(["key", "new", str(tmp_path / "other"), "--days", "0"])
    assert ended.value.code == 1
    assert "--days takes a number from 1 to 36500; got 0" in capsys.readouterr().err


# Files of artifacts, signed.


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command; its exit status and what it printed."""

    def command(*arguments, **settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"SGLJIT_{name}", str(value))
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return command


@pytest.fixture
def exported(cache, key, tmp_path, command):
    """A signed file of two artifacts."""
    from sgljit_remote.remote import put_in_place

    for one in (ONE, OTHER):
        put_in_place(one, cache)
    file = tmp_path / "artifacts.zip"
    assert command("export", file, "--sign", key) == (0, f"2 artifacts are in {file}, signed with {key}\n")
    return file


def test_a_signed_file_is_imported(exported, key, tmp_path, command):
    root = tmp_path / "second"
    code, printed = command("import", exported, "--directory", root, TRUSTED_KEYS=key.parent / "trusted")
    assert (code, printed) == (0, f"2 artifacts are new in {root}, 0 were there, 0 were refused\n")
    assert files(root) == sorted([ONE.place, OTHER.place])
    code, printed = command("import", exported, "--directory", root)
    assert "0 artifacts are new" in printed


def test_a_file_without_keys_is_refused(exported, tmp_path, command):
    before = stats().refusals
    code, printed = command("import", exported, "--directory", tmp_path / "second")
    assert code == 1
    assert f"{exported} is not used: whoever made it could run code as you" in printed
    assert stats().refusals == before + 1
    assert not (tmp_path / "second").exists()


def test_a_file_of_a_stranger_is_refused_artifact_by_artifact(exported, tmp_path, command, said, key):
    signing.new_key(tmp_path / "stranger")
    exported.write_bytes(objects.pack([ONE, OTHER], signing.private_key(tmp_path / "stranger")))
    code, printed = command("import", exported, "--directory", tmp_path / "second", TRUSTED_KEYS=key.parent / "trusted")
    assert code == 1
    assert "2 were refused" in printed
    assert files(tmp_path / "second") == []
    assert all("it is signed by none of the keys" in warning and str(exported) in warning for warning in said())


def test_a_file_that_is_none_is_an_error(tmp_path, command):
    (tmp_path / "file").write_text("nothing")
    before = stats().refusals
    code, printed = command("import", tmp_path / "file", REMOTE_UNSIGNED="1")
    assert code == 1
    assert stats().refusals == before + 1
    assert "it is no archive of artifacts, or is damaged" in printed


def test_a_file_that_is_missing_is_named_and_no_question_of_trust(tmp_path, exported, command):
    code, printed = command("import", tmp_path / "missing")
    assert (code, printed) == (1, f"error: [Errno 2] No such file or directory: '{tmp_path}/missing'\n")
    with pytest.raises(FileNotFoundError, match="missing"):
        bundles.unbundle(tmp_path / "missing")
    code, printed = command("export", tmp_path / "nowhere/file")
    assert (code, printed) == (1, f"error: [Errno 2] No such file or directory: '{tmp_path}/nowhere/file'\n")


def test_a_reader_that_has_gone_and_an_interrupt_give_no_traceback(tmp_path, key, monkeypatch):
    """As `| head` and Ctrl-C."""
    place = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    line = [sys.executable, "-m", "sgljit_remote", "key", "new", str(tmp_path / "new")]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, env={**os.environ, **place}, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")

    def interrupted(given):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_new_key", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main(["key", "new", str(tmp_path / "newer")])


def test_nothing_to_export_is_an_error(tmp_path, command):
    code, printed = command("export", tmp_path / "file", "norm")
    assert code == 1
    assert "cache has no such artifact of norm; it has the families none and the targets none" in printed
    assert "nothing to export: " in command("export", tmp_path / "file")[1]
    assert not (tmp_path / "file").exists()


def test_a_pipe_among_the_keys_is_named_and_nobody_waits_for_it(pair):
    trusted, *_ = pair
    os.mkfifo(trusted / "pipe.pub", 0o600)
    with pytest.raises(KeyFileError, match=r"pipe\.pub cannot be read \(no plain file\)"):
        signing.public_keys((trusted,))


def test_the_first_questions_leave_time_for_the_library_and_then_for_the_keys(remote, signed, server, monkeypatch):
    steps, loaded = [], signing.load_keys
    monkeypatch.setattr(signing, "import_library", lambda: steps.append("library"))
    monkeypatch.setattr(signing, "load_keys", lambda keys: (steps.append("keys"), loaded(keys)))
    signing._verifier.cache_clear()
    asked = remote(**signed)
    for expected in (["library"], ["library", "keys"], ["library", "keys"]):
        assert asked.get("nothing") is None
        assert steps == expected
    assert signing._verifier.cache_info().currsize == len(asked.trusted) == 1
    assert len(server.requests) == 3


def test_a_key_that_the_library_refuses_is_said_by_the_check(key, monkeypatch):
    def refuses(_: bytes) -> None:
        raise ValueError("no such key")

    monkeypatch.setattr(signing, "_verifier", refuses)
    trusted = signing.public_keys([key.parent / "trusted"])
    signing.load_keys(trusted)
    with pytest.raises(ValueError, match="no such key"):
        signing.check(b"text", b"signature", trusted)
