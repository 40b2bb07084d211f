"""Real servers, behind a connection that fails: one time-out and one warning, and nothing that is not whole."""

from __future__ import annotations

import os
import pkgutil
import re
import time

import pytest

from sgljit_remote import archives
from sgljit_remote.counts import stats
from sgljit_remote.objects import object_name
from sgljit_remote.remote import LARGEST_ARCHIVE

from .conftest import files
from .real import proxy
from .served import artifact, large_artifact, within

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),  # adlfs and gcsfs do
]

LARGE = large_artifact()
LOCATION, TOOLCHAIN = LARGE.manifest.location.path, LARGE.manifest.toolchain_key
SECONDS = 2  # the default
WITHIN = 1 << 20  # bytes of answers: in the midst of the artifact


# By kind of bucket: the variable that names its server, and the class that keeps connections.
BUCKETS = {
    "bucket": ("AWS_ENDPOINT_URL", "s3fs.S3FileSystem"),
    "google": ("STORAGE_EMULATOR_HOST", "gcsfs.GCSFileSystem"),
    "azure": ("AZURE_STORAGE_CONNECTION_STRING", "adlfs.AzureBlobFileSystem"),
}
KINDS = ["nginx", "running", *BUCKETS]


@pytest.fixture(params=KINDS)
def broken(request, remote, signed, monkeypatch):
    """The URL of a store of each kind, behind a proxy, the proxy, and a time-out; the store has one artifact.

    The time-out is so long that a whole answer comes in it on this machine, however busy: there is something to fail.
    """
    server = request.getfixturevalue(request.param)
    variable, files = BUCKETS.get(request.param, ("", ""))
    if request.param == "nginx":
        url = "http://127.0.0.1:{port}/kernels"
        port, _ = server()
    elif request.param == "running":
        url = "oci+http://127.0.0.1:{port}/kernels"
        port = int(server().rpartition(":")[2])
    else:
        url, port = server[0], int(re.search(r"http://127.0.0.1:(\d+)", os.environ[variable])[1])
    straight = remote(url.format(port=port), **signed)
    assert straight.publish_one(LARGE, straight.signer())
    with proxy(port) as one:
        if variable:
            monkeypatch.setenv(variable, os.environ[variable].replace(f":{port}", f":{one.port}"))
            pkgutil.resolve_name(files).clear_instance_cache()
        url, began = url.format(port=one.port), time.monotonic()
        assert remote(url, **signed).get(object_name(LOCATION, TOOLCHAIN))
        yield url, one, max(SECONDS, 4 * (time.monotonic() - began))


@pytest.mark.parametrize("left", [0, WITHIN], ids=["at once", "in the midst"])
@pytest.mark.parametrize("fault", ["reset", "cut", "stalled", "trickling"])
def test_a_connection_that_fails_costs_one_time_out_and_one_warning(
    broken, session, signed, cache, said, no_pauses, fault, left
):
    url, between, limit = broken
    between.fault, between.left = fault, left
    one, before = session(url, timeout=limit, **signed), stats().failures
    with within(limit):
        assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert between.met > 0
    asked = stats()  # connections are not counted: a client of a store may try again by itself
    if fault in ("stalled", "trickling"):
        assert asked.failures - before == 1  # each is a time-out
    with within(0):
        assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
        one.publish(LARGE)
    assert stats().requests == asked.requests
    (warning,) = said()
    assert "cannot be used now: " in warning
    assert warning.endswith("This process asks it no more, and compiles what is missing")
    assert files(cache) == []


def test_an_archive_that_stalls_costs_one_time_out_and_one_warning(broken, session, signed, remote, cache, said):
    url, between, limit = broken
    straight = remote(url, **signed)
    archives.add(straight, [LARGE], straight.signer(), LARGEST_ARCHIVE)
    straight.archives()
    between.fault, between.left = "stalled", WITHIN  # behind the index, which is small
    one, seconds, before = session(url, timeout=limit, **signed), -time.monotonic(), stats().failures
    assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    seconds += time.monotonic()
    assert between.met > 0
    assert stats().failures - before == 1
    assert seconds < 5 * limit  # the limit of an archive that keeps coming is ten times that
    (warning,) = said()
    assert "cannot be used now: " in warning
    assert files(cache) == []


@pytest.mark.parametrize("broken", [kind for kind in KINDS if kind != "azure"], indirect=True)
def test_an_archive_that_keeps_coming_may_take_longer_than_one_time_out(
    broken, session, signed, remote, cache, said, monkeypatch
):
    """Of several parts, as s3fs would read it, over a line that takes longer for all of them.

    adlfs reports nothing of the first 32 MiB before they are there.
    """
    url, between, limit = broken
    monkeypatch.setattr("s3fs.S3FileSystem.default_block_size", 1 << 18, raising=False)
    straight = remote(url, **signed)
    archives.add(straight, [LARGE], straight.signer(), LARGEST_ARCHIVE)
    straight.archives()  # which a server of a busy machine may answer late
    between.pause = limit / 20
    one, seconds = session(url, timeout=limit, **signed), -time.monotonic()
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert seconds + time.monotonic() > limit
    assert (cache / LARGE.place / "module.so").read_bytes() == LARGE.payload
    assert said() == []


@pytest.mark.parametrize("broken", list(BUCKETS), indirect=True)
def test_an_object_of_a_bucket_is_one_request(broken, remote, signed, monkeypatch):
    """Small, or of several parts of s3fs's size."""
    url, between, _ = broken
    monkeypatch.setattr("s3fs.S3FileSystem.default_block_size", 1 << 18, raising=False)
    own, small = remote(url, **signed), artifact(2)
    own.publish_one(small, own.signer())
    for one in (small, LARGE):
        name = object_name(one.manifest.location.path, one.manifest.toolchain_key)
        between.requests.clear()
        assert own.unpack(name, own.get(name)).artifacts == (one,)
        (request,) = between.requests
        assert request.startswith("GET ")
    between.requests.clear()
    assert own.get("sgljit-1/missing.zip") is None
    assert len(between.requests) == 1


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_a_connection_that_fails_once_is_made_anew(broken, session, signed, cache, said, fault):
    url, between, _ = broken
    between.fault, between.left, between.times = fault, WITHIN, 1
    assert session(url, **signed).fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert between.met == 1
    assert (cache / LARGE.place / "module.so").read_bytes() == LARGE.payload
    assert said() == []


@pytest.mark.parametrize("fault", ["reset", "cut", "stalled", "trickling"])
def test_a_connection_that_fails_while_something_is_published_is_one_warning(
    broken, session, remote, signed, said, no_pauses, fault
):
    url, between, limit = broken
    between.fault = fault
    other, before = artifact(2), stats().failures
    with within(limit):
        session(url, timeout=limit, is_writable=True, **signed).publish(other)
    assert between.met > 0
    if fault in ("stalled", "trickling"):
        assert stats().failures - before == 1
    (warning,) = said()
    assert "cannot be used now: " in warning
    between.fault = ""
    found = remote(url, **signed).get(object_name(other.manifest.location.path, other.manifest.toolchain_key))
    assert found is None or remote(url, **signed).unpack("x", found).artifacts == (other,)  # whole, or not there
