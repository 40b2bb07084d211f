"""Bundles: what is in them, where they are laid out, and what an attacker can make of one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import platform
import random
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from sgljit_core.errors import ConfigError, SgljitError, UntrustedCacheError
from sgljit_remote import Directory, bundles, commands, objects, parts, signing, transfer
from sgljit_remote.errors import BundleMismatchError, RefusedObjectError, RemoteUnavailableError, UntrustedRemoteError
from sgljit_remote.remote import put_in_place

from . import served
from .conftest import files
from .served import artifact, within

ONE = artifact(1)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """The directory ``other`` of a library, and this machine as ``machine`` describes it."""
    machine = {"directory": Directory("other", tmp_path / "first" / "other", {"chip": "a"}), "torch": b"by torch"}
    monkeypatch.setattr(parts, "directories", lambda: {machine["directory"].name: machine["directory"]})
    monkeypatch.setattr(parts, "torch_key", lambda: {"torch": "2.0"})
    monkeypatch.setattr(bundles, "_saved_by_torch", lambda: b"")
    directory = machine["directory"].path
    (directory / "ab").mkdir(parents=True)
    (directory / "ab" / "kernel.cubin").write_bytes(b"cubin" * 100)
    (directory / "ab" / "__grp__kernel.json").write_text(json.dumps({"child": f"{directory}/ab/kernel.cubin"}))
    return machine


@pytest.fixture
def made(here, cache, key, tmp_path):
    """A signed bundle of a cache with one artifact and of that directory."""
    put_in_place(ONE, cache)
    file = tmp_path / "one.bundle"
    bundles.write(file, cache, signing.private_key(key))
    return file


@pytest.fixture
def second(here, tmp_path):
    """Another machine of the same kind: its cache. Its library looks in another directory."""
    here["directory"] = Directory("other", tmp_path / "second" / "other", {"chip": "a"}, names_itself="__grp__*.json")
    return tmp_path / "second" / "cache"


@pytest.fixture
def trusted(key):
    return signing.public_keys([key.parent / "trusted"])


def laid(here):
    place = here["directory"].path
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())


def test_a_bundle_is_laid_out_on_a_machine_of_the_same_kind(made, second, here, trusted):
    assert bundles.lay_out(made, second, trusted) == {"other": (2, 0), "sgljit": (1, 0)}
    assert files(second) == [ONE.place]
    assert laid(here) == ["ab/__grp__kernel.json", "ab/kernel.cubin"]
    assert (here["directory"].path / "ab" / "kernel.cubin").read_bytes() == b"cubin" * 100
    assert bundles.lay_out(made, second, trusted) == {"other": (0, 2), "sgljit": (0, 1)}


def test_files_that_hold_the_directorys_path_get_the_new_one(made, second, here, cache, key, trusted, tmp_path):
    new = here["directory"]
    first = here["directory"] = Directory("other", tmp_path / "first" / "other", {"chip": "a"}, names_itself="__grp__*")
    bundles.write(made, cache, signing.private_key(key))
    here["directory"] = new
    bundles.lay_out(made, second, trusted)
    text = (new.path / "ab" / "__grp__kernel.json").read_text()
    assert json.loads(text) == {"child": f"{new.path}/ab/kernel.cubin"}
    assert str(first.path) not in text


def test_a_file_that_is_there_stays(made, second, here, trusted):
    place = here["directory"].path / "ab"
    place.mkdir(parents=True, mode=0o700)
    (place / "kernel.cubin").write_bytes(b"newer")
    assert bundles.lay_out(made, second, trusted)["other"] == (1, 1)
    assert (place / "kernel.cubin").read_bytes() == b"newer"


def test_a_file_system_without_links_takes_a_bundle_too(made, second, here, trusted, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert bundles.lay_out(made, second, trusted)["other"] == (2, 0)
    assert laid(here) == ["ab/__grp__kernel.json", "ab/kernel.cubin"]
    (here["directory"].path / "ab" / "kernel.cubin").write_bytes(b"newer")
    assert bundles.lay_out(made, second, trusted)["other"] == (0, 2)
    assert (here["directory"].path / "ab" / "kernel.cubin").read_bytes() == b"newer"


def test_a_bundle_for_another_machine_is_refused_with_the_differences(made, second, here, trusted):
    here["directory"] = Directory("other", here["directory"].path, {"chip": "b", "driver": "1"})
    with pytest.raises(BundleMismatchError) as raised:
        bundles.lay_out(made, second, trusted)
    assert raised.value.differences == ("other: chip is 'a', and here 'b'", "other: driver is 'none', and here '1'")
    assert "is for another machine:\n  - other: chip is 'a', and here 'b'" in str(raised.value)
    assert files(second) == laid(here) == []
    assert bundles.lay_out(made, second, trusted, ["sgljit"]) == {"sgljit": (1, 0)}


def test_a_part_that_must_not_move_is_refused_elsewhere(here, cache, key, trusted, tmp_path, monkeypatch):
    here["directory"] = Directory("other", here["directory"].path, may_move=False)
    file = tmp_path / "one.bundle"
    bundles.write(file, cache, signing.private_key(key))
    assert bundles.lay_out(file, cache, trusted) == {"other": (0, 2)}
    monkeypatch.setattr("platform.node", lambda: "another")
    with pytest.raises(BundleMismatchError, match=r"other: machine is '.*', and here 'another'"):
        bundles.lay_out(file, cache, trusted)


def test_a_part_that_nothing_here_takes_is_refused(made, second, here, trusted, monkeypatch):
    monkeypatch.setattr(parts, "directories", dict)
    with pytest.raises(BundleMismatchError, match="other: nothing that is installed here takes it"):
        bundles.lay_out(made, second, trusted)
    with pytest.raises(RefusedObjectError, match="it has no part else, but other, sgljit"):
        bundles.lay_out(made, second, trusted, ["else"])


def test_torchs_part_needs_the_same_torch(here, cache, key, trusted, tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "_saved_by_torch", lambda: b"by torch")
    file = tmp_path / "one.bundle"
    assert bundles.write(file, cache, signing.private_key(key))["torch"].key == {"torch": "2.0"}
    monkeypatch.setattr(parts, "torch_key", lambda: {"torch": "2.1"})
    with pytest.raises(BundleMismatchError, match=r"torch: torch is '2.0', and here '2.1'"):
        bundles.lay_out(file, cache, trusted)


def test_links_and_what_they_lead_to_are_not_bundled(here, cache, tmp_path):
    place = here["directory"].path
    (tmp_path / "secret").write_text("secret")
    (place / "link").symlink_to(tmp_path / "secret")
    (place / "directory").symlink_to(tmp_path)
    (place / "a\nname").touch()
    written = bundles.write(tmp_path / "one.bundle", cache, None)
    assert sorted(written["other"].files) == ["ab/__grp__kernel.json", "ab/kernel.cubin"]


def rewritten(file: Path, change, key=None) -> Path:
    """The bundle after a change of its members by name, signed anew with a key if there is one."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    if key is not None:
        members["signature"] = signing.sign(members["bundle.json"], signing.private_key(key), "bundle")
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def listed(members, **part):
    document = json.loads(members["bundle.json"])
    document["parts"]["other"] |= part
    members["bundle.json"] = json.dumps(document).encode()


