"""Servers that fail: nothing unverified is kept, nothing takes longer than its limit, and nothing is an error."""

from __future__ import annotations

import errno
import re
import threading
import time

import pytest

from sgljit_remote import index, objects, signing, stores, transfer
from sgljit_remote.config import Settings
from sgljit_remote.errors import RemoteUnavailableError
from sgljit_remote.index import Archive
from sgljit_remote.objects import object_name
from sgljit_remote.remote import Remote, Session, put_in_place

from . import served
from .conftest import files
from .served import artifact, within

ONE = artifact()
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NAME = object_name(LOCATION, TOOLCHAIN)


@pytest.fixture
def filled(server):
    """The server with one artifact and no index."""
    server.objects[f"/{NAME}"] = objects.pack([ONE], None)
    return server


def only(fault):
    """The fault for the artifact alone, so that the index is there or not as it is."""
    return lambda handler: handler.path == f"/{NAME}" and fault(handler)


def test_an_artifact_is_one_request_and_the_index_one_for_the_process(filled, session, cache, said):
    one = session()
    for _ in range(2):
        assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert filled.requests == [f"GET /{index.NAME}", f"GET /{NAME}", f"GET /{NAME}"]
    assert files(cache) == [ONE.place]
    assert (cache / ONE.place / "module.so").read_bytes() == ONE.payload
    assert said() == []


def test_what_is_not_there_is_a_miss_and_the_next_question_is_asked(filled, session, cache, said):
    one = session()
    other = artifact(2).manifest
    assert one.fetch(other.location.path, other.toolchain_key, cache) is None
    assert one.fetch(LOCATION, "0" * 32, cache) is None
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert said() == []


@pytest.fixture
def assert_costs_one_time_out_and_one_warning(filled, session, cache, said):
    def check(fault, reason, seconds):
        """How often the server was asked: where it does not answer, each is a time-out."""
        filled.objects[f"/{index.NAME}"] = index.dump([])
        filled.fault = fault
        one = session(timeout=seconds)
        with within(seconds):
            assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
        asked = len(filled.requests)
        with within(0):
            assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
            one.publish(ONE)
        assert len(filled.requests) == asked
        (warning,) = said()
        assert f"the remote {filled.url} cannot be used now: " in warning
        assert re.search(reason, warning), warning
        assert files(cache) == []
        return asked

    return check


