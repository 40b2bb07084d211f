"""Artifacts that no compiler made, and a web server that can fail."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sgljit_core.cache.manifest import Manifest
from sgljit_remote.objects import Artifact


def artifact(number: int = 1, *, family: str = "norm", toolchain: str = "g++ 13", **fields: Any) -> Artifact:
    """An artifact whose keys and payload depend on a number."""
    payload = f"the payload {number}".encode() * 100
    manifest = {
        "payload": "module.so",
        "size": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
        "build": f"{family}.number<{number}> for cpu-x86_64",
        "target": "cpu-x86_64",
        "family": family,
        "module": "number",
        "markers": ("number", str(number)),
        "plugin": "",
        "core": "0.1.0",
        "command": "g++",
        "seconds": 1.0,
        "created": 1e9,
        "source": {"format": "1", "generated generated.cpp": str(number)},
        "toolchain": {"cxx": toolchain},
        "observed": {},
    }
    return Artifact(Manifest(**{**manifest, **fields}), payload)


def large_artifact() -> Artifact:
    """One of 2 MiB that no compression shrinks, so that a registry has it beside its manifest."""
    payload = random.Random(1).randbytes(2 << 20)
    return Artifact(artifact(size=len(payload), sha256=hashlib.sha256(payload).hexdigest()).manifest, payload)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        fault = self.server.fault
        if fault is not None and fault(self):
            return
        self.send(self.server.objects.get(self.path))

    def do_PUT(self) -> None:
        self.server.requests.append(f"PUT {self.path}")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.fault is not None and self.server.fault(self):
            return
        with self.server.writing:
            is_there = self.path in self.server.objects
            if not (is_there and self.headers["If-None-Match"] == "*"):
                self.server.objects[self.path] = content
                is_there = False
        self.send_response(412 if is_there else 201)
        self.end_headers()

    def send(self, content: bytes | None, length: int | None = None) -> None:
        if content is None:
            self.send_error(404)
            return
        length, tag = len(content) if length is None else length, self.server.tag_of(self.path)
        part = self.headers["Range"] if self.headers["If-Range"] == tag else None
        start = int(part.removeprefix("bytes=").removesuffix("-")) if part else 0
        if part and start >= length:
            self.send_error(416)
            return
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{length - 1}/{length}")
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(length - start))
        self.end_headers()
        self.wfile.write(content[start:])
        self.server.sent += len(content) - start

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A web server with some objects by path. ``fault`` gets each request, and answers it if it returns true."""

    daemon_threads = True
    request_queue_size = 64  # the kernel drops what comes beyond, and a client tries again after a second

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.fault: Callable[[Handler], bool] | None = None
        self.has_ranges, self.sent = False, 0
        self.writing = threading.Lock()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def tag_of(self, path: str) -> str:
        """What a server with ranges calls an object, as it is now."""
        return f'"{hashlib.sha256(self.objects[path]).hexdigest()}"' if self.has_ranges else ""

    def handle_error(self, *_: Any) -> None:
        pass  # a client that hangs up


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server while the block runs."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """The URL of a port that nobody listens on, and that no other server gets while the block runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def content_of(handler: Handler) -> bytes:
    return handler.server.objects[handler.path]


def reset(handler: Handler) -> bool:
    content = content_of(handler)
    handler.send(content[: len(content) // 2], len(content))
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    return True


def truncated(handler: Handler) -> bool:
    content = content_of(handler)
    handler.send(content[: len(content) // 2], len(content))
    return True


def shortened(handler: Handler) -> bool:
    content = content_of(handler)
    handler.send(content[: len(content) // 2])
    return True


def altered(handler: Handler) -> bool:
    content = bytearray(content_of(handler))
    content[len(content) // 2] ^= 1
    handler.send(bytes(content))
    return True


def nonsense(handler: Handler) -> bool:
    handler.send(b"<html>welcome to this network: please log in</html>")
    return True


def enormous(handler: Handler) -> bool:
    handler.send(b"", 1 << 40)
    return True


def stalled(handler: Handler) -> bool:
    handler.server.over.wait(120)
    return True


def stalling(handler: Handler) -> bool:
    """Sends a half, and then nothing."""
    content = content_of(handler)
    handler.send(content[: len(content) // 2], len(content))
    handler.wfile.flush()
    return stalled(handler)


def trickling(handler: Handler) -> bool:
    content = content_of(handler)
    handler.send(b"", len(content))
    return _trickle(handler, content)


def trickling_headers(handler: Handler) -> bool:
    return _trickle(handler, b"HTTP/1.0 200 OK\r\n" + b"X-Header: 1\r\n" * 1000)


def _trickle(handler: Handler, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        for byte in content:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            if handler.server.over.wait(0.05):
                break
    return True


def garbage(handler: Handler) -> bool:
    handler.wfile.write(b"no HTTP at all\r\n\r\n")
    return True


def status(code: int, times: int = 1 << 30) -> Callable[[Handler], bool]:
    """Answers with a status, for the first requests or for all."""
    left = [times]

    def fault(handler: Handler) -> bool:
        left[0] -= 1
        if left[0] < 0:
            return False
        handler.send_error(code)
        return True

    return fault


def redirecting(to: str) -> Callable[[Handler], bool]:
    """Answers with a redirect to another server."""

    def fault(handler: Handler) -> bool:
        handler.send_response(302)
        handler.send_header("Location", to + handler.path)
        handler.end_headers()
        return True

    return fault


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """The block ends in so many seconds, and those that a busy machine may take: a fault lasts for 120."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + 50