ALTERED = {
    "a file that differs": (
        lambda members: members.update({"other/ab/kernel.cubin": b"CUBIN" * 100}),
        "its file other/ab/kernel.cubin is not the one that it lists",
    ),
    "a longer file": (
        lambda members: members.update({"other/ab/kernel.cubin": b"cubin" * 101}),
        "its file other/ab/kernel.cubin is not the one that it lists",
    ),
    "a file that is not listed": (
        lambda members: members.update({"other/ab/new": b""}),
        "it has files that it does not list, such as 'other/ab/new'",
    ),
    "a file less": (
        lambda members: members.pop("other/ab/kernel.cubin"),
        "it lacks files that it lists, such as 'other/ab/kernel.cubin'",
    ),
    "another list": (lambda members: listed(members, key={"chip": "b"}), "it is signed by none of the keys"),
    "no list": (lambda members: members.pop("bundle.json"), "it has no bundle.json"),
    "no signature": (lambda members: members.pop("signature"), "it is not signed"),
    "a signature of nothing": (lambda members: members.update(signature=b""), "it is signed by none of the keys"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_bundle_is_refused_and_nothing_is_laid_out(made, second, here, trusted, name):
    change, reason = ALTERED[name]
    with pytest.raises(RefusedObjectError, match=reason):
        bundles.lay_out(rewritten(made, change), second, trusted)
    assert files(second) == laid(here) == []


def test_a_strangers_bundle_is_refused(made, second, here, trusted, tmp_path):
    signing.new_key(tmp_path / "stranger")
    rewritten(made, lambda members: None, tmp_path / "stranger")
    with pytest.raises(RefusedObjectError, match="it is signed by none of the keys of SGLJIT_TRUSTED_KEYS"):
        bundles.lay_out(made, second, trusted)
    assert laid(here) == []


def test_a_signature_of_a_manifest_is_none_of_a_bundle(made, second, trusted, key):
    def replay(members):
        members["signature"] = signing.sign(members["bundle.json"], signing.private_key(key))

    with pytest.raises(RefusedObjectError, match="it is signed by none of the keys"):
        bundles.lay_out(rewritten(made, replay), second, trusted)


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "a//b", "./a", "a\\b", "a/", "", "a\nb"])
def test_a_path_out_of_the_directory_is_refused_with_a_true_signature_too(made, second, here, trusted, key, path):
    def change(members):
        listed(members, files={path: [0, "0" * 64]})

    with pytest.raises(RefusedObjectError, match=r"bundle\.json is none"):
        bundles.lay_out(rewritten(made, change, key), second, trusted)
    assert not list(second.parent.rglob("evil"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100000,
        '{"format": 2, "parts": {}}',
        '{"format": 1, "parts": {"../x": {"key": {}, "files": {}}}}',
        '{"format": 1, "parts": {"torch": {"key": {}, "files": {}}}}',
        '{"format": 1, "parts": {"other": {"key": {}, "files": {"a": [-1, ""]}}}}',
    ],
)
def test_a_list_that_is_none_is_refused(made, second, trusted, key, text):
    def change(members):
        members.clear()
        members["bundle.json"] = text.encode()

    with pytest.raises(RefusedObjectError, match=r"bundle\.json is none"):
        bundles.lay_out(rewritten(made, change, key), second, trusted)


