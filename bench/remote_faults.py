"""What does each fault of a store cost a process that starts from it?

A server of this machine has one artifact, signed, and fails in one way. A session asks it for the artifact as a process
without a compiler would, and once more. Told are the seconds of both questions beside the limit, the requests, the
warnings, and whether the artifact was taken. Each that is taken is compared with what was published.

    python bench/remote_faults.py [--timeout 2] [--output bench/results/remote_faults.md]

It exits with status 1 if a question took longer than its limit and a second, or something else was taken than was
published. Needs sgljit-remote with its tests, and neither a compiler nor a GPU.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

from sgljit_remote import index, objects, signing
from sgljit_remote.config import Settings
from sgljit_remote.remote import Remote, Session
from sgljit_remote.tests import served

ONE = served.artifact()
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NAME = objects.object_name(LOCATION, TOOLCHAIN)
Prepare = Callable[[served.Server, Path], Any]


def fails(fault: Callable[[served.Handler], bool], *, index_too: bool = False) -> Prepare:
    """The fault for the artifact, or for each request."""

    def prepare(server: served.Server, directory: Path) -> None:
        server.fault = lambda handler: (index_too or handler.path == f"/{NAME}") and fault(handler)

    return prepare


def holds(content: Callable[[bytes], bytes]) -> Prepare:
    """Another content of the object."""
    return lambda server, directory: server.objects.update({f"/{NAME}": content(server.objects[f"/{NAME}"])})


def has_index(content: bytes) -> Prepare:
    return lambda server, directory: server.objects.update({f"/{index.NAME}": content})


def of_a_stranger(server: served.Server, directory: Path) -> None:
    signing.new_key(directory / "stranger")
    server.objects[f"/{NAME}"] = objects.pack([ONE], signing.private_key(directory / "stranger"))


def of_another_artifact(server: served.Server, directory: Path) -> None:
    server.objects[f"/{NAME}"] = objects.pack([served.artifact(2)], signing.private_key(directory / "own"))


def archive_that(fault: Callable[[served.Handler], bool]) -> Prepare:
    """The index lists an archive of the artifact's family, which fails."""

    def prepare(server: served.Server, directory: Path) -> None:
        archive = index.Archive("cpu-x86_64.norm", "norm", "cpu-x86_64", 1, (ONE.place,))
        server.objects |= {f"/{index.NAME}": index.dump([archive]), f"/{archive.object_name}": bytes(1 << 12)}
        server.fault = lambda handler: handler.path == f"/{archive.object_name}" and fault(handler)

    return prepare


