"""Servers that others wrote: nginx and a registry of container images from Debian, and servers of buckets.

nginx serves most files of the web, and docker-registry is the one that other registries are built on. moto is the S3
server that installs from PyPI, in Python alone, and gcp-storage-emulator is the same for Google's buckets: `make
setup-servers` installs both. Azurite, which Microsoft wrote for Azure's buckets, installs from npm. With
``TEST_SERVERS=1`` a test fails whose server is missing, as in continuous integration; else it is skipped.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
REGISTRY = shutil.which("docker-registry")
AZURITE = shutil.which("azurite-blob")
AZURITES_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # in its docs
CONFIGURATION = """
{user}
daemon off;
error_log {place}/error.log;
pid {place}/pid;
events {{}}
http {{
  access_log {place}/access.log;
  client_body_temp_path {place}/body;
  proxy_temp_path {place}/proxy;
  fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi;
  scgi_temp_path {place}/scgi;
  client_max_body_size 2g;
  server {{
    listen 127.0.0.1:{port} {tls};
    root {place}/store;
    location / {{ dav_methods PUT; create_full_put_path on; }}
    location /busy/ {{ return 503; }}
  }}
}}
"""


def missing(remedy: str) -> NoReturn:
    """End a test for which a server, or Ray, is not installed."""
    if os.environ.get("TEST_SERVERS") == "1":
        pytest.fail(f"a server is missing, and TEST_SERVERS=1 says that none is: {remedy}")
    pytest.skip(remedy)


@pytest.fixture
def nginx(tmp_path):
    """Start nginx on a socket that it inherits; the port, and the directory that it serves."""
    if NGINX is None:
        missing("apt-get install nginx")
    place, running = tmp_path / "nginx", []
    (place / "store").mkdir(parents=True)
    user = "user root;" if os.geteuid() == 0 else ""  # else its workers could not read the directories of tests

    def start(tls=""):
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        file = place / "nginx.conf"
        file.write_text(CONFIGURATION.format(user=user, place=place, port=port, tls="ssl; " + tls if tls else ""))
        command = [NGINX, "-c", file, "-e", place / "error.log", "-p", place]
        with listening:
            inherits = {"env": {**os.environ, "NGINX": f"{listening.fileno()};"}, "pass_fds": [listening.fileno()]}
            running.append(subprocess.Popen(command, **inherits))
        return port, place

    yield start
    for process in running:
        process.terminate()
        process.wait(10)


@pytest.fixture
def bucket(monkeypatch):
    """The URL of a bucket of a server, and the server."""
    if not has_s3():
        missing('pip install "moto[server]" s3fs')
    with s3(monkeypatch.setenv) as made:
        yield made


def has_s3() -> bool:
    """Whether the S3 server and what reads it are installed."""
    try:
        import s3fs  # noqa: F401
        from moto import server  # noqa: F401
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def s3(setenv: Callable[[str, str], object]) -> Iterator[tuple[str, Any]]:
    """The URL of a bucket, and its server while the block runs. ``setenv`` names the server in the environment."""
    import s3fs
    from moto import server

    s3fs.S3FileSystem.clear_instance_cache()
    running = server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        setenv(name, value)
    name = f"kernels-{uuid.uuid4().hex[:8]}"
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/here", running
    running.stop()


@pytest.fixture
def google(monkeypatch):
    """The URL of a bucket of Google's emulator, which knows no conditions, and what stops it."""
    try:
        import gcsfs
        from gcp_storage_emulator.server import create_server
    except ImportError:
        missing("pip install gcp-storage-emulator gcsfs")
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # for credentials, it asks the machine that it takes for Google's
    gcsfs.GCSFileSystem.clear_instance_cache()
    running = create_server("127.0.0.1", 0, in_memory=True, default_bucket="kernels")
    running.start()
    port = running._api._httpd.server_address[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    stop = contextlib.ExitStack()
    stop.callback(running.stop)
    yield "gs://kernels/here", stop.close
    stop.close()


@pytest.fixture
def azure(monkeypatch, tmp_path):
    """The URL of a bucket of Azure's emulator, and what stops it."""
    try:
        import adlfs
    except ImportError:
        missing("pip install adlfs")
    if AZURITE is None:
        missing("npm install --global azurite")
    adlfs.AzureBlobFileSystem.clear_instance_cache()
    command = [AZURITE, "--blobPort", "0", "--silent", "--inMemoryPersistence", "--skipApiVersionCheck"]
    command.append("--disableTelemetry")
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = []
            while not (found := re.search(r"successfully listens on (http://\S+)", "".join(said[-1:]))):
                said.append(process.stdout.readline())
                assert said[-1], said
            account = f"AccountName=devstoreaccount1;AccountKey={AZURITES_KEY}"
            account = f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={found[1]}/devstoreaccount1;"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
            adlfs.AzureBlobFileSystem().mkdir("kernels")
            yield "az://kernels/here", process.terminate
        finally:
            process.terminate()


@pytest.fixture(params=["bucket", "google", "azure"])
def cloud(request):
    """The URL of a bucket of each kind, and what stops its server."""
    url, server = request.getfixturevalue(request.param)
    return url, getattr(server, "stop", server)


@pytest.fixture
def running(tmp_path):
    """Start Debian's registry with lines of its configuration; host and port."""
    if REGISTRY is None:
        missing("apt-get install docker-registry")
    with contextlib.ExitStack() as stack:
        yield lambda more="": stack.enter_context(registry(tmp_path / "registry", more))


@contextlib.contextmanager
def registry(place: Path, more: str = "") -> Iterator[str]:
    """Debian's registry in a new directory while the block runs; host and port."""
    place.mkdir()
    text = f"version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
    (place / "config.yml").write_text(f"{text}http: {{addr: '127.0.0.1:0'}}\n{more}")
    command = [str(REGISTRY), "serve", str(place / "config.yml")]
    with (place / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            end = time.monotonic() + 60
            while not (found := re.search(r"listening on (127\.0\.0\.1:\d+)", said := (place / "log").read_text())):
                assert process.poll() is None, said
                assert time.monotonic() < end, said
                time.sleep(0.02)
            yield found[1]
        finally:
            process.terminate()


class Proxy:
    """A port that passes connections on to another one, and can fail between the two.

    Attributes:
        fault: what befalls an answer: "reset", "cut", "stalled", "trickling"; "" for nothing.
        left: so many bytes of answers come before.
        times: so many answers have it.
        met: how many answers had it.
        pause: the seconds before each piece of an answer, one at a time: a line that all connections share.
        requests: the first line of each.
    """

    def __init__(self, listening: socket.socket, to: int) -> None:
        self.port, self._to, self._listening = listening.getsockname()[1], to, listening
        self.fault, self.left, self.times = "", 0, 1 << 30
        self.met, self.pause, self._line, self.requests = 0, 0.0, threading.Lock(), list[str]()
        self.over = threading.Event()

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._to)) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [], 120)
                for one, other in ((client, server), (server, client)):
                    if one not in ready:
                        continue
                    if not (piece := one.recv(1 << 16)):
                        return
                    if one is client and re.match(rb"[A-Z]+ \S+ HTTP/", piece):
                        self.requests.append(piece.partition(b"\r")[0].decode())
                    if one is server and self.pause:
                        with self._line:
                            time.sleep(self.pause)
                    if one is server and self._fails(piece):
                        client.sendall(piece[: self.left])
                        self._fail(client, server, piece[self.left :])
                        return
                    other.sendall(piece)
                    self.left -= len(piece) if one is server else 0

    def _fails(self, piece: bytes) -> bool:
        self.left = max(0, self.left)
        return bool(self.fault) and self.met < self.times and len(piece) > self.left

    def _fail(self, client: socket.socket, server: socket.socket, piece: bytes) -> None:
        self.met += 1
        if self.fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.fault == "stalled":
            self.over.wait(120)
        while self.fault == "trickling" and not self.over.wait(0.05):
            client.sendall(piece[:1])
            piece = piece[1:] or server.recv(1 << 16)


@contextlib.contextmanager
def proxy(to: int) -> Iterator[Proxy]:
    """A proxy of a port while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = Proxy(listening, to)
        threading.Thread(target=one.serve, daemon=True).start()
        yield one
        one.over.set()