def test_a_file_of_a_terabyte_is_refused(made, second, trusted, key):
    def change(members):
        listed(members, files={"ab/kernel.cubin": [1 << 40, "0" * 64]})
        members.pop("other/ab/__grp__kernel.json")

    with pytest.raises(RefusedObjectError, match="it has more than"):
        bundles.lay_out(rewritten(made, change, key), second, trusted)


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
def test_a_damaged_file_is_no_bundle(made, second, trusted, cut):
    content = made.read_bytes()
    made.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    with pytest.raises(RefusedObjectError, match="is no bundle, or damaged"):
        bundles.lay_out(made, second, trusted)


def test_a_file_that_needs_a_newer_zip_is_refused(made, second, trusted):
    content = made.read_bytes()
    made.write_bytes(content.replace(b"PK\1\2\x14\3\x14\0", b"PK\1\2\x14\3\x63\0"))
    with pytest.raises(RefusedObjectError, match=r"is no bundle, or damaged: zip file version 9\.9"):
        bundles.lay_out(made, second, trusted)


def test_a_file_that_is_not_there_is_an_error_of_its_own(second, trusted, tmp_path):
    with pytest.raises(FileNotFoundError):
        bundles.lay_out(tmp_path / "none", second, trusted)


def test_a_bundle_with_a_damaged_artifact_is_refused_and_nothing_is_laid_out(made, second, here, trusted, key):
    content = objects.pack([ONE, artifact(2)._replace(payload=b"damaged")], None)

    def change(members):
        members["sgljit/artifacts.zip"] = content
        document = json.loads(members["bundle.json"])
        entry = [len(content), hashlib.sha256(content).hexdigest()]
        document["parts"]["sgljit"]["files"]["artifacts.zip"] = entry
        members["bundle.json"] = json.dumps(document).encode()

    with pytest.raises(RefusedObjectError, match=r"module\.so is not the one that its manifest says"):
        bundles.lay_out(rewritten(made, change, key), second, trusted)
    assert files(second) == laid(here) == []


