"""Directories, memory, web servers: whole objects, of which the first stays."""

from __future__ import annotations

import errno
import gc
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import fsspec
import pytest

from sgljit_core.errors import ConfigError
from sgljit_core.machine import private
from sgljit_remote import asking, config, counts, objects, stores, web
from sgljit_remote.asking import TryAgainError
from sgljit_remote.config import Settings
from sgljit_remote.errors import RefusedObjectError, RemoteUnavailableError
from sgljit_remote.remote import Remote, Session, session as session_of

from .conftest import files
from .served import artifact, redirecting, running, within
from .test_real_servers import certificate

ONE = artifact()
LATER = time.monotonic() + 3600


@pytest.fixture(params=["directory", "path", "memory", "http"])
def url(request, tmp_path, server):
    (tmp_path / "a store").mkdir()
    return {
        "directory": f"file://{tmp_path}/a%20store",
        "path": f"{tmp_path}/a store",
        "memory": f"memory://{uuid.uuid4()}",
        "http": f"{server.url}/kernels",
    }[request.param]


@pytest.fixture
def store(url):
    return stores.opened(url, check_owners=True)


def test_an_object_is_read_as_it_was_written_and_the_first_stays(store):
    assert store.get("a/b/c+1.zip", 10, LATER) is None
    assert store.put("a/b/c+1.zip", b"first", LATER, replace=False)
    assert not store.put("a/b/c+1.zip", b"second", LATER, replace=False)
    assert store.get("a/b/c+1.zip", 10, LATER) == b"first"
    assert store.put("a/b/c+1.zip", b"third", LATER, replace=True)
    assert store.get("a/b/c+1.zip", 10, LATER) == b"third"


def test_an_object_is_refused_that_is_larger_than_it_may_be(store):
    store.put("x", bytes(11), LATER, replace=False)
    assert len(store.get("x", 11, LATER)) == 11
    with pytest.raises(RefusedObjectError, match="x has more than 10 bytes"):
        store.get("x", 10, LATER)


def test_of_two_writers_at_once_one_is_first_and_readers_see_one_whole_object(store):
    contents = [bytes([number]) * 200_000 for number in range(8)]
    start, first, seen = threading.Barrier(9), [], set()

    def write(content):
        start.wait()
        if store.put("x", content, LATER, replace=False):
            first.append(content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        seen.add(store.get("x", 1 << 20, LATER))
    for thread in threads:
        thread.join()
    (winner,) = first
    assert seen <= {None, winner}
    assert store.get("x", 1 << 20, LATER) == winner


def test_a_machine_publishes_and_another_fetches(url, cache, said):
    settings = Settings(url, unsigned=True, timeout=20)
    Session(Remote(settings)).publish(ONE)
    manifest = ONE.manifest
    assert Session(Remote(settings)).fetch(manifest.location.path, manifest.toolchain_key, cache) == cache
    assert files(cache) == [ONE.place]
    assert said() == []


def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path):
    store = stores.opened(str(tmp_path), check_owners=True)
    (tmp_path / ".x.0123").write_bytes(b"half")
    assert store.get("x", 10, LATER) is None
    assert store.put("x", b"whole", LATER, replace=False)


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = stores.opened(str(tmp_path), check_owners=True)
    assert store.put("x", b"first", LATER, replace=False)
    assert not store.put("x", b"second", LATER, replace=False)
    assert store.get("x", 10, LATER) == b"first"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("check_owners", [True, False])
def test_what_is_no_plain_file_is_not_read(tmp_path, make, check_owners):
    make(tmp_path / "x")
    with pytest.raises(RefusedObjectError, match="x is not a plain file"):
        stores.opened(str(tmp_path), check_owners=check_owners).get("x", 10, LATER)


def test_a_link_is_not_followed_without_keys(tmp_path):
    (tmp_path / "x").symlink_to("/etc/passwd")
    with pytest.raises(TryAgainError, match="symbolic links"):
        stores.opened(str(tmp_path), check_owners=True).get("x", 1 << 20, LATER)


