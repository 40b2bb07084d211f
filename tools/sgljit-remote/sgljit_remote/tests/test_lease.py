"""Several machines miss the same: one compiles, where the store has conditional writes; nobody is held up for long."""

from __future__ import annotations

import json
import threading
import time

import pytest

from sgljit_core.cache.manifest import FILE, ManifestError
from sgljit_remote import lease, objects, plugin
from sgljit_remote.config import settings
from sgljit_remote.objects import object_name
from sgljit_remote.remote import put_in_place

from . import served
from .conftest import files
from .served import artifact
from .test_processes import FLEET

ONE = artifact()
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NAME = object_name(LOCATION, TOOLCHAIN)
LEASE = f"/{lease.lease_name(NAME)}"


@pytest.fixture
def writer(session):
    """A session of a machine that publishes what it compiles."""
    return lambda **more: session(is_writable=True, **more)


@pytest.mark.slow
def test_eight_machines_that_miss_the_same_compile_it_once_in_all(run, server):
    writable = {"SGLJIT_REMOTE_UNSIGNED": "1", "SGLJIT_REMOTE_MODE": "readwrite"}
    output, errors = run(FLEET, cache="fleet", **writable)
    said = [json.loads(line) for line in output.split("\n") if line]
    assert [values for values, *_ in said] == [[1, 2, 3, 4, 5]] * 8
    assert sum(builds.get("compiled", 0) for *_, builds in said) == 5
    assert errors == ""


def test_the_first_compiles_and_the_others_wait_for_it(server, writer, cache):
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) is None  # it has the lease
    found = []
    waiting = threading.Thread(target=lambda: found.append(writer().fetch(LOCATION, TOOLCHAIN, cache)))
    waiting.start()
    time.sleep(0.3)
    assert found == []
    server.objects[f"/{NAME}"] = objects.pack([ONE], None)
    waiting.join(20)
    assert found == [cache]
    assert files(cache) == [ONE.place]


def test_a_lease_ends_when_another_process_on_the_same_cache_has_made_it(server, writer, cache):
    """One that publishes nothing: the core finds its artifact under the lock, and compiles nothing."""
    first = writer()
    assert first.fetch(LOCATION, TOOLCHAIN, cache) is None
    directory = cache / ONE.place
    plugin.sgljit_loaded(directory, LOCATION.name, "made")  # and published later
    plugin.sgljit_loaded(directory, "another", "cache")
    assert not server.objects[LEASE].startswith(lease.RELEASED)
    plugin.sgljit_loaded(directory, LOCATION.name, "cache")
    assert server.objects[LEASE].startswith(lease.RELEASED)
    server.requests.clear()
    plugin.sgljit_loaded(directory, LOCATION.name, "cache")
    assert server.requests == []


def test_a_lease_ends_when_what_it_was_for_is_published(server, writer, cache):
    first = writer()
    assert first.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert not server.objects[LEASE].startswith(lease.RELEASED)
    first.publish(ONE)
    assert server.objects[LEASE].startswith(lease.RELEASED)


def test_what_was_published_and_released_after_the_last_look_is_found(server, writer, cache):
    """Between its look for the object and its look at the lease, another machine does both."""

    def publish(handler):
        if handler.path == LEASE and handler.command == "PUT":
            server.objects.update({f"/{NAME}": objects.pack([ONE], None), LEASE: lease.RELEASED})
        return False

    server.fault = publish
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) == cache


def test_whose_lease_was_written_although_the_answer_was_lost_waits_for_nobody(monkeypatch, writer, cache):
    session = writer()
    written = session._remote.put
    monkeypatch.setattr(session._remote, "put", lambda *args, **options: written(*args, **options) and False)
    start = time.monotonic()
    assert session.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert time.monotonic() - start < 10


def test_a_machine_that_died_is_waited_for_no_longer_than_the_limit(server, writer, cache, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 0.5)
    server.objects[LEASE] = b"of a machine that died"
    start = time.monotonic()
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert 0.5 <= time.monotonic() - start < 10
    assert server.objects[LEASE] != b"of a machine that died"  # this one is waited for now


def fetch_at_once(sessions, cache):
    """Let several machines miss an artifact at once; how many of them compile. The first of these publishes it."""
    found, compiling = [], []

    def fetch(one):
        if (answer := one.fetch(LOCATION, TOOLCHAIN, cache)) is None:
            compiling.append(one)
            if compiling[0] is one:
                time.sleep(0.5)
                one.publish(ONE)
        else:
            found.append(answer)

    threads = [threading.Thread(target=fetch, args=(one,)) for one in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) + len(compiling) == len(sessions)
    return len(compiling)