def test_what_is_too_large_to_be_laid_out_is_not_written(made, here, cache, monkeypatch):
    before = made.read_bytes()
    monkeypatch.setattr(bundles, "LARGEST", 100)
    with pytest.raises(RefusedObjectError, match=r"more than the 100 that are laid out\. Remove old files from"):
        bundles.write(made, cache, None)
    assert made.read_bytes() == before


def test_launchers_of_triton_are_for_the_c_library_of_their_machine(made, second, here, trusted, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(parts, "_gpus", lambda: "none")
    (tmp_path / "triton" / "KEY").mkdir(parents=True)
    (tmp_path / "triton" / "KEY" / "cuda_utils.so").write_bytes(b"needs GLIBC_2.38")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.41"))
    here["directory"] = parts._triton()
    bundles.write(made, second, signing.private_key(tmp_path / "own"))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    here["directory"] = parts._triton()
    with pytest.raises(BundleMismatchError, match=r"triton: libc is 'glibc 2\.41', and here 'glibc 2\.36'"):
        bundles.lay_out(made, second, trusted)


def test_files_that_triton_still_writes_are_not_bundled(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (tmp_path / "KEY" / "tmp.pid_1_a").mkdir(parents=True)
    (tmp_path / "KEY" / "tmp.pid_1_a" / "k.cubin").write_bytes(b"half")
    (tmp_path / "KEY" / "k.json").write_text("{}")
    assert bundles._files(parts._triton()) == [tmp_path / "KEY" / "k.json"]


def test_damage_inside_is_refused(made, second, here, trusted):
    content = bytearray(made.read_bytes())
    with zipfile.ZipFile(made) as archive:
        start = archive.getinfo("other/ab/kernel.cubin").header_offset
    content[start + 52] ^= 0xFF
    made.write_bytes(content)
    with pytest.raises(RefusedObjectError, match="is refused and not used"):
        bundles.lay_out(made, second, trusted)
    assert laid(here) == []


@pytest.mark.usefixtures("waived")
def test_a_directory_that_others_can_write_is_not_written(made, second, here, trusted):
    place = here["directory"].path
    place.mkdir(parents=True)
    place.chmod(0o777)
    with pytest.raises(UntrustedCacheError, match="can be written by group or others"):
        bundles.lay_out(made, second, trusted)
    assert laid(here) == []


def test_a_link_in_the_directory_is_not_followed(made, second, here, trusted, tmp_path):
    place = here["directory"].path
    place.mkdir(parents=True, mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (place / "ab").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        bundles.lay_out(made, second, trusted)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_keys_nothing_is_laid_out(made, second, here, monkeypatch):
    with pytest.raises(UntrustedRemoteError, match="whoever made it could run code as you"):
        bundles.unbundle(made)
    monkeypatch.setenv("SGLJIT_REMOTE_UNSIGNED", "1")
    assert bundles.unbundle(made)["other"] == (2, 0)


PLUGIN = """\
from pathlib import Path
from sgljit_remote import Directory

def kept():
    return [{given}]
"""


@pytest.fixture
def pushed(here, cache, key, server, tmp_path, monkeypatch, capsys):
    """The command has bundled this machine and published it as llama; its file."""
    put_in_place(ONE, cache)
    monkeypatch.setenv("SGLJIT_REMOTE", server.url)
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(key.parent / "trusted"))
    commands.bundle(tmp_path / "one.bundle", sign=key, push="llama")
    assert capsys.readouterr().out.endswith(f"\n{server.url} has it as llama\n")
    return tmp_path / "one.bundle"


def test_a_bundle_is_pushed_and_pulled_by_name(pushed, second, here, server, tmp_path, monkeypatch, capsys):
    assert server.objects == {"/sgljit-1/bundles/llama.bundle": pushed.read_bytes()}
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(second))
    commands.unbundle(tmp_path / "got.bundle", pull="llama")
    assert (tmp_path / "got.bundle").read_bytes() == pushed.read_bytes()
    assert capsys.readouterr().out == "other: 2 are new, 0 were there\nsgljit: 1 are new, 0 were there\n"
    assert files(second) == [ONE.place]
    assert laid(here) == ["ab/__grp__kernel.json", "ab/kernel.cubin"]


def too_long(handler):
    content = served.content_of(handler)
    handler.send(2 * content, 3 * len(content))
    return True


@pytest.mark.parametrize("fault", [served.reset, too_long])
def test_a_pull_that_breaks_off_begins_anew_and_leaves_no_rest(pushed, server, tmp_path, remote, signed, fault):
    transfers = []

    def once(handler):
        transfers.append(handler.path)
        return len(transfers) == 1 and fault(handler)

    server.fault = once
    transfer.pull_bundle(remote(**signed), tmp_path / "got.bundle", "llama")
    assert len(transfers) == 2
    assert (tmp_path / "got.bundle").read_bytes() == pushed.read_bytes()
    server.fault = served.enormous
    with pytest.raises(RefusedObjectError, match=r"llama\.bundle has more than \d+ bytes"):
        transfer.pull_bundle(remote(**signed), tmp_path / "got.bundle", "llama")
    assert (tmp_path / "got.bundle").read_bytes() == pushed.read_bytes()
    assert not [*tmp_path.glob(".got.bundle.*")]


@pytest.fixture
def cut(server):
    """A server with ranges, a large bundle, of which the first request brings a half; its content, and the requests."""
    content, asked = random.Random(1).randbytes(1 << 20), []
    server.objects["/sgljit-1/bundles/large.bundle"] = content
    server.has_ranges = True

    def once(handler):
        asked.append(handler.headers["Range"])
        return len(asked) == 1 and served.truncated(handler)

    server.fault = once
    return content, asked


def test_a_pull_that_breaks_off_goes_on_where_the_server_has_ranges(cut, server, tmp_path, remote, signed):
    content, asked = cut
    transfer.pull_bundle(remote(**signed), tmp_path / "got.bundle", "large")
    assert (tmp_path / "got.bundle").read_bytes() == content
    assert asked == [None, f"bytes={len(content) // 2}-"]


def test_a_pull_goes_on_with_the_same_object_alone(cut, server, tmp_path, remote, signed):
    content, asked = cut
    once, other = server.fault, content[::-1]

    def replacing(handler):
        if is_over := once(handler):
            server.objects[handler.path] = other
        return is_over

    server.fault = replacing
    transfer.pull_bundle(remote(**signed), tmp_path / "got.bundle", "large")
    assert (tmp_path / "got.bundle").read_bytes() == other
    assert len(asked) == 2


def part(start, end):
    """Answers with these bytes alone."""

    def fault(handler):
        content = served.content_of(handler)
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        handler.send_header("Content-Length", str(end + 1 - start))
        handler.end_headers()
        handler.wfile.write(content[start : end + 1])
        return True

    return fault


def hung_up(handler):
    handler.close_connection = True
    return True


@pytest.mark.parametrize("answer", [served.status(503), hung_up], ids=["busy", "hung up"])
def test_what_came_is_kept_while_a_server_starts_again(cut, server, tmp_path, remote, signed, answer):
    """A restart is when transfers break off, and the next request may come before its end."""
    content, asked = cut
    once, rest = server.fault, f"bytes={len(content) // 2}-"
    server.fault = lambda handler: once(handler) or (len(asked) == 2 and answer(handler))
    transfer.pull_bundle(remote(**signed), tmp_path / "got.bundle", "large")
    assert (tmp_path / "got.bundle").read_bytes() == content
    assert asked == [None, rest, rest]


@pytest.mark.parametrize(
    "answer",
    [served.status(416), part(0, 9), part(1 << 19, (1 << 19) + 9)],
    ids=["status 416", "another part", "an end that comes early"],
)
def test_a_server_that_does_not_go_on_is_asked_for_all(cut, server, tmp_path, remote, signed, answer):
    content, asked = cut
    once = server.fault
    server.fault = lambda handler: once(handler) or (len(asked) == 2 and answer(handler))
    transfer.pull_bundle(remote(**signed), tmp_path / "got.bundle", "large")
    assert (tmp_path / "got.bundle").read_bytes() == content
    assert asked == [None, f"bytes={len(content) // 2}-", None]


def unsized(handler):
    """Answers with the rest that is asked for, and 100,000 bytes of it more, without a Content-Length."""
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {1 << 19}-{(1 << 20) - 1}/{1 << 20}")
    handler.end_headers()
    with contextlib.suppress(OSError):  # nobody reads the end
        handler.wfile.write(bytes((1 << 19) + 100_000))
    handler.close_connection = True
    return True


def test_what_goes_on_is_not_more_than_may_be(cut, server, remote, signed):
    _, asked = cut
    with pytest.raises(RefusedObjectError, match=r"large\.bundle has more than 600000 bytes"):
        remote(**signed).get("sgljit-1/bundles/large.bundle", most=600_000)
    assert len(asked) == 1  # by its Content-Length


def test_the_limit_of_an_object_is_said_also_where_a_part_of_it_is_there(cut, server, remote, signed):
    _, asked = cut
    once = server.fault
    server.fault = lambda handler: once(handler) or unsized(handler)
    with pytest.raises(RefusedObjectError, match=r"large\.bundle has more than 1048576 bytes"):
        remote(**signed).get("sgljit-1/bundles/large.bundle", most=1 << 20)
    assert len(asked) == 2


class Full(io.BytesIO):
    name = "got.bundle"

    def write(self, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("is_local", [False, True])
def test_a_full_disk_is_no_failure_of_the_remote(server, tmp_path, remote, is_local):
    server.objects["/sgljit-1/bundles/large.bundle"] = bytes(1 << 20)
    (tmp_path / "sgljit-1" / "bundles").mkdir(parents=True)
    (tmp_path / "sgljit-1/bundles/large.bundle").write_bytes(bytes(1 << 20))
    one = remote(str(tmp_path) if is_local else server.url)
    with within(5), pytest.raises(RefusedObjectError, match=r"cannot be written to got\.bundle \(No space left on"):
        one.save("sgljit-1/bundles/large.bundle", Full())
    assert len(server.requests) == (not is_local)


def test_a_pull_takes_no_memory_for_the_bundle(server, tmp_path, remote):
    size = 64 << 20
    server.objects["/sgljit-1/bundles/large.bundle"] = bytes(size)
    (tmp_path / "store" / "sgljit-1" / "bundles").mkdir(parents=True)
    with (tmp_path / "store/sgljit-1/bundles/large.bundle").open("wb") as file:
        file.truncate(size)
    for url in (server.url, str(tmp_path / "store")):
        tracemalloc.start()
        transfer.pull_bundle(remote(url), tmp_path / "got.bundle", "large")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (tmp_path / "got.bundle").stat().st_size == size
        assert peak < size / 4, url


def test_a_push_replaces_the_bundle_of_the_name(pushed, server, key, cache, tmp_path):
    put_in_place(artifact(2), cache)
    commands.bundle(tmp_path / "two.bundle", sign=key, push="llama")
    assert server.objects == {"/sgljit-1/bundles/llama.bundle": (tmp_path / "two.bundle").read_bytes()}
    assert (tmp_path / "two.bundle").read_bytes() != pushed.read_bytes()


def test_a_bundle_that_was_altered_on_the_remote_is_refused(pushed, second, here, server, tmp_path, monkeypatch):
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(second))
    name = "/sgljit-1/bundles/llama.bundle"
    server.objects[name] = server.objects[name].replace(b"kernel.cubin", b"kernel.cubim")
    with pytest.raises(RefusedObjectError, match="files that it does not list, such as 'other/ab/kernel"):
        commands.unbundle(tmp_path / "got.bundle", pull="llama")
    assert files(second) == laid(here) == []


def test_a_bundle_of_a_stranger_on_the_remote_is_refused(pushed, second, here, server, cache, tmp_path, monkeypatch):
    signing.new_key(tmp_path / "stranger")
    bundles.write(tmp_path / "other.bundle", cache, signing.private_key(tmp_path / "stranger"))
    server.objects["/sgljit-1/bundles/llama.bundle"] = (tmp_path / "other.bundle").read_bytes()
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(second))
    with pytest.raises(RefusedObjectError, match="signed by none of the keys"):
        commands.unbundle(tmp_path / "got.bundle", pull="llama")
    assert files(second) == laid(here) == []