def test_a_directory_that_is_missing_is_no_empty_one(tmp_path):
    store = stores.opened(str(tmp_path / "not mounted"), check_owners=True)
    for attempt in (lambda: store.get("x", 1, LATER), lambda: store.put("x", b"", LATER, replace=False)):
        with pytest.raises(RemoteUnavailableError, match="not mounted is not a directory"):
            attempt()


@pytest.mark.usefixtures("no_pauses")
def test_a_directory_that_cannot_be_seen_now_is_asked_for_again(tmp_path, monkeypatch, cache, said):
    def stale(path):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    remote = Remote(Settings(str(tmp_path), is_writable=True, unsigned=True, timeout=1))
    monkeypatch.setattr(Path, "is_dir", stale)
    assert Session(remote).fetch(ONE.manifest.location.path, ONE.manifest.toolchain_key, cache) is None
    Session(remote).publish(ONE)
    (warning,) = said()
    assert f"the remote {tmp_path} cannot be used now: [Errno 116] Stale file handle" in warning


@pytest.mark.parametrize("url", ["file://srv/kernels", "FILE://srv/kernels"])
def test_a_slash_too_few_is_an_error_and_no_other_directory(url):
    with pytest.raises(
        ConfigError,
        match=r"a file URL cannot name a host, here 'srv': write file:///srv/kernels for the directory /srv/ker",
    ):
        config.settings(url)


@pytest.mark.parametrize("url", ["file:///srv/kernels", "file://localhost/srv/kernels", "/srv/kernels"])
def test_a_directory_has_a_url(url):
    assert stores.opened(config.settings(url).url, check_owners=True).shown == "/srv/kernels"


def test_the_path_of_a_directory_is_taken_as_it_is(tmp_path):
    for name in ("kernels#1", "kernels?v=2", "100%25", "kernels"):
        (tmp_path / name).mkdir()
        url = config.settings(f"{tmp_path}/{name}").url
        assert stores.opened(url, check_owners=False).put("x", name.encode(), LATER, replace=False)
        assert (tmp_path / name / "x").read_text() == name


@pytest.mark.parametrize("url", ["s3://bucket/x", "nonsense://host/x"])
def test_a_scheme_that_nobody_here_opens_says_what_to_do(url):
    try:
        import s3fs  # noqa: F401

        pytest.skip("s3fs is installed")
    except ImportError:
        pass
    with pytest.raises(RemoteUnavailableError, match=r"Install s3fs|Protocol not known: nonsense"):
        stores.opened(url, check_owners=False).get("x", 1, LATER)


@pytest.mark.parametrize("url", ["htps://host/kernels", "flie:///srv/kernels"])
def test_a_misspelt_scheme_is_named_before_anybody_is_asked_to_trust_it(url, said):
    text = f"Protocol not known: {url.partition(':')[0]}. Expected a URL that begins with https, http, file, oci, "
    for unsigned in (True, False):
        with pytest.raises(RemoteUnavailableError, match=re.escape(text)):
            Remote(config.settings(url)._replace(unsigned=unsigned)).get_ready()
    assert session_of(config.settings(url)) is None
    (warning,) = said()
    assert text in warning
    assert stores.shown(url) == url


def test_an_empty_object_is_refused_and_hides_no_other(cache, said):
    remote = Remote(Settings(f"memory://{uuid.uuid4().hex}", unsigned=True, timeout=20))
    remote.put("sgljit-1/index.json", b"")
    remote.publish_one(ONE, None)
    assert Session(remote).fetch(ONE.manifest.location.path, ONE.manifest.toolchain_key, cache) == cache
    (warning,) = said()
    assert "index.json is refused and not used: it is no index of archives" in warning


