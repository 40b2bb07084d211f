"""The counters of a process: its requests to a remote, and its refusals, each of which is one warning with a reason."""

from __future__ import annotations

import pytest

from sgljit_core import hookimpl
from sgljit_core.builds import record
from sgljit_core.errors import ConfigError
from sgljit_core.machine.forks import OncePerKey
from sgljit_core.plugins import hooks
from sgljit_remote import Stats, config, counts, objects, remote, stats, unbundle
from sgljit_remote.config import Settings
from sgljit_remote.errors import RefusedObjectError, UntrustedRemoteError
from sgljit_remote.index import Archive, dump
from sgljit_remote.objects import object_name
from sgljit_remote.remote import session as session_of

from . import served
from .served import artifact

ONE, OTHER = artifact(1), artifact(2)
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NAME = object_name(LOCATION, TOOLCHAIN)


@pytest.fixture(autouse=True)
def _from_zero(monkeypatch):
    monkeypatch.setattr(counts, "_counts", type(counts._counts)())


@pytest.fixture
def heard():
    """The events that a plugin hears: each with its place, its reason and a size."""
    events = []

    class Plugin:
        @hookimpl
        def sgljit_event(self, event, place, reason, size):
            events.append((event, place, reason, size))

    plugin = Plugin()
    hooks.load_plugins()
    record.event("earlier", "")  # tells what earlier tests have left
    hooks.manager().register(plugin)
    yield events
    hooks.manager().unregister(plugin)


def test_a_process_that_asked_nothing_has_counted_nothing():
    assert stats() == Stats(*[0] * len(Stats._fields))


def test_requests_bytes_and_artifacts_are_counted(server, session, cache):
    index, archive = (
        dump([Archive("a", "norm", "cpu-x86_64", 1, (ONE.place, OTHER.place))]),
        objects.pack([ONE, OTHER], None),
    )
    server.objects |= {"/sgljit-1/index.json": index, "/sgljit-1/archives/a.zip": archive}
    one = session()
    assert one.fetch(LOCATION, TOOLCHAIN, cache) == cache
    counted = stats()
    assert counted == Stats(2, len(index) + len(archive), 0, 0, 0, 2, 0)
    assert counted.requests == len(server.requests)
    own = artifact(3)
    one.publish(own)
    content = objects.pack([own], None)
    assert stats() == counted._replace(requests=4, bytes_written=2 * len(content), published=1)
    one.publish(own)  # it is there
    assert stats() == counted._replace(requests=6, bytes_written=2 * len(content), published=1)


def test_each_attempt_that_fails_is_counted(server, session, cache, said):
    server.fault = served.status(503, times=2)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert stats()[:5] == (4, 0, 0, 2, 0)
    assert said() == []
    server.fault = served.status(403)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert stats()[:5] == (5, 0, 0, 3, 0)
    assert len(said()) == 1


def test_each_refusal_is_counted_and_said_once(server, session, cache, said):
    server.objects[f"/{NAME}"] = objects.pack([OTHER], None)
    one = session()
    for _ in range(2):
        assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    assert stats().refusals == 2
    assert stats().artifacts == 0
    (warning,) = said()
    assert warning.startswith(f"{server.url}/{NAME} is refused and not used: it holds another artifact, {OTHER.place}")


def test_a_hook_hears_of_what_is_read_written_and_refused(server, session, cache, heard):
    content, place = objects.pack([OTHER], None), f"{server.url}/{NAME}"
    server.objects[f"/{NAME}"] = content
    one = session()
    for _ in range(2):  # a warning is given once
        assert one.fetch(LOCATION, TOOLCHAIN, cache) is None
    reason = f"it holds another artifact, {OTHER.place}"
    assert heard == 2 * [("read", place, "", len(content)), ("refusal", place, reason, len(content))]
    heard.clear()
    one.publish(ONE)
    content, names = objects.pack([ONE], None), (object_name(LOCATION, None), NAME)
    assert heard == [("written", f"{server.url}/{name}", "", len(content)) for name in names]


def test_a_hook_hears_of_each_failure(server, session, cache, heard):
    server.fault = served.status(503, times=2)
    index = f"{server.url}/sgljit-1/index.json"
    assert session().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert heard == 2 * [("failure", index, "it answers 503 Service Unavailable", 0)]
    heard.clear()
    server.fault = served.status(403)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert heard == [("failure", index, "it answers 403 Forbidden", 0)]


def test_a_hook_hears_of_a_remote_that_must_not_be_used_and_of_no_password(heard):
    assert session_of(Settings("https://user:secret@kernels.example/here?token=secret")) is None
    ((event, place, reason, _),) = heard
    assert (event, place) == ("refusal", "https://kernels.example/here")
    assert "SGLJIT_TRUSTED_KEYS" in reason


def test_a_bundle_that_is_refused_is_counted(tmp_path, monkeypatch, heard):
    (tmp_path / "a.bundle").write_bytes(b"nonsense")
    with pytest.raises(UntrustedRemoteError):
        unbundle(tmp_path / "a.bundle")
    assert stats().refusals == 1
    monkeypatch.setenv("SGLJIT_REMOTE_UNSIGNED", "1")
    with pytest.raises(RefusedObjectError):
        unbundle(tmp_path / "a.bundle")
    assert stats().refusals == 2
    assert [(event, place) for event, place, *_ in heard] == 2 * [("refusal", str(tmp_path / "a.bundle"))]
    assert all(reason for *_, reason, _ in heard)
    with pytest.raises(FileNotFoundError):
        unbundle(tmp_path / "missing.bundle")
    assert stats().refusals == 2


@pytest.mark.parametrize(("name", "value"), [("REMOTE", "https//host"), ("REMOTE_MODE", "write")])
def test_settings_that_are_wrong_are_one_refusal(monkeypatch, said, heard, name, value):
    monkeypatch.setattr(remote, "_wrong_settings", OncePerKey())
    monkeypatch.setenv("SGLJIT_REMOTE", "https://host/kernels")
    monkeypatch.setenv(f"SGLJIT_{name}", value)
    for _ in range(2):
        assert remote.current() is None
    assert stats().refusals == 1
    ((event, place, reason, size),) = heard
    assert (event, place, size) == ("refusal", "SGLJIT_REMOTE", 0)
    assert said() == [f"the remote is not used: {reason}"]
    assert f"SGLJIT_{name} must be" in reason


@pytest.mark.parametrize("host", ["[::1", "::1]", "h\u2100st"])
def test_a_url_whose_host_is_none_is_an_error_without_its_password(host, monkeypatch, said):
    url = f"https://user:secret@{host}/kernels?token=secret"
    with pytest.raises(ConfigError, match="SGLJIT_REMOTE must be a URL with a valid host") as raised:
        config.settings(url)
    assert str(raised.value).endswith(f"; got {f'https://{host}/kernels'!r}")
    assert raised.value.__suppress_context__
    monkeypatch.setenv("SGLJIT_REMOTE", url)
    assert remote.current() is None
    assert said() == [f"the remote is not used: {raised.value}"]


def test_a_remote_that_must_not_be_used_is_a_refusal(server, said):
    assert session_of(Settings(server.url)) is None
    assert stats().refusals == 1
    assert stats().requests == 0
    assert server.url in said()[0]