def test_what_is_not_there_is_named(pushed, server, tmp_path):
    with pytest.raises(RemoteUnavailableError, match="has no bundle 'gemma'; `sgljit cache bundle --push` it"):
        commands.unbundle(tmp_path / "got.bundle", pull="gemma")
    assert not (tmp_path / "got.bundle").exists()
    with pytest.raises(ConfigError, match=r"the name of a bundle has letters, digits, .-. and ._.; got .\.\./llama"):
        commands.unbundle(tmp_path / "got.bundle", pull="../llama")


def test_without_a_remote_or_a_key_nothing_is_bundled(here, cache, key, server, tmp_path, monkeypatch):
    file = tmp_path / "one.bundle"
    with pytest.raises(ConfigError, match="no remote is named: set SGLJIT_REMOTE to a URL"):
        commands.bundle(file, push="llama")
    monkeypatch.setenv("SGLJIT_REMOTE", server.url)
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(key.parent / "trusted"))
    with pytest.raises(UntrustedRemoteError, match="there is no key to sign with"):
        commands.bundle(file, push="llama")
    assert not file.exists()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that imports the module beside it, and ends with the status that is its argument."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "warm_beside.py").write_text("def main(status):\n    return eval(status)\n")
    file = tmp_path / "warm.py"
    file.write_text("import sys\nimport warm_beside\nsys.exit(warm_beside.main(sys.argv[1]))\n")
    return str(file)