PLACES = pytest.mark.parametrize("place", [only, lambda fault: fault], ids=["artifact", "all"])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (served.reset, "Connection reset by peer"),
        (served.truncated, r"it ended sgljit-1/.* after \d+ bytes of \d+"),
        (served.garbage, "BadStatusLine"),
        (served.status(500), "it answers 500 Internal Server Error"),
        (served.status(503), "it answers 503 Service Unavailable"),
        (served.status(429), "it answers 429"),
        (served.status(403), "it answers 403 Forbidden"),
        (served.status(412), "it answers 412 Precondition Failed"),
        (served.status(401), "it answers 401"),
        (served.redirecting("http://127.0.0.1:1"), "Connection refused"),
        (served.redirecting(f"http://127.0.0.1:{10**30}"), "OverflowError|Servname"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@PLACES
def test_a_remote_that_answers_wrongly_costs_one_time_out_and_one_warning(
    no_pauses, assert_costs_one_time_out_and_one_warning, fault, reason, place
):
    assert_costs_one_time_out_and_one_warning(place(fault), reason, 20)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (served.stalled, "no answer, for 1 s"),
        (served.trickling, "no answer, for 1 s|it had sent .* bytes"),
        (served.trickling_headers, "no answer, for 1 s"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@PLACES
def test_a_remote_that_does_not_answer_costs_one_time_out_and_one_warning(
    assert_costs_one_time_out_and_one_warning, fault, reason, place
):
    answered = place is only  # the index
    assert assert_costs_one_time_out_and_one_warning(place(fault), reason, 1) == answered + 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (served.shortened, "it is no archive of artifacts, or is damaged: File is not a zip file"),
        (served.nonsense, "it is no archive of artifacts, or is damaged: File is not a zip file"),
        (served.altered, "is refused and not used: "),
        (served.enormous, "has more than 2147483648 bytes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_object_is_refused_and_others_are_asked_for(filled, session, cache, said, fault, reason):
    filled.fault = only(fault)
    one = session()
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert f"{filled.url}/{NAME} is refused and not used: " in warning
    assert reason in warning
    assert files(cache) == []
    filled.fault = None
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache


def test_every_altered_byte_is_noticed_or_changes_nothing(cache):
    """A byte of the archive's own bookkeeping may not matter; what is accepted is the artifact as it was."""
    content = objects.pack([artifact(payload="module.so")], None)
    accepted = 0
    for at in range(len(content)):
        for bit in (1, 128):
            other = bytearray(content)
            other[at] ^= bit
            try:
                found = objects.unpack(bytes(other), ()).artifacts
            except objects.RefusedObjectError:
                continue
            accepted += len(found)
            assert found in ((), (ONE,))
    assert accepted < len(content)


def test_every_beginning_of_an_object_is_refused():
    content = objects.pack([ONE], None)
    for length in range(len(content)):
        with pytest.raises(objects.RefusedObjectError, match="it is no archive of artifacts, or is damaged"):
            objects.unpack(content[:length], ())


def test_a_server_that_is_busy_for_a_while_is_asked_again(filled, session, cache, said):
    filled.fault = served.status(503, times=2)
    assert session(timeout=10).fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert filled.requests == [f"GET /{index.NAME}"] * 3 + [f"GET /{NAME}"]
    assert said() == []


def test_a_reset_connection_is_tried_again(filled, session, cache):
    left = [True]
    filled.fault = only(lambda handler: left.pop() and served.reset(handler) if left else False)
    assert session(timeout=10).fetch(LOCATION, TOOLCHAIN, cache) == cache


def test_a_refused_connection_is_a_warning(no_pauses, cache, said):
    with served.refusing() as url, within(20):
        one = Session(Remote(Settings(url, unsigned=True, timeout=20)))
        assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert "Connection refused" in warning
    assert "for 20 s. This process asks it no more, and compiles what is missing" in warning


def test_a_file_server_that_hangs_costs_one_time_out_and_one_warning(tmp_path, session, cache, said, monkeypatch):
    over, asked = threading.Event(), []

    def hang(_, name):
        asked.append(name)
        over.wait(120)
        raise FileNotFoundError(name)

    monkeypatch.setattr(stores.DirectoryStore, "_open", hang)
    one = session(str(tmp_path), timeout=0.5)
    with within(0.5):
        assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
        assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    over.set()
    assert asked == [index.NAME]
    (warning,) = said()
    assert f"the remote {tmp_path} cannot be used now: no answer, for 0.5 s" in warning


def test_threads_that_miss_at_once_wait_one_time_out_in_all(filled, session, cache, said):
    filled.fault = served.stalled
    one = session(timeout=1)
    threads = [threading.Thread(target=one.fetch, args=(LOCATION, TOOLCHAIN, cache)) for _ in range(8)]
    with within(1):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(filled.requests) == 1
    assert len(said()) == 1


WRONG = [
    b"\xff\xfe",
    b"[]",
    b'{"format": 2, "archives": []}',
    b'{"format": 1, "archives": {}}',
    b'{"format": 1, "archives": [{}]}',
    b'{"format": 1, "archives": [{"name": 1, "family": "", "target": "", "size": 0, "artifacts": []}]}',
    b'{"format": 1, "archives": [{"name": "../x", "family": "", "target": "", "size": 0, "artifacts": []}]}',
    b'{"format": 1, "archives": [{"name": "x", "family": "", "target": "", "size": 0, "artifacts": ["../x"]}]}',
    b'{"format": 1, "archives": [{"name": "x", "family": "", "target": "", "size": 0, "artifacts": [1]}]}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
def test_a_wrong_index_is_refused_and_artifacts_are_found_without_it(filled, session, cache, said, content):
    filled.objects[f"/{index.NAME}"] = content
    assert session().fetch(LOCATION, TOOLCHAIN, cache) == cache
    (warning,) = said()
    assert "it is no index of archives" in warning
    with pytest.raises(objects.RefusedObjectError):
        index.parse(content)


def family(*artifacts, listed=()):
    content = objects.pack(artifacts, None)
    places = tuple(one.place for one in listed or artifacts)
    return Archive("cpu-x86_64.norm", "norm", "cpu-x86_64", len(content), places), content


def serve(server, archive, content):
    server.objects[f"/{index.NAME}"] = index.dump([archive])
    server.objects[f"/{archive.object_name}"] = content


def test_forty_variants_are_two_requests(server, session, cache):
    variants = [artifact(number) for number in range(40)]
    serve(server, *family(*variants))
    one = session()
    for variant in variants:
        manifest = variant.manifest
        assert one.fetch(manifest.location.path, manifest.toolchain_key, cache) == cache
    assert server.requests == [f"GET /{index.NAME}", "GET /sgljit-1/archives/cpu-x86_64.norm.zip"]
    assert files(cache) == sorted(variant.place for variant in variants)


def test_the_archive_of_a_model_is_found_and_its_families_are_two_requests(server, session, remote, cache, tmp_path):
    """As `sgljit prepare --push llama` leaves a store; other models of it are not asked for."""
    variants = [artifact(number, family=name) for number, name in enumerate(("norm", "rope", "activation", "moe"))]
    for name, members in (("llama", variants), ("other", [artifact(9)]), ("all", [*variants, artifact(9)])):
        for member in members:
            put_in_place(member, tmp_path / name)
        transfer.push(remote(), tmp_path / name, transfer.Choice(), name, dry_run=False, progress=lambda _: None)
    server.requests.clear()
    one = session()
    for variant in variants:
        assert one.fetch(variant.manifest.location.path, variant.manifest.toolchain_key, cache) == cache
    assert server.requests == [f"GET /{index.NAME}", "GET /sgljit-1/archives/llama.zip"]
    assert files(cache) == sorted(variant.place for variant in variants)


def test_after_an_archive_without_what_it_should_have_the_next_is_taken(filled, session, cache):
    smallest, content = family(artifact(2), listed=[ONE, artifact(2)])
    serve(filled, smallest, content)
    larger = Archive("llama", "", "", len(content) + 1, (ONE.place,))
    filled.objects[f"/{index.NAME}"] = index.dump([larger, smallest])
    filled.objects[f"/{larger.object_name}"] = objects.pack([ONE], None)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) == cache
    names = [request.rpartition("/")[2] for request in filled.requests]
    assert names == ["index.json", "cpu-x86_64.norm.zip", "llama.zip"]


def test_an_archive_without_what_its_index_says_is_taken_once(filled, session, cache):
    serve(filled, *family(artifact(2), listed=[ONE, artifact(2)]))
    one = session()
    for _ in range(2):
        assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert [request.rpartition("/")[2] for request in filled.requests] == [
        "index.json",
        "cpu-x86_64.norm.zip",
        f"{TOOLCHAIN}.zip",
        f"{TOOLCHAIN}.zip",
    ]


@pytest.mark.parametrize("fault", [served.shortened, served.status(404)])
def test_an_archive_that_cannot_be_had_leaves_the_artifacts(filled, session, cache, said, fault):
    serve(filled, *family(ONE))
    filled.fault = lambda handler: "archives" in handler.path and fault(handler)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert len(said()) <= 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (served.stalled, "no answer, for 2 s"),
        (served.stalling, "no answer, for 2 s"),
        (served.status(403), "it answers 403 Forbidden"),
        (served.status(503), "it answers 503 Service Unavailable, for 2 s"),
    ],
)
def test_archives_that_do_not_come_cost_one_time_out_in_all(server, session, cache, said, fault, reason):
    """The index answers, and what it lists does not: three families, of which the first takes the whole remote down."""
    one_of_each = [artifact(number, family=name) for number, name in enumerate(("norm", "rope", "moe"))]
    archives = [
        Archive(f"cpu-x86_64.{one.manifest.family}", one.manifest.family, "cpu-x86_64", 1000, (one.place,))
        for one in one_of_each
    ]
    server.objects = {f"/{archive.object_name}": bytes(1000) for archive in archives}
    server.objects[f"/{index.NAME}"] = index.dump(archives)
    server.fault = lambda handler: "archives" in handler.path and fault(handler)
    one = session(timeout=2)
    for wanted in one_of_each:
        assert one.fetch(wanted.manifest.location.path, wanted.manifest.toolchain_key, cache) is None
    assert set(server.requests) == {f"GET /{index.NAME}", "GET /sgljit-1/archives/cpu-x86_64.norm.zip"}
    (warning,) = said()
    assert f"cannot be used now: {reason}. This process asks it no more" in warning


@pytest.mark.parametrize("breaks", [0, 1], ids=["at once", "at the second attempt"])
def test_an_archive_that_keeps_coming_may_take_longer_than_an_artifact(server, session, cache, breaks):
    archive, content = family(ONE)
    serve(server, archive, content)
    left = [breaks]

    def slow(handler):
        if "archives" not in handler.path:
            return False
        handler.send(b"", len(content))
        for start in range(0, len(content), len(content) // 5):
            time.sleep(0.9)
            handler.wfile.write(content[start : start + len(content) // 5])
            if left[0] and start > len(content) // 2:
                left[0] -= 1
                break
        return True

    server.fault = slow
    assert session(timeout=3).fetch(LOCATION, TOOLCHAIN, cache) == cache  # after 4.5 s


def test_one_bad_artifact_of_an_archive_hides_no_other(server, session, cache, said):
    bad = artifact(3, sha256="0" * 64)
    serve(server, *family(ONE, bad))
    one = session()
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert files(cache) == [ONE.place]
    (warning,) = said()
    assert f"{bad.place}: module.so is not the one that its manifest says" in warning


def test_without_a_toolchain_any_artifact_of_the_source_serves(server, session, remote, cache):
    remote().publish_one(ONE, None)
    assert session().fetch(LOCATION, None, cache) == cache
    assert files(cache) == [ONE.place]


@pytest.mark.parametrize("is_archived", [False, True])
def test_what_did_not_serve_here_gets_what_is_compiled_beside_it(filled, session, cache, tmp_path, is_archived):
    """It was compiled beside other headers, which no key covers: the core finds that out, and compiles."""
    if is_archived:
        serve(filled, *family(ONE))
    one = session(is_writable=True)
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    here = artifact(observed={"/usr/include/observed.h": "1" * 64})
    assert here.manifest.toolchain_key == TOOLCHAIN
    one.publish(here)
    assert objects.unpack(filled.objects[f"/{NAME}"], ()).artifacts == (here, ONE)
    session(is_writable=True).publish(artifact(observed={"/elsewhere.h": "2" * 64}))  # by one that was brought nothing
    assert objects.unpack(filled.objects[f"/{NAME}"], ()).artifacts == (here, ONE)
    if not is_archived:
        fresh = tmp_path / "fresh"
        assert session().fetch(LOCATION, TOOLCHAIN, fresh) == fresh
        assert files(fresh) == sorted([ONE.place, here.place])  # the core takes the one that serves


def test_what_stands_beside_an_artifact_keeps_its_signature(filled, session, key, tmp_path, cache):
    """Whoever publishes vouches for its own: a key that is trusted no more takes what it has signed with it."""
    signing.new_key(tmp_path / "other").rename(key.parent / "trusted/other.pub")
    filled.objects[f"/{NAME}"] = objects.pack([ONE], signing.private_key(tmp_path / "other"))
    here = artifact(observed={"/usr/include/observed.h": "1" * 64})
    keys = {"unsigned": False, "trusted_keys": (key.parent / "trusted",)}
    one = session(is_writable=True, signing_key=key, **keys)
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    one.publish(here)
    own = [signing.public_keys([key.parent / f"trusted/{name}.pub"]) for name in ("own", "other")]
    artifacts = [objects.unpack(filled.objects[f"/{NAME}"], trusted).artifacts for trusted in own]
    assert artifacts == [(here,), (ONE,)]


def test_an_object_keeps_no_more_than_a_few_beside_a_new_artifact(filled, remote):
    for number in range(12):
        one = artifact(observed={"/usr/include/observed.h": f"{number:064}"})
        assert remote().publish_one(one, None, beside=True)
    assert len(objects.unpack(filled.objects[f"/{NAME}"], ()).artifacts) == 8


@pytest.mark.parametrize("size", [1, 1 << 40])
def test_a_very_large_archive_is_left_to_pull(filled, session, cache, size):
    archive, content = family(ONE, artifact(2))
    serve(filled, archive._replace(size=size), content)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) == cache
    asked = archive.object_name if size == 1 else NAME
    assert filled.requests == [f"GET /{index.NAME}", f"GET /{asked}"]


def test_a_cache_that_takes_no_files_is_no_obstacle(filled, session, cache, said):
    cache.write_text("a file")
    kept = session().fetch(LOCATION, TOOLCHAIN, cache)
    assert files(kept) == [ONE.place]
    (warning,) = said()
    assert f"the cache {cache} cannot be written" in warning


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_machine_without_room_is_no_failure_of_the_remote(filled, session, cache, said, monkeypatch, is_archived):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if is_archived:
        serve(filled, *family(ONE))
    monkeypatch.setattr("sgljit_core.cache.store.staging_directory", full)
    one = session()
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert not one._is_down
    (warning,) = said()
    assert warning == (
        f"no directory of this machine takes what {filled.url} has ([Errno 28] No space left on device): it is not "
        "used. Make room"
    )


def test_nothing_is_asked_twice_that_a_client_need_not_ask(filled, remote):
    filled.fault = served.status(403)
    with pytest.raises(RemoteUnavailableError, match="it answers 403"):
        remote(timeout=5).get(NAME)
    assert len(filled.requests) == 1
