"""What the tests of sgljit-remote share: an empty cache, no remote but their own, keys, a server."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sgljit_core import log
from sgljit_remote import archives, asking, handed, signing, transfer
from sgljit_remote.config import Settings
from sgljit_remote.remote import Remote, Session, put_in_place

from . import served
from .forks import Forks, forks
from .real import azure, bucket, cloud, google, nginx, running  # noqa: F401 - fixtures

# Warnings of a build that takes long, as each does on a busy machine.
_LATE = re.compile(r"^(?:waiting for process|still compiling) .*\n", re.MULTILINE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of an empty cache; the environment names no remote, and no warning was given yet.

    A warning is given once for each remote, and the server of a test may get the port that another test's had.
    """
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setattr(archives, "PAUSE", 0.0)
    for name in ("REMOTE", "REMOTE_MODE", "REMOTE_TIMEOUT", "REMOTE_UNSIGNED", "TRUSTED_KEYS", "SIGNING_KEY"):
        monkeypatch.delenv(f"SGLJIT_{name}", raising=False)
    root = tmp_path / "cache"
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(root))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return root


@pytest.fixture(params=["0", "1"])
def waived(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether shared caches are trusted: what is no cache is checked all the same."""
    monkeypatch.setenv("SGLJIT_TRUST_SHARED_CACHE", request.param)


@pytest.fixture
def server() -> Iterator[served.Server]:
    with served.running() as one:
        yield one


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The file of a private key; its public key is alone in the directory ``trusted``."""
    file = tmp_path / "own"
    trusted = tmp_path / "trusted"
    trusted.mkdir(mode=0o755)
    signing.new_key(file).rename(trusted / "own.pub")
    return file


@pytest.fixture
def remote(server: served.Server) -> Callable[..., Remote]:
    """The remote of the server, unsigned; a busy machine has time."""

    def remote(url: str = "", **settings: Any) -> Remote:
        return Remote(Settings(**{"url": url or server.url, "unsigned": True, "timeout": 20, **settings}))

    return remote


@pytest.fixture
def session(remote: Callable[..., Remote]) -> Iterator[Callable[..., Session]]:
    made = []

    def session(*args: Any, **settings: Any) -> Session:
        made.append(Session(remote(*args, **settings)))
        return made[-1]

    yield session
    for key, held in ((key, held) for one in made for key, held in one._leased.items()):
        handed.leased.pop(key, None)
        held.is_over.set()  # else it is renewed on a server that is gone, which the next tests count
        if held._thread.is_alive():
            held._thread.join(5)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between two attempts takes no time, and counts as if it did: no test waits for a long limit."""
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=sleep)
    monkeypatch.setattr(asking, "time", clock)


@pytest.fixture
def signed(key: Path) -> dict[str, Any]:
    """The settings of a remote whose objects are signed."""
    return {"unsigned": False, "trusted_keys": (key.parent / "trusted",), "signing_key": key}


@pytest.fixture
def pushed(cache: Path, remote: Callable[..., Remote], signed: dict[str, Any]) -> Callable[[str], None]:
    """Push two artifacts to a URL, as single objects and as an archive."""

    def pushed(url: str) -> None:
        for number in (1, 2):
            put_in_place(served.artifact(number), cache)
        choice = transfer.Choice()
        assert transfer.push(remote(url, **signed), cache, choice, dry_run=False, progress=lambda _: None) == 2

    return pushed


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings that were given, but for those of other packages: Google's have no credentials, and say so."""

    def said() -> list[str]:
        own = (record for record in caplog.records if record.name.startswith("sgljit"))
        return [record.getMessage() for record in own if record.levelname == "WARNING"]

    return said


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(tmp_path_factory.mktemp("programs")) as made:
        yield made


@pytest.fixture
def run(server: served.Server, programs: Forks, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Run a program with the server as its remote, for which a busy machine has time; its standard output and error."""

    def run(code: str, *arguments: str, cache: str, status: int = 0, **environment: str) -> tuple[str, str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("SGLJIT_")}
        variables |= {"SGLJIT_CACHE_DIR": str(tmp_path / cache), "SGLJIT_REMOTE": server.url}
        variables |= {"SGLJIT_REMOTE_TIMEOUT": "20", **environment}
        done = programs.run(code, *arguments, env=variables, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        return done.stdout, _LATE.sub("", done.stderr)

    return run


def files(root: Path) -> list[str]:
    """The artifacts below a root."""
    found = (path.parent for path in root.glob("[!.]*/*/*/*/*/manifest.json"))
    return sorted(os.fspath(path.relative_to(root)) for path in found)
