"""What does each fault of a store cost a process that starts from it?

A store of this machine has one artifact, signed, and fails in one way: a web server of this program, a directory, and
moto's S3 server and Debian's registry behind a connection that fails. A session asks it for the artifact, and once
more. Told are the seconds of both questions beside the limit, the requests, the warnings, and whether the artifact was
taken. Each that is taken is compared with what was published.

    python bench/remote_faults.py [--timeout 2] [--output bench/results/remote_faults.md]

It exits with status 1 if a question took longer than its limit and a second, or something else was taken than was
published. Needs sgljit-remote with its tests, and neither a compiler nor a GPU. The page says which of the two servers
is not installed (``pip install "moto[server]" s3fs``, ``apt-get install docker-registry``).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlsplit

from sgljit_remote import index, lease, objects, signing, stats, stores
from sgljit_remote.config import Settings
from sgljit_remote.objects import Artifact
from sgljit_remote.remote import Remote, Session
from sgljit_remote.tests import real, served

ONE, LARGE = served.artifact(), served.large_artifact()
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NAME = objects.object_name(LOCATION, TOOLCHAIN)
MIDST = 1 << 20  # bytes of LARGE that come before a fault


@dataclass
class Scene:
    """A web server that has ONE, signed; a case changes it, or asks another store.

    Attributes:
        directory: of this case; it has the key ``own``, and the directory ``trusted``.
        stack: ends when the case is over, as ``over`` is set.
        artifact: what the store has.
        settings: of the session that asks, beside those of every case.
    """

    server: served.Server
    directory: Path
    stack: contextlib.ExitStack
    artifact: Artifact = ONE
    settings: dict[str, Any] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def publish(self, url: str, artifact: Artifact) -> None:
        """Have a store with an artifact, and ask that one."""
        trusted = (self.directory / "trusted",)
        remote = Remote(Settings(url, timeout=60, trusted_keys=trusted, signing_key=self.directory / "own"))
        remote.publish_one(artifact, remote.signer())
        self.artifact, self.settings["url"] = artifact, url


Prepare = Callable[[Scene], Any]


def fails(fault: Callable[[served.Handler], bool], *, index_too: bool = False) -> Prepare:
    """The fault for the artifact, or for each request."""

    def prepare(scene: Scene) -> None:
        scene.server.fault = lambda handler: (index_too or handler.path == f"/{NAME}") and fault(handler)

    return prepare


def holds(content: Callable[[bytes], bytes]) -> Prepare:
    """Another content of the object."""
    return lambda scene: scene.server.objects.update({f"/{NAME}": content(scene.server.objects[f"/{NAME}"])})


def has_index(content: bytes) -> Prepare:
    return lambda scene: scene.server.objects.update({f"/{index.NAME}": content})


def of_a_stranger(scene: Scene) -> None:
    signing.new_key(scene.directory / "stranger")
    scene.server.objects[f"/{NAME}"] = objects.pack([ONE], signing.private_key(scene.directory / "stranger"))


def of_another_artifact(scene: Scene) -> None:
    key = signing.private_key(scene.directory / "own")
    scene.server.objects[f"/{NAME}"] = objects.pack([served.artifact(2)], key)


def broken_off(scene: Scene) -> None:
    """A server with ranges sends a half. If all of it is asked for again, there is nothing."""
    scene.server.has_ranges, asked = True, []

    def fault(handler: served.Handler) -> bool:
        if handler.path != f"/{NAME}":
            return False
        asked.append(handler.headers["Range"])
        if len(asked) == 1:
            return served.truncated(handler)
        return asked[1] is None and served.status(404)(handler)

    scene.server.fault = fault


def archive_that(fault: Callable[[served.Handler], bool]) -> Prepare:
    """The index lists an archive of the artifact's family, which fails."""

    def prepare(scene: Scene) -> None:
        server = scene.server
        archive = index.Archive("cpu-x86_64.norm", "norm", "cpu-x86_64", 1, (ONE.place,))
        server.objects |= {f"/{index.NAME}": index.dump([archive]), f"/{archive.object_name}": bytes(1 << 12)}
        server.fault = lambda handler: handler.path == f"/{archive.object_name}" and fault(handler)

    return prepare