@pytest.mark.parametrize(
    "left", [b"of a machine that died", b"released", b"released before somebody emptied the store", None]
)
def test_of_many_that_see_a_lease_end_one_compiles(server, writer, cache, monkeypatch, left):
    monkeypatch.setattr(lease, "SECONDS", 4.0)
    if left is not None:
        server.objects[LEASE] = left
    assert fetch_at_once([writer() for _ in range(8)], cache) == 1
    del server.objects[f"/{NAME}"]
    cache.rename(cache.with_name("before"))
    assert fetch_at_once([writer() for _ in range(8)], cache) == 1  # and again


def test_a_machine_at_work_is_waited_for_longer_than_one_that_died(server, writer, cache, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 2.0)
    first, found = writer(), []
    assert first.fetch(LOCATION, TOOLCHAIN, cache) is None
    waiting = threading.Thread(target=lambda: found.append(writer().fetch(LOCATION, TOOLCHAIN, cache)))
    waiting.start()
    time.sleep(5)
    assert found == []
    first.publish(ONE)
    waiting.join(20)
    assert found == [cache]


@pytest.mark.parametrize("end", ["release", "down", "down, then published", "late"])
def test_a_lease_is_renewed_no_longer_than_it_serves(server, writer, cache, monkeypatch, end):
    monkeypatch.setattr(lease, "SECONDS", 0.2)
    monkeypatch.setattr(lease, "MOST_SECONDS", 5.0 if end == "late" else 60.0)
    one = writer(timeout=2)
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    held = one._leased[LOCATION.name]
    while server.requests.count(f"PUT {LEASE}") < 3 and held._thread.is_alive():
        time.sleep(0.05)
    assert server.requests.count(f"PUT {LEASE}") >= 3
    if end == "release":
        one.release(LOCATION.name)
    elif end == "down":
        one._is_down = True
        one.release(LOCATION.name)
    elif end == "down, then published":
        one._is_down = True
        one.publish(ONE)
    held._thread.join(30)
    assert not held._thread.is_alive()
    assert server.objects[LEASE].startswith(lease.RELEASED) == (end == "release")


def test_a_lease_that_nobody_may_end_is_not_renewed(server, writer, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 0.2)
    one = writer()
    assert one.bring("kernel.bin", 1 << 20, bytes, is_leased=True) is None
    time.sleep(1)
    assert server.requests.count("PUT /kernel.lease") == 1
    one.give("kernel.bin", lambda _: b"made")
    assert server.objects["/kernel.bin"] == b"made"
    assert server.objects["/kernel.lease"].startswith(lease.RELEASED)


def test_a_lease_that_cannot_be_renewed_is_no_error(server, writer, cache, monkeypatch, said):
    monkeypatch.setattr(lease, "SECONDS", 0.2)
    one = writer()
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    server.fault = served.status(403)
    held = one._leased[LOCATION.name]
    held._thread.join(30)
    assert not held._thread.is_alive()
    assert said() == []


def test_many_leases_of_machines_that_died_cost_a_process_one_wait(server, writer, cache, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 2.0)
    one = writer()
    leases = []
    for number in range(4):
        manifest = artifact(number).manifest
        leases.append(f"/{lease.lease_name(object_name(manifest.location.path, TOOLCHAIN))}")
        server.objects[leases[-1]] = b"of a machine that died"
        assert one.fetch(manifest.location.path, TOOLCHAIN, cache) is None
    asked = [server.requests.count(f"GET {name}") for name in leases]
    assert asked[0] > 1
    assert asked[1:] == [2, 2, 2]  # before it is written, and whose it is
    assert b"of a machine that died" not in {server.objects[name] for name in leases}  # taken over


def test_threads_that_wait_at_once_wait_once(server, writer, cache, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 2.0)
    one, places = writer(), [artifact(number).manifest.location.path for number in range(8)]
    for place in places:
        server.objects[f"/{lease.lease_name(object_name(place, TOOLCHAIN))}"] = b"of a machine that died"
    threads = []
    start = time.monotonic()
    for place in places:
        threads.append(threading.Thread(target=one.fetch, args=(place, TOOLCHAIN, cache)))
        threads[-1].start()
        time.sleep(0.2)  # a thread that begins later waits no longer than the first
    for thread in threads:
        thread.join()
    assert 2 <= time.monotonic() - start < 2 * len(threads)