def test_a_package_may_take_longer_to_import_than_a_server_to_answer(cache, said, tmp_path, monkeypatch):
    """As on a cold disk: the time of a question is the server's."""
    code = "import time\ntime.sleep(1)\nfrom fsspec.implementations.memory import MemoryFileSystem\n"
    (tmp_path / "slow_package.py").write_text(f"{code}class Slow(MemoryFileSystem):\n    protocol = 'slow'\n")
    monkeypatch.syspath_prepend(tmp_path)
    fsspec.register_implementation("slow", "slow_package.Slow", clobber=True)
    settings = Settings("slow://here", unsigned=True, timeout=0.9)
    assert Session(Remote(settings)).fetch(ONE.manifest.location.path, ONE.manifest.toolchain_key, cache) is None
    assert said() == []


def test_whatever_a_package_raises_is_tried_again_and_then_an_error(cache, said, monkeypatch, no_pauses):
    remote = Remote(Settings("memory://faulty", timeout=20))

    def fail(*_, **__):
        raise KeyError("deep inside")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.get_file", fail)
    assert Session(remote).fetch(ONE.manifest.location.path, ONE.manifest.toolchain_key, cache) is None
    assert "KeyError: 'deep inside'" in said()[0]


@pytest.fixture
def downloads(monkeypatch):
    """A store of fsspec that calls a function in place of a download: with a file to write to, and a callback."""

    def downloads(function):
        def get_file(_self, _path, to, callback):
            with Path(to).open("wb", buffering=0) as file:
                function(file, callback)

        monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.get_file", get_file)
        return Remote(Settings("memory://slow", unsigned=True, timeout=1))

    return downloads


def test_what_fsspec_downloads_may_take_longer_as_long_as_it_keeps_coming(downloads):
    def slow(file, callback):
        for _ in range(5):
            time.sleep(0.4)
            callback.relative_update(file.write(b"piece"))

    assert downloads(slow).get("x", times=10) == b"piece" * 5
    with pytest.raises(RemoteUnavailableError, match="no answer, for 1 s"):
        downloads(slow).get("x")


def test_a_download_by_fsspec_that_stalls_is_over_after_one_limit(downloads):
    over = threading.Event()

    def stall(file, callback):
        callback.relative_update(file.write(b"piece"))
        over.wait(60)

    start = time.monotonic()
    with pytest.raises(RemoteUnavailableError, match="no answer, for 1 s"):
        downloads(stall).get("x", times=30)
    assert time.monotonic() - start < 15  # not 30
    over.set()


def test_a_download_by_fsspec_that_nobody_waits_for_any_more_ends(downloads):
    over, ended = threading.Event(), threading.Event()

    def trickle(file, callback):
        try:
            while not over.wait(0.1):
                callback.relative_update(file.write(b"piece"))
        finally:
            ended.set()

    with pytest.raises(RemoteUnavailableError, match="no answer, for 1 s"):
        downloads(trickle).get("x")
    assert ended.wait(20)
    over.set()


def test_a_download_by_fsspec_of_too_many_bytes_ends_at_once(downloads):
    went_on = []

    def announced(file, callback):
        callback.set_size(101)
        went_on.append(file)

    def unannounced(file, callback):
        callback.relative_update(file.write(bytes(101)))
        went_on.append(file)

    def unreported(file, callback):
        file.write(bytes(101))

    for function in (announced, unannounced, unreported):
        with pytest.raises(RefusedObjectError, match="x has more than 100 bytes"):
            downloads(function).get("x", 100)
    assert went_on == []


def test_a_download_by_fsspec_is_a_file_that_nobody_else_can_replace(downloads, tmp_path, monkeypatch):
    """Also where another user can write to the directory of temporary files, and could replace what lies there."""
    shared, seen = tmp_path / "shared", []
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", None)
    private._of_process.cache_clear()

    def look(file, callback):
        seen.append(Path(f"/proc/self/fd/{file.fileno()}").readlink())
        file.write(b"piece")

    assert downloads(look).get("x") == b"piece"
    (file,) = seen
    assert private.process_directory() in file.parents
    assert shared not in file.parents
    assert not file.parent.exists()
    private._of_process.cache_clear()