def two_writers(scene: Scene) -> None:
    del scene.server.objects[f"/{NAME}"]
    settings = {"trusted_keys": (scene.directory / "trusted",), "signing_key": scene.directory / "own"}
    writers = [Remote(Settings(scene.server.url, is_writable=True, **settings)) for _ in range(2)]
    threads = [threading.Thread(target=one.publish_one, args=(ONE, one.signer())) for one in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def of_a_machine_that_died(scene: Scene) -> None:
    """Nothing is there but the lease of a machine that compiles no more; this one publishes what it compiles."""
    scene.server.objects = {f"/{lease.lease_name(NAME)}": b"of a machine that died"}
    scene.settings |= {"is_writable": True, "signing_key": scene.directory / "own"}


def key_of_a_year(scene: Scene) -> None:
    """The one key that is trusted is valid for a year."""
    place = scene.directory / "trusted" / "own.pub"
    until = datetime.now(timezone.utc).date() + timedelta(days=365)
    place.write_text(f"valid-until: {until}\n{place.read_text()}")


@contextlib.contextmanager
def clock(years: int) -> Iterator[None]:
    """The clock of this machine is so many years ahead."""
    wrong = mock.Mock(wraps=datetime)
    wrong.now = lambda zone: datetime.now(zone) + timedelta(days=365 * years)
    with mock.patch.object(signing, "datetime", wrong):
        yield


def nothing(scene: Scene) -> None:
    pass


def refusing(scene: Scene) -> None:
    scene.settings["url"] = scene.stack.enter_context(served.refusing())


def directory(fault: Prepare) -> Prepare:
    """A shared directory has the artifact."""

    def prepare(scene: Scene) -> None:
        store = scene.directory / "store"
        store.mkdir()
        scene.publish(str(store), ONE)
        fault(scene)

    return prepare


def hanging(scene: Scene) -> None:
    """The file server of the directory answers no more."""

    def hang(_: object, name: str) -> int:
        scene.over.wait(120)
        raise FileNotFoundError(name)

    scene.stack.enter_context(mock.patch.object(stores.DirectoryStore, "_open", hang))


def unreadable(scene: Scene) -> None:
    """The artifact is a file that opens, and that the kernel cannot read: an input/output error."""
    file = Path(scene.settings["url"], NAME)
    file.unlink()
    file.symlink_to("/proc/self/mem")


def unmounted(scene: Scene) -> None:
    store = Path(scene.settings["url"])
    store.rename(store.with_name("elsewhere"))


def bucket(fault: str, left: int = 0, times: int = 1 << 30) -> Prepare:
    """moto's S3 server has the artifact, behind a connection that fails as ``real.Proxy`` does."""

    def prepare(scene: Scene) -> None:
        scene.stack.enter_context(mock.patch.dict(os.environ))
        url, _ = scene.stack.enter_context(real.s3(os.environ.__setitem__))
        scene.publish(url, LARGE)
        port = behind(scene, urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0, fault, left, times)
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()

    return prepare


def registry(fault: str, left: int = 0, times: int = 1 << 30) -> Prepare:
    """The same of Debian's registry."""

    def prepare(scene: Scene) -> None:
        host = scene.stack.enter_context(real.registry(scene.directory / "registry"))
        scene.publish(f"oci+http://{host}/kernels", LARGE)
        port = behind(scene, int(host.rpartition(":")[2]), fault, left, times)
        scene.settings["url"] = f"oci+http://127.0.0.1:{port}/kernels"

    return prepare


def behind(scene: Scene, port: int, fault: str, left: int, times: int) -> int:
    """The port of a connection to another port, which fails."""
    between = scene.stack.enter_context(real.proxy(port))
    between.fault, between.left, between.times = fault, left, times
    return between.port


class Case(NamedTuple):
    """A fault.

    Attributes:
        is_taken: whether the artifact is.
        years: the clock of this machine is so many ahead.
        limit: seconds of a question; that of the program where it is 0.
    """

    prepare: Prepare
    is_taken: bool
    years: int = 0
    limit: float = 0


def through(store: Callable[..., Prepare]) -> dict[str, Case]:
    """The connection to a store fails in each way."""
    return {
        "no fault": Case(store(""), True),
        "reset": Case(store("reset"), False),
        "stall": Case(store("stalled"), False),
        "trickle": Case(store("trickling"), False),
        "reset in mid-transfer": Case(store("reset", MIDST), False),
        "closed in mid-transfer": Case(store("cut", MIDST), False),
        "stall in mid-transfer": Case(store("stalled", MIDST), False),
        "trickle in mid-transfer": Case(store("trickling", MIDST), False),
        "reset in mid-transfer, once": Case(store("reset", MIDST, 1), True),
    }


WEB_SERVER = {
    "no fault": Case(nothing, True),
    "connection refused": Case(refusing, False),
    "reset in mid-transfer": Case(fails(served.reset), False),
    "reset, the index too": Case(fails(served.reset, index_too=True), False),
    "status 403": Case(fails(served.status(403)), False),
    "status 404": Case(fails(served.status(404)), False),
    "status 500": Case(fails(served.status(500)), False),
    "status 503": Case(fails(served.status(503)), False),
    "status 503, twice": Case(fails(served.status(503, 2)), True),
    "truncated body": Case(fails(served.truncated), False),
    "shortened body": Case(fails(served.shortened), False),
    "broken off, then resumed": Case(broken_off, True),
    "altered body": Case(holds(lambda content: bytes(b ^ (i % 50 == 49) for i, b in enumerate(content))), False),
    "a login page": Case(fails(served.nonsense), False),
    "a terabyte": Case(fails(served.enormous), False),
    "no HTTP": Case(fails(served.garbage), False),
    "stall": Case(fails(served.stalled), False),
    "stall, the index too": Case(fails(served.stalled, index_too=True), False),
    "trickle": Case(fails(served.trickling), False),
    "trickle of headers": Case(fails(served.trickling_headers), False),
    "index that is none": Case(has_index(b"<html>"), True),
    "index of another format": Case(has_index(b'{"format": 9, "archives": []}'), True),
    "archive that is not there": Case(archive_that(served.status(404)), True),
    "archive: status 403": Case(archive_that(served.status(403)), False),
    "archive: status 503": Case(archive_that(served.status(503)), False),
    "archive: stall": Case(archive_that(served.stalled), False),
    "archive: stall after a half": Case(archive_that(served.stalling), False),
    "archive: shortened body": Case(archive_that(served.shortened), True),
    "unsigned object": Case(holds(lambda _: objects.pack([ONE], None)), False),
    "object of a stranger": Case(of_a_stranger, False),
    "object of another artifact": Case(of_another_artifact, False),
    "two writers": Case(two_writers, True),
    "lease of a machine that died": Case(of_a_machine_that_died, False, limit=lease.SECONDS),
    "clock ten years ahead": Case(nothing, True, 10),
    "clock ten years ahead, key of a year": Case(key_of_a_year, False, 10),
    "clock ten years behind, key of a year": Case(key_of_a_year, True, -10),
}
DIRECTORY = {
    "no fault": Case(directory(nothing), True),
    "hangs": Case(directory(hanging), False),
    "input/output error": Case(directory(unreadable), False),
    "not mounted": Case(directory(unmounted), False),
}
# By heading.
STORES = {
    "A web server": WEB_SERVER,
    "A directory": DIRECTORY,
    "An S3 server": through(bucket),
    "A registry of container images": through(registry),
}


class Warnings(logging.Handler):
    """The warnings that were given."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def tried(case: Case, timeout: float, place: Path) -> dict[str, Any]:
    """The figures of a case."""
    (place / "trusted").mkdir(mode=0o755)
    signing.new_key(place / "own").rename(place / "trusted" / "own.pub")
    seen, cache = Warnings(), place / "cache"
    seconds, taken = [], []
    with contextlib.ExitStack() as stack:
        scene = Scene(stack.enter_context(served.running()), place, stack)
        scene.server.objects[f"/{NAME}"] = objects.pack([ONE], signing.private_key(place / "own"))
        case.prepare(scene)
        stack.callback(scene.over.set)
        stack.enter_context(clock(case.years))
        logging.getLogger("sgljit").addHandler(seen)
        stack.callback(logging.getLogger("sgljit").removeHandler, seen)
        settings = {"url": scene.server.url, "timeout": timeout, "trusted_keys": (place / "trusted",)}
        before, begin = stats().requests, time.perf_counter()
        try:
            session = Session(Remote(Settings(**{**settings, **scene.settings})))
        except ValueError as error:  # no key counts: in a process that is a warning, and nothing is asked
            seen.texts.append(str(error))
            session = None
        for _ in range(2):
            root = session.fetch(LOCATION, TOOLCHAIN, cache) if session else None
            taken.append(root is not None)
            seconds.append(time.perf_counter() - begin)
            begin = time.perf_counter()
        requests = stats().requests - before
        if session:
            session.release(LOCATION.name)  # or a lease of it is renewed while other cases run
    one = scene.artifact
    is_right = not taken[0] or (cache / one.place / one.manifest.payload).read_bytes() == one.payload
    return {"seconds": seconds, "taken": taken[0], "right": is_right, "requests": requests, "said": seen.texts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds for an artifact, as SGLJIT_REMOTE_TIMEOUT")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.lastResort = None  # the warnings are counted
    logging.getLogger("werkzeug").disabled = True  # moto's, of each request
    missing = {} if real.has_s3() else {"An S3 server": 'pip install "moto[server]" s3fs'}
    missing |= {} if real.REGISTRY else {"A registry of container images": "apt-get install docker-registry"}
    tables: dict[str, list[dict[str, Any]]] = {heading: [] for heading in STORES if heading not in missing}
    wrong = []
    for heading, rows in tables.items():
        for name, case in STORES[heading].items():
            with tempfile.TemporaryDirectory() as place:
                found = tried(case, options.timeout, Path(place))
            limit = case.limit or options.timeout
            if max(found["seconds"]) > limit + 1 or found["taken"] != case.is_taken or not found["right"]:
                wrong.append(f"{heading}: {name}")
            rows.append(
                {
                    "fault": name,
                    "the artifact": "taken" if found["taken"] else "not used",
                    "first question, s": f"{found['seconds'][0]:.2f}",
                    "second question, s": f"{found['seconds'][1]:.2f}",
                    "requests": found["requests"],
                    "warnings": len(found["said"]),
                }
            )
    from sgljit_tools.benchmark import results

    note = (
        f"One signed artifact in a store of this machine, which fails in one way; {options.timeout:g} s are the limit "
        f"of a question, with all attempts, and {lease.SECONDS:g} s that of a wait for a machine that died. Goals: "
        "nothing unverified is taken, no question takes longer than its limit and a second, and each fault is one "
        f"warning. {len(wrong)} of {sum(map(len, tables.values()))} cases miss them. Requests are those of objects, "
        "each attempt for itself."
    )
    note += "".join(f" {heading} was not installed: {remedy}." for heading, remedy in missing.items())
    note += (
        "\n\nA directory that hangs is one whose open call this program holds up. The S3 server is moto's, and the "
        f"registry Debian's; both are behind a connection that fails, at once or after {MIDST >> 20} MiB of answers. "
        "They have an artifact of 2 MiB."
    )
    page = results.write_results(options.output, "Faults of a store", tables, note=note, device="cpu")
    print(page, end="")
    print("\n".join(f"wrong: {name}" for name in wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