def test_a_wait_that_was_worth_it_costs_no_patience(server, writer, cache, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 300.0)
    one = writer()
    for number in range(3):
        made = artifact(number)
        name = object_name(made.manifest.location.path, TOOLCHAIN)
        place = f"/{lease.lease_name(name)}"
        server.objects[place] = b"of a machine at work"
        content = objects.pack([made], None)

        def publish(handler, name=name, place=place, content=content):
            if server.requests.count(f"GET {place}") == 4:  # after three pauses, 0.475 s together
                server.objects[f"/{name}"] = content

        server.fault = publish
        assert one.fetch(made.manifest.location.path, TOOLCHAIN, cache) == cache
    waited = lease.MOST_SECONDS - one._patience.most
    assert waited > 1.4  # all waits together end
    assert lease.SECONDS - one._patience.unchanged < waited / 2


def test_a_lease_that_changes_again_and_again_holds_nobody_up_for_ever(server, writer, cache, monkeypatch):
    monkeypatch.setattr(lease, "MOST_SECONDS", 1.0)
    server.objects[LEASE] = b"0"
    server.fault = lambda handler: server.objects.update({LEASE: str(time.monotonic()).encode()})
    start = time.monotonic()
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert 1 <= time.monotonic() - start < 10


def test_a_lease_that_is_none_is_refused(server, writer, cache, said):
    server.objects[LEASE] = bytes(1000)
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert f"{server.url}{LEASE} is refused and not used" in warning


def test_an_artifact_that_was_damaged_since_it_was_built_releases_the_others(server, writer, cache, monkeypatch):
    one = writer()
    monkeypatch.setattr(plugin, "_session", lambda: one)
    monkeypatch.setenv("SGLJIT_REMOTE", server.url)
    monkeypatch.setenv("SGLJIT_REMOTE_MODE", "readwrite")
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    put_in_place(ONE, cache)
    (cache / ONE.place / FILE).write_text("nothing")
    with pytest.raises(ManifestError):
        plugin.sgljit_build_finished(LOCATION.name, cache / ONE.place, "compiled")
    assert server.objects[LEASE].startswith(lease.RELEASED)
    assert f"/{NAME}" not in server.objects


def test_a_build_that_fails_releases_the_others_at_once(server, writer, cache):
    first = writer()
    assert first.fetch(LOCATION, TOOLCHAIN, cache) is None
    first.release(LOCATION.name)
    assert server.objects[LEASE].startswith(lease.RELEASED)
    start = time.monotonic()
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert time.monotonic() - start < 10
    first.release(LOCATION.name)  # which has no lease any more
    assert not server.objects[LEASE].startswith(lease.RELEASED)


@pytest.mark.parametrize(
    ("more", "toolchain"),
    [({"is_writable": False}, TOOLCHAIN), ({"may_compile": False}, TOOLCHAIN), ({}, None)],
    ids=["read-only", "may not compile", "no compiler"],
)
def test_who_will_not_publish_takes_no_lease(server, session, cache, more, toolchain):
    assert session(**{"is_writable": True, **more}).fetch(LOCATION, toolchain, cache) is None
    assert LEASE not in server.objects


def test_who_trusts_keys_and_has_none_takes_no_lease(server, writer, cache, key):
    assert writer(unsigned=False, trusted_keys=(key.parent / "trusted",)).fetch(LOCATION, TOOLCHAIN, cache) is None
    assert LEASE not in server.objects


def test_what_is_refused_is_compiled_without_waiting(server, writer, cache):
    server.objects |= {f"/{NAME}": objects.pack([artifact(2)], None), LEASE: b"of another"}
    start = time.monotonic()
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert time.monotonic() - start < 10


def test_a_store_that_takes_no_leases_is_one_warning(server, writer, cache, said):
    server.fault = lambda handler: handler.command == "PUT" and served.status(403)(handler)
    assert writer().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert len(said()) == 1
    assert "it answers 403" in said()[0]


def test_the_setting_that_forbids_compiling_is_read(monkeypatch):
    monkeypatch.setenv("SGLJIT_REMOTE", "/store")
    assert settings().may_compile
    monkeypatch.setenv("SGLJIT_JIT", "error")
    assert not settings().may_compile