def test_a_local_disk_without_room_is_no_failure_of_the_remote(downloads, cache, said, monkeypatch):
    def full(file, callback):
        raise OSError(errno.ENOSPC, "No space left on device")

    remote = downloads(full)
    asked, one = counts.stats(), Session(remote)
    assert one.fetch(ONE.manifest.location.path, ONE.manifest.toolchain_key, cache) is None
    assert counts.stats().requests == asked.requests + 2  # the index, and the object: each once
    assert not one._is_down
    assert len(said()) == 2
    text = (
        "is refused and not used: .* cannot be written to a temporary file of this machine: .*No space left on device"
    )
    assert all(re.search(text, warning) for warning in said())


def test_where_no_place_takes_a_temporary_file_the_remote_is_not_asked(downloads, monkeypatch):
    def closed():
        raise FileNotFoundError("there is no directory for temporary files")

    asked = []
    remote = downloads(lambda *_: asked.append(1))
    monkeypatch.setattr(private, "process_directory", closed)
    with pytest.raises(RefusedObjectError, match="of this machine: there is no directory for temporary files"):
        remote.get("x")
    assert asked == []


def test_a_package_that_lacks_another_is_one_plain_error(monkeypatch):
    """A file system may import what it needs when it is made."""
    from fsspec.implementations.memory import MemoryFileSystem

    class Lacking(MemoryFileSystem):
        protocol, cachable = "lacking", False

        def __init__(self, *_, **__):
            raise ImportError("Install what_is_missing")

    fsspec.register_implementation("lacking", Lacking, clobber=True)
    with pytest.raises(RemoteUnavailableError, match=r"^Install what_is_missing$"):
        stores.opened("lacking://here", check_owners=False).get("x", 1, LATER)


def test_a_question_ends_at_its_limit_whatever_it_does():
    def hang(_):
        time.sleep(120)

    with within(0.2), pytest.raises(RemoteUnavailableError, match=r"no answer, for 0\.2 s"):
        asking.ask(hang, 0.2)


def test_what_is_done_meanwhile_begins_after_the_question():
    asked, done = threading.Event(), threading.Event()

    def question(_):
        asked.set()
        return done.wait(50)

    assert asking.ask(question, 60, lambda: asked.wait(50) and done.set())


def test_where_no_thread_is_left_nothing_is_asked(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RemoteUnavailableError, match="can't start new thread"):
        asking.ask(lambda _: 1, 1)


def test_pauses_grow(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    def busy(_):
        if len(pauses) < 5:
            raise TryAgainError("busy")
        return "there"

    assert asking.ask(busy, 60) == "there"
    assert [round(pause, 3) for pause in pauses] == sorted(round(pause, 3) for pause in pauses) or max(pauses) > 0.8
    assert all(0.05 * 2**n <= pause <= 0.15 * 2**n for n, pause in enumerate(pauses))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("SGLJIT_REMOTE", "kernels", "must be a URL, such as https://host/kernels, or an absolute path; got 'kernels'"),
        ("SGLJIT_REMOTE_MODE", "write", "SGLJIT_REMOTE_MODE must be one of read, readwrite; got 'write'"),
        ("SGLJIT_REMOTE_UNSIGNED", "yes", "SGLJIT_REMOTE_UNSIGNED must be one of 0, 1; got 'yes'"),
        ("SGLJIT_REMOTE_TIMEOUT", "soon", "SGLJIT_REMOTE_TIMEOUT must be a number of seconds"),
        ("SGLJIT_REMOTE_TIMEOUT", "0", "more than 0 and at most 3600; got '0'"),
        ("SGLJIT_REMOTE_TIMEOUT", "nan", "got 'nan'"),
    ],
)
def test_a_setting_that_cannot_be_read(monkeypatch, name, value, text):
    monkeypatch.setenv("SGLJIT_REMOTE", "/kernels")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=text):
        config.settings()