def two_writers(server: served.Server, directory: Path) -> None:
    del server.objects[f"/{NAME}"]
    settings = {"trusted_keys": (directory / "trusted",), "signing_key": directory / "own"}
    writers = [Remote(Settings(server.url, is_writable=True, **settings)) for _ in range(2)]
    threads = [threading.Thread(target=one.publish_one, args=(ONE, one.signer())) for one in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def key_of_a_year(server: served.Server, directory: Path) -> None:
    """The one key that is trusted is valid for a year."""
    place = directory / "trusted" / "own.pub"
    until = datetime.now(timezone.utc).date() + timedelta(days=365)
    place.write_text(f"valid-until: {until}\n{place.read_text()}")


@contextmanager
def clock(years: int) -> Iterator[None]:
    """The clock of this machine is so many years ahead."""
    wrong = mock.Mock(wraps=datetime)
    wrong.now = lambda zone: datetime.now(zone) + timedelta(days=365 * years)
    with mock.patch.object(signing, "datetime", wrong):
        yield


def nothing(server: served.Server, directory: Path) -> None:
    pass


# By name: the fault, whether the artifact is taken, and the years that the clock is ahead.
CASES: dict[str, tuple[Prepare, bool, int]] = {
    "none": (nothing, True, 0),
    "connection refused": (nothing, False, 0),
    "reset in mid-transfer": (fails(served.reset), False, 0),
    "reset, the index too": (fails(served.reset, index_too=True), False, 0),
    "status 403": (fails(served.status(403)), False, 0),
    "status 404": (fails(served.status(404)), False, 0),
    "status 500": (fails(served.status(500)), False, 0),
    "status 503": (fails(served.status(503)), False, 0),
    "status 503, twice": (fails(served.status(503, 2)), True, 0),
    "truncated body": (fails(served.truncated), False, 0),
    "shortened body": (fails(served.shortened), False, 0),
    "altered body": (holds(lambda content: bytes(b ^ (i % 50 == 49) for i, b in enumerate(content))), False, 0),
    "a login page": (fails(served.nonsense), False, 0),
    "a terabyte": (fails(served.enormous), False, 0),
    "no HTTP": (fails(served.garbage), False, 0),
    "stall": (fails(served.stalled), False, 0),
    "stall, the index too": (fails(served.stalled, index_too=True), False, 0),
    "trickle": (fails(served.trickling), False, 0),
    "trickle of headers": (fails(served.trickling_headers), False, 0),
    "index that is none": (has_index(b"<html>"), True, 0),
    "index of another format": (has_index(b'{"format": 9, "archives": []}'), True, 0),
    "archive that is not there": (archive_that(served.status(404)), True, 0),
    "archive: status 403": (archive_that(served.status(403)), False, 0),
    "archive: status 503": (archive_that(served.status(503)), False, 0),
    "archive: stall": (archive_that(served.stalled), False, 0),
    "archive: stall after a half": (archive_that(served.stalling), False, 0),
    "archive: shortened body": (archive_that(served.shortened), True, 0),
    "unsigned object": (holds(lambda _: objects.pack([ONE], None)), False, 0),
    "object of a stranger": (of_a_stranger, False, 0),
    "object of another artifact": (of_another_artifact, False, 0),
    "two writers": (two_writers, True, 0),
    "clock ten years ahead": (nothing, True, 10),
    "clock ten years ahead, key of a year": (key_of_a_year, False, 10),
    "clock ten years behind, key of a year": (key_of_a_year, True, -10),
}


class Warnings(logging.Handler):
    """The warnings that were given."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def tried(prepare: Prepare, name: str, years: int, timeout: float, directory: Path) -> dict[str, Any]:
    """The figures of a case."""
    (directory / "trusted").mkdir(mode=0o755)
    signing.new_key(directory / "own").rename(directory / "trusted" / "own.pub")
    seen = Warnings()
    logging.getLogger("sgljit").addHandler(seen)
    cache = directory / "cache"
    with served.running() as server, served.refusing() as nobody, clock(years):
        server.objects[f"/{NAME}"] = objects.pack([ONE], signing.private_key(directory / "own"))
        prepare(server, directory)
        server.requests.clear()
        url = nobody if name == "connection refused" else server.url
        seconds, taken = [], []
        begin = time.perf_counter()
        try:
            session = Session(Remote(Settings(url, timeout=timeout, trusted_keys=(directory / "trusted",))))
        except ValueError as error:  # no key counts: in a process that is a warning, and nothing is asked
            seen.texts.append(str(error))
            session = None
        for _ in range(2):
            root = session.fetch(LOCATION, TOOLCHAIN, cache) if session else None
            taken.append(root is not None)
            seconds.append(time.perf_counter() - begin)
            begin = time.perf_counter()
        requests = len(server.requests)
    logging.getLogger("sgljit").removeHandler(seen)
    is_right = not taken[0] or (cache / ONE.place / ONE.manifest.payload).read_bytes() == ONE.payload
    return {"seconds": seconds, "taken": taken[0], "right": is_right, "requests": requests, "said": seen.texts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds for an artifact, as SGLJIT_REMOTE_TIMEOUT")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.lastResort = None  # the warnings are counted
    rows, wrong = [], []
    for name, (prepare, is_taken, years) in CASES.items():
        with tempfile.TemporaryDirectory() as directory:
            found = tried(prepare, name, years, options.timeout, Path(directory))
        is_late = max(found["seconds"]) > options.timeout + 1
        if is_late or found["taken"] != is_taken or not found["right"]:
            wrong.append(name)
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
        f"One signed artifact on a web server of this machine, which fails in one way; {options.timeout:g} s are the "
        "limit of a question, with all attempts. Goals: nothing unverified is taken, no question takes longer than its "
        f"limit and a second, and each fault is one warning. {len(wrong)} of {len(rows)} cases miss them."
    )
    page = results.write_results(options.output, "Faults of a store", {"": rows}, note=note, device="cpu")
    print(page, end="")
    print("\n".join(f"wrong: {name}" for name in wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