@pytest.mark.parametrize("status", ["0", "None"])
def test_a_program_that_exits_without_an_error_is_bundled(here, cache, program, tmp_path, monkeypatch, status):
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(cache))
    commands.bundle(tmp_path / "one.bundle", [program, status])
    assert (tmp_path / "one.bundle").exists()


@pytest.mark.parametrize("status", ["3", "'no model'"])
def test_nothing_is_bundled_of_a_program_that_fails(here, cache, program, tmp_path, monkeypatch, capsys, status):
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(cache))
    with pytest.raises(SystemExit) as raised:
        commands.bundle(tmp_path / "one.bundle", [program, status])
    assert repr(raised.value.code) == status
    assert capsys.readouterr().err == f"nothing is bundled, as {program} ended with {status}\n"
    assert not (tmp_path / "one.bundle").exists()


@pytest.mark.slow
def test_a_distribution_adds_directories(tmp_path, programs):
    def added(given):
        site = tmp_path / given[:9].strip('"(')
        info = site / "stranger-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "stranger_kept.py").write_text(PLUGIN.format(given=given))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[sgljit.bundles]\nstranger = stranger_kept:kept\n")
        code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom sgljit_remote import parts\n"
        code += "print(parts.directories()['mine'].whole_key['a'])"
        return programs.run(code, os.fspath(site), env=dict(os.environ), cwd=tmp_path)

    assert added("Directory('mine', Path('/kept'), {'a': 'b'})").stdout == "b\n"
    wrong = added("'/kept'")
    assert "stranger 1.0: stranger_kept:kept gives '/kept'; expected a Directory with an absolute path" in wrong.stderr
    assert "SgljitError" in wrong.stderr


