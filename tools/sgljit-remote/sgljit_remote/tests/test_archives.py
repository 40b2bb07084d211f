"""What processes publish comes into the archives of its families, and no writer loses what another has added."""

from __future__ import annotations

import os
import threading
import time

import pytest

from sgljit_remote import archives, index, lease, objects, signing
from sgljit_remote.errors import RefusedObjectError
from sgljit_remote.remote import LARGEST_ARCHIVE

from . import served
from .served import artifact

ARCHIVE = "sgljit-1/archives/cpu-x86_64.norm.zip"
LEASE = f"/{index.NAME}.lease"
ONE, OTHER, THIRD = artifact(1), artifact(2), artifact(3)


def url_of(name, request, tmp_path):
    """The URL of a store that has nothing."""
    if name == "server":
        return request.getfixturevalue("server").url
    if name == "bucket":
        return request.getfixturevalue("bucket")[0]
    if name == "nginx":
        return f"http://127.0.0.1:{request.getfixturevalue('nginx')()[0]}/kernels"
    if name == "registry":
        return f"oci+http://{request.getfixturevalue('running')()}/kernels"
    (tmp_path / "store").mkdir()
    return str(tmp_path / "store")


def add(remote, published, key):
    archives.add(remote, published, key, LARGEST_ARCHIVE)


def places(remote):
    """By archive, the places of the artifacts that the index lists; each archive has exactly these."""
    known = remote.archives()
    for archive in known.values():
        found = remote.unpack(archive.object_name, remote.get(archive.object_name)).artifacts
        assert sorted(one.place for one in found) == sorted(archive.artifacts)
    return {name: sorted(archive.artifacts) for name, archive in known.items()}