def test_settings_are_read(monkeypatch, tmp_path):
    for name, value in {
        "SGLJIT_REMOTE": "https://host/kernels/",
        "SGLJIT_REMOTE_MODE": "readwrite",
        "SGLJIT_REMOTE_TIMEOUT": "1.5",
        "SGLJIT_REMOTE_UNSIGNED": "1",
        "SGLJIT_TRUSTED_KEYS": "/a:/b",
        "SGLJIT_SIGNING_KEY": "/c",
    }.items():
        monkeypatch.setenv(name, value)
    paths = [type(tmp_path)(name) for name in ("/a", "/b", "/c")]
    assert config.settings() == Settings("https://host/kernels", True, 1.5, True, tuple(paths[:2]), paths[2])


def test_the_same_artifacts_make_the_same_object():
    assert objects.pack([ONE, artifact(2)], None) == objects.pack([artifact(2), ONE], None)


@pytest.fixture
def reads(monkeypatch):
    """A line for each time that the certificates of this machine are read."""
    read, lines = ssl.SSLContext.load_default_certs, []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *args: lines.append("") or read(*args))
    return lines


def test_the_certificates_of_this_machine_are_read_once_where_tls_is_asked_for(server, tmp_path, monkeypatch, reads):
    """They take longer to read than an artifact takes to come. Python reads them for each request, or without TLS."""
    assert stores.opened(server.url, check_owners=False).get("x", 10, LATER) is None
    assert reads == []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = certificate(tmp_path)
    context.load_cert_chain(file, tmp_path / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    store = stores.opened(server.url.replace("http", "https"), check_owners=False)
    with pytest.raises(TryAgainError, match="CERTIFICATE_VERIFY_FAILED"):
        store.get("x", 10, LATER)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    store = stores.opened(server.url.replace("http", "https"), check_owners=False)
    assert store.put("x", b"content", LATER, replace=False)
    assert [store.get("x", 10, LATER) for _ in range(3)] == [b"content"] * 3
    assert len(reads) == 2


def test_the_certificates_are_read_before_the_time_of_a_question(reads):
    for url in ("http://host", "oci+http://host/kernels", "https://host", "oci://host/kernels"):
        stores.opened(url, check_owners=False).get_ready()
        assert len(reads) == {"http://host": 0, "oci+http://host/kernels": 0, "https://host": 1}.get(url, 2)


def test_a_redirect_to_tls_is_followed_and_its_certificate_is_looked_at(server, tmp_path, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = certificate(tmp_path)
    context.load_cert_chain(file, tmp_path / "tls.key")
    with running() as other:
        other.objects["/x"] = b"content"
        other.socket = context.wrap_socket(other.socket, server_side=True)
        server.fault = redirecting(other.url.replace("http", "https"))
        with pytest.raises(TryAgainError, match="CERTIFICATE_VERIFY_FAILED"):
            stores.opened(server.url, check_owners=False).get("x", 10, LATER)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert stores.opened(server.url, check_owners=False).get("x", 10, LATER) == b"content"


ASKED = """
import sys, time
from sgljit_remote import web
with web.Client().answered(sys.argv[1], time.monotonic() + 10) as answer:
    print(answer.read().decode(), "encodings.idna" in sys.modules)
"""


def test_a_request_imports_no_codec_of_international_names():
    """It would take as long as the request."""
    with running() as server:
        server.objects["/name"] = b"content"
        command = [sys.executable, "-c", ASKED, f"{server.url}/name"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "no_proxy": "*"})
    assert done.stdout == "content False\n"


def test_a_host_of_another_script_is_looked_up_as_text():
    answered = web.Client().answered("http://h\u00f6st.invalid/name", time.monotonic() + 10)
    with pytest.raises(TryAgainError, match=r"not known|resolution|No address"), answered:
        pass


def test_getting_ready_leaves_the_collector_to_the_program(remote, tmp_path):
    """A thread does it, meanwhile the program may switch the collector."""
    one = remote(f"file://{tmp_path}", unsigned=True)
    one._while_asking = [gc.disable, lambda: seen.append(gc.isenabled())]
    seen = []
    try:
        one.get_ready()
        assert seen == [True]
        assert not gc.isenabled()
    finally:
        gc.enable()