def test_two_directories_of_one_name_are_a_mistake(monkeypatch):
    monkeypatch.setattr(parts, "_triton", parts._inductor)
    with pytest.raises(SgljitError, match="two directories of bundles have one name: inductor, inductor"):
        parts.directories()


WARM = """\
import sys
import time

import torch

torch.manual_seed(0)
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)))
with torch.no_grad():
    start = time.perf_counter()
    result = model(torch.ones(2, 8))
    seconds = time.perf_counter() - start
from torch._dynamo.utils import counters
print(seconds, counters["inductor"]["fxgraph_cache_miss"], float(result.sum()))
"""


def test_an_artifact_that_is_damaged_is_replaced(made, second, trusted):
    """What a power failure left: else a machine without a compiler has no kernel, whatever is laid out."""
    bundles.lay_out(made, second, trusted)
    payload = second / ONE.place / "module.so"
    payload.write_bytes(payload.read_bytes()[:10])
    assert bundles.lay_out(made, second, trusted)["sgljit"] == (1, 0)
    assert payload.read_bytes() == ONE.payload


def test_what_was_being_laid_out_when_a_process_was_killed_is_not_bundled(here, cache, tmp_path):
    (here["directory"].path / "ab" / ".0123456789abcdef").write_bytes(b"half")
    (here["directory"].path / "ab" / ".version").write_bytes(b"whole")
    assert set(bundles.write(tmp_path / "a", cache, None)["other"].files) >= {"ab/.version", "ab/kernel.cubin"}
    assert "ab/.0123456789abcdef" not in bundles.write(tmp_path / "a", cache, None)["other"].files