@pytest.mark.parametrize("store", ["server", "directory", pytest.param("bucket", marks=pytest.mark.slow)])
def test_writers_at_the_same_moment_lose_nothing_of_each_other(store, request, remote, tmp_path):
    """Each has an artifact of a family that all write, and one of a family of its own."""
    url, writers = url_of(store, request, tmp_path), 6
    start, failed = threading.Barrier(writers), []

    def write(number):
        try:
            own = remote(url)
            start.wait(20)
            add(own, [artifact(number), artifact(number, family=f"own{number}")], None)
        except Exception as error:  # noqa: BLE001 - for the assertion
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert failed == []
    expected = {"cpu-x86_64.norm": sorted(artifact(number).place for number in range(writers))}
    expected |= {f"cpu-x86_64.own{n}": [artifact(n, family=f"own{n}").place] for n in range(writers)}
    assert places(remote(url)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("store", ["nginx", "registry"])
def test_writers_in_turn_lose_nothing_of_each_other(store, request, remote, tmp_path):
    """A store without conditional writes promises no more than that."""
    url = url_of(store, request, tmp_path)
    for one in (ONE, OTHER, THIRD):
        add(remote(url), [one], None)
    assert places(remote(url)) == {"cpu-x86_64.norm": sorted([ONE.place, OTHER.place, THIRD.place])}


def test_what_is_in_an_archive_is_not_written_again(server, remote):
    add(remote(), [ONE, OTHER], None)
    before = dict(server.objects)
    server.requests.clear()
    add(remote(), [OTHER], None)
    assert [name for name in server.objects if server.objects[name] != before.get(name) and ".lease" not in name] == []
    assert f"PUT /{ARCHIVE}" not in server.requests
    assert server.requests.count(f"GET /{index.NAME}") == 1
    add(remote(), [THIRD, OTHER], None)
    assert places(remote()) == {"cpu-x86_64.norm": sorted([ONE.place, OTHER.place, THIRD.place])}


def test_an_archive_with_what_this_machine_does_not_trust_stays_as_it_is(server, remote, signed, tmp_path, said):
    signing.new_key(tmp_path / "stranger")
    add(remote(), [ONE], signing.private_key(tmp_path / "stranger"))
    before = server.objects[f"/{ARCHIVE}"]
    own = remote(**signed)
    add(own, [OTHER, artifact(2, family="other")], own.signer())
    assert server.objects[f"/{ARCHIVE}"] == before
    assert remote().archives().keys() == {"cpu-x86_64.norm", "cpu-x86_64.other"}
    (warning,) = said()
    assert "it is signed by none of the keys" in warning


def test_an_archive_that_would_get_too_large_stays_as_it_is(server, remote, said):
    add(remote(), [ONE], None)
    before = server.objects[f"/{ARCHIVE}"]
    most = len(before) + len(OTHER.payload)
    archives.add(remote(), [OTHER], None, most - 1)
    assert server.objects[f"/{ARCHIVE}"] == before
    archives.add(remote(), [OTHER], None, most)
    assert server.objects[f"/{ARCHIVE}"] != before
    assert said() == []


@pytest.mark.parametrize("limit", ["remote.LARGEST_ARCHIVE", "objects._MEMBERS", "objects.LARGEST"])
def test_artifacts_that_are_too_large_by_themselves_are_no_fault_of_the_index(
    server, session, said, monkeypatch, limit
):
    monkeypatch.setattr(f"sgljit_remote.{limit}", 1)
    session(is_writable=True)._archive([ONE])
    assert said() == []
    assert not [name for name in server.objects if "archives" in name or name.endswith("index.json")]


@pytest.mark.parametrize("limit", ["remote.LARGEST_ARCHIVE", "objects._MEMBERS"])
def test_an_archive_that_gets_larger_than_expected_stays_as_it_is(server, remote, said, monkeypatch, limit):
    """What nobody writes, nobody warns of."""
    add(remote(), [ONE], None)
    before = server.objects[f"/{ARCHIVE}"]
    most = {"remote.LARGEST_ARCHIVE": len(before) + 1, "objects._MEMBERS": 3}[limit]
    monkeypatch.setattr(f"sgljit_remote.{limit}", most)
    add(remote(), [OTHER], None)
    assert server.objects[f"/{ARCHIVE}"] == before
    assert said() == []


@pytest.mark.parametrize("content", [b"damaged", b'{"format": 2, "archives": []}'])
def test_with_a_damaged_index_no_archive_and_no_entry_is_written(server, session, remote, said, content):
    add(remote(), [ONE, artifact(1, family="other")], None)
    server.objects[f"/{index.NAME}"] = content
    before = {name: text for name, text in server.objects.items() if ".lease" not in name}
    session(is_writable=True)._archive([OTHER])
    assert {name: text for name, text in server.objects.items() if ".lease" not in name} == before
    assert server.objects[LEASE].startswith(lease.RELEASED)
    (warning,) = said()
    assert f"{index.NAME} is refused and not used: it is no index of archives" in warning


def test_an_index_that_is_damaged_while_an_archive_is_written_stays(server, remote, monkeypatch):
    def damage(handler):
        if handler.command == "PUT" and handler.path == f"/{ARCHIVE}":
            server.objects[f"/{index.NAME}"] = b"damaged"
        return False

    add(remote(), [artifact(1, family="other")], None)
    server.fault = damage
    with pytest.raises(RefusedObjectError, match="it is no index of archives"):
        add(remote(), [ONE], None)
    assert server.objects[f"/{index.NAME}"] == b"damaged"


@pytest.mark.slow
def test_an_archive_of_many_artifacts_keeps_all_of_them(server, remote):
    """They were cut at 10,000 without a word; what machines take is the limit."""
    many = [artifact(number) for number in range(10_001)]
    server.objects[f"/{ARCHIVE}"] = objects.pack(many, None)
    new = artifact(10_001)
    entry, content = archives.packed(remote(), archives.family_of(new.manifest), [new], None)
    expected = sorted(one.place for one in (*many, new))
    assert sorted(entry.artifacts) == expected
    assert sorted(one.place for one in remote().unpack(ARCHIVE, content).artifacts) == expected


@pytest.mark.parametrize("lost", ["entry", "index"])
def test_an_archive_that_the_index_does_not_list_keeps_what_it_has(server, remote, lost):
    """Two pushes at the same moment may lose an entry."""
    add(remote(), [ONE], None)
    server.objects[f"/{index.NAME}"] = index.dump([])
    if lost == "index":
        del server.objects[f"/{index.NAME}"]
    add(remote(), [artifact(1, family="other")], None)
    add(remote(), [OTHER], None)
    expected = {"cpu-x86_64.norm": sorted([ONE.place, OTHER.place])}
    assert places(remote()) == {**expected, "cpu-x86_64.other": [artifact(1, family="other").place]}


def test_an_archive_that_is_not_listed_and_not_trusted_stays_as_it_is(server, remote, signed, tmp_path):
    signing.new_key(tmp_path / "stranger")
    add(remote(), [ONE], signing.private_key(tmp_path / "stranger"))
    before = server.objects[f"/{ARCHIVE}"]
    server.objects[f"/{index.NAME}"] = index.dump([])
    own = remote(**signed)
    add(own, [OTHER], own.signer())
    assert server.objects[f"/{ARCHIVE}"] == before
    assert remote().archives() == {}


def test_the_turn_of_a_machine_that_died_is_over_after_a_while(server, remote, monkeypatch):
    server.objects[LEASE] = b"of a machine that died"
    monkeypatch.setattr(lease, "SECONDS", 0.3)
    add(remote(), [ONE], None)
    assert places(remote()) == {"cpu-x86_64.norm": [ONE.place]}
    assert server.objects[LEASE].startswith(lease.RELEASED)


def test_a_machine_that_died_as_it_took_over_holds_up_nobody_for_good(server, remote, monkeypatch):
    """It has written the object named after the last text of the lease, and not the lease."""
    server.objects[LEASE] = text = b"of a machine that died"
    for number in range(3):
        server.objects["/" + lease._object_of(LEASE[1:], text)] = text = b"of another, %d" % number
    monkeypatch.setattr(lease, "SECONDS", 0.3)
    add(remote(), [ONE], None)
    assert places(remote()) == {"cpu-x86_64.norm": [ONE.place]}
    assert server.objects[LEASE].startswith(lease.RELEASED)


def test_an_archive_that_is_written_is_no_warning_where_its_lease_cannot_be_released(server, session, remote, said):
    def refuse(handler):
        is_second = (handler.command, handler.path) == ("PUT", LEASE) and LEASE in server.objects
        return is_second and served.status(403)(handler)

    server.fault = refuse
    session(is_writable=True)._archive([ONE])
    assert places(remote()) == {"cpu-x86_64.norm": [ONE.place]}
    assert not server.objects[LEASE].startswith(lease.RELEASED)
    assert said() == []


def test_a_writer_whose_turn_does_not_come_writes_nothing(server, remote, monkeypatch):
    server.objects[LEASE] = b"of a machine at work"
    monkeypatch.setattr(lease, "_TURN_SECONDS", 0.3)
    add(remote(), [ONE], None)
    assert server.objects == {LEASE: b"of a machine at work"}


ENDING = """
import sys
from sgljit_remote import lease, remote
from sgljit_remote.tests.served import artifact
lease.SECONDS, lease._TURN_SECONDS_AT_EXIT = map(float, sys.argv[1:])
remote.current().publish(artifact())
"""
WRITES = {"SGLJIT_REMOTE_MODE": "readwrite", "SGLJIT_REMOTE_UNSIGNED": "1"}


def test_a_program_that_ends_waits_for_less_long_for_others_that_write(server, run):
    texts = []

    def renew(handler):
        if handler.path == LEASE and handler.command == "GET":
            texts.append(b"of the writer %d" % len(texts))
            server.objects[LEASE] = texts[-1]
        return False

    server.objects[LEASE] = b"of a writer"
    server.fault = renew
    assert run(ENDING, "30", "0.5", cache="own", **WRITES) == ("", "")
    assert 2 <= len(texts) < 12  # a look takes up to a second, and the usual wait a minute
    assert server.objects.pop(LEASE) == texts[-1]
    assert len(server.objects) == 2  # the artifact, by both of its names
    assert f"/{ARCHIVE}" not in server.objects


def test_a_program_that_ends_takes_the_turn_of_a_writer_that_died(server, remote, run):
    """Or where all programs are short nobody would write any more."""
    server.objects[LEASE] = b"of a writer that died"
    assert run(ENDING, "1", "0.1", cache="own", **WRITES) == ("", "")
    assert places(remote()) == {"cpu-x86_64.norm": [ONE.place]}
    assert server.objects[LEASE].startswith(lease.RELEASED)


def test_a_lease_that_is_none_is_refused_by_its_name_and_nothing_is_written(server, session, said):
    server.objects[LEASE] = bytes(1000)
    session(is_writable=True)._archive([ONE])
    (warning,) = said()
    assert warning.startswith(f"{server.url}{LEASE} is refused and not used: ")
    assert server.objects == {LEASE: bytes(1000)}


def slow(seconds, *paths):
    """A fault: each PUT of some paths takes so long."""

    def wait(handler):
        if handler.command == "PUT" and handler.path in paths:
            handler.server.over.wait(seconds)
        return False

    return wait


def test_an_archive_may_take_longer_to_be_written_than_one_artifact(server, session, remote, said):
    server.fault = slow(2.5, f"/{ARCHIVE}")
    session(timeout=1, is_writable=True)._archive([ONE])
    assert places(remote()) == {"cpu-x86_64.norm": [ONE.place]}
    assert said() == []


@pytest.mark.parametrize("fault", ["late", "refused"])
def test_an_archive_that_cannot_be_written_is_one_warning_and_the_remote_is_asked_on(
    server, session, cache, said, monkeypatch, fault
):
    monkeypatch.setattr(archives, "_SECONDS", 1.5)
    answer = {"late": slow(20, f"/{ARCHIVE}"), "refused": served.status(403)}[fault]
    server.fault = lambda handler: f"{handler.command} {handler.path}" == f"PUT /{ARCHIVE}" and answer(handler)
    one = session(timeout=1, is_writable=True)
    one._archive([ONE])
    one._archive([OTHER])
    (warning,) = said()
    reason = {"late": "cannot be used now: no answer, for 1.5 s", "refused": "403"}[fault]
    assert reason in warning
    assert warning.endswith("Until a push machines ask one by one for what this process published")
    one.publish(THIRD)
    location = THIRD.manifest.location.path
    assert one.fetch(location, THIRD.manifest.toolchain_key, cache) == cache
    assert len(said()) == 1


def test_a_store_that_is_down_is_one_warning_of_each_kind(server, session, said):
    one = session(timeout=1, is_writable=True)
    server.fault = served.status(403)
    one._archive([ONE])
    one._archive([ONE])
    (warning,) = said()
    assert "403" in warning
    one.publish(OTHER)
    assert "asks it no more" in said()[1]
    server.requests.clear()
    one._archive([ONE])
    assert server.requests == []
    assert len(said()) == 2


def test_what_is_published_is_handed_on_once_nothing_comes_any_more(monkeypatch):
    monkeypatch.setattr(archives, "CALM", 0.4)
    handed, done = [], threading.Event()
    behind = archives.Behind(lambda found: (handed.append((time.monotonic(), found)), done.set()))
    behind.add(ONE)
    time.sleep(0.2)
    behind.add(OTHER)
    last = time.monotonic()
    assert done.wait(20)
    ((when, found),) = handed
    assert found == [ONE, OTHER]
    assert when - last >= 0.4
    done.clear()
    behind.add(THIRD)
    assert done.wait(20)
    assert handed[1][1] == [THIRD]


def test_a_forked_child_hands_on_what_it_has_published_itself(monkeypatch):
    monkeypatch.setattr(archives, "CALM", 1.0)
    read, write = os.pipe()
    behind = archives.Behind(lambda found: os.write(write, f"{os.getpid()} {[one.place for one in found]}\n".encode()))
    behind.add(ONE)
    if (child := os.fork()) == 0:
        behind.add(OTHER)
        behind._thread.join(20)
        os._exit(0)
    os.waitpid(child, 0)
    for thread in threading.enumerate():
        if thread.name == "sgljit-remote-archive":
            thread.join(20)
    said = os.read(read, 4096).decode().splitlines()
    assert sorted(said) == sorted([f"{child} ['{OTHER.place}']", f"{os.getpid()} ['{ONE.place}']"])