def test_a_bundle_replaces_no_more_than_a_file(made, here, cache, tmp_path):
    """Root may name /dev/null, as the bundle is pushed anyway."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path / "trusted"):
        with pytest.raises(FileExistsError, match="it is there, and no plain file"):
            bundles.write(place, cache, None)
    assert pipe.is_fifo()
    longest = tmp_path / ("x" * 255)
    for _ in range(2):
        bundles.write(longest, cache, None)
    assert longest.is_file()


@pytest.mark.slow
def test_a_fresh_machine_with_a_bundle_compiles_nothing_of_torchs(tmp_path, key):
    """The whole way by the command line: cold, warm, and with the bundle on an empty disk."""
    pytest.importorskip("sgljit_tools")
    (tmp_path / "warm.py").write_text(WARM)

    def run(machine, *command, **more):
        place = tmp_path / machine
        places = {"SGLJIT_CACHE_DIR": "ours", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        variables = {name: value for name, value in os.environ.items() if not name.startswith("SGLJIT_")}
        variables |= {name: str(place / directory) for name, directory in places.items()}
        variables |= {"PYTHONWARNINGS": "ignore", "SGLJIT_TRUSTED_KEYS": str(key.parent / "trusted"), **more}
        command = [sys.executable, *command]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    bundling = ("-m", "sgljit_core", "cache", "bundle", "one.bundle", "--sign", str(key), "--", "warm.py")
    cold, *told = run("first", *bundling).splitlines()
    assert [line.partition(":")[0] for line in told] == ["torch", "inductor", f"wrote one.bundle, signed with {key}"]
    assert cold.split()[1] == "1"
    assert "torch: 1 are new" in run("second", "-m", "sgljit_core", "cache", "unbundle", "one.bundle")
    before = sorted((tmp_path / "second").rglob("*.so"))
    bundled, warm = run("second", "warm.py").split(), run("first", "warm.py").split()
    print(f"first compiled call: cold {cold.split()[0]} s, bundle {bundled[0]} s, warm {warm[0]} s")
    assert (bundled[1], warm[1]) == ("0", "0")
    assert bundled[2] == warm[2] == cold.split()[2]
    assert sorted((tmp_path / "second").rglob("*.so")) == before
    refused = run("second", "-m", "sgljit_core", "cache", "unbundle", "--help")
    assert "--part" in refused
