"""Servers that others wrote: nginx from Debian, over HTTP and TLS, and an S3 server.

``apt-get install nginx`` and ``pip install "moto[server]" s3fs`` bring them; what is missing is skipped. moto is the S3
server that installs from PyPI, in Python alone.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import shutil
import socket
import subprocess
import threading
import uuid
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sgljit_remote import objects, signing, transfer
from sgljit_remote.objects import object_name

from .conftest import files
from .served import artifact, within

pytestmark = pytest.mark.slow
ONE, OTHER = artifact(1), artifact(2)
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
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


@pytest.fixture
def nginx(tmp_path):
    """Start nginx on a socket that it inherits; the port, and the directory that it serves."""
    if NGINX is None:
        pytest.skip("there is no nginx")
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


@contextlib.contextmanager
def cutting(port, most):
    """A port that passes connections on to another one, while the block runs. The first is cut after so many bytes."""
    left = [most]

    def work():
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = listening.accept()
                with client, socket.create_connection(("127.0.0.1", port)) as server:
                    server.sendall(client.recv(1 << 16))
                    while left[0] > 0 and (piece := server.recv(1 << 16)):
                        client.sendall(piece[: left[0]])
                        left[0] -= len(piece)
                    left[0] = 1 << 40

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=work, daemon=True).start()
        yield listening.getsockname()[1]


def test_a_transfer_from_nginx_goes_on_where_it_broke_off(nginx, remote, signed, tmp_path):
    port, place = nginx()
    content, most = os.urandom(3 << 20), 2 << 20
    bundle = place / "store/sgljit-1/bundles/large.bundle"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(content)
    with cutting(port, most) as cut:
        transfer.pull_bundle(remote(f"http://127.0.0.1:{cut}", timeout=20.0, **signed), tmp_path / "got", "large")
    assert (tmp_path / "got").read_bytes() == content
    *_, first, second = [line.split('"')[2].split() for line in (place / "access.log").read_text().splitlines()]
    assert first[0] == "200"
    assert second[0] == "206"
    assert len(content) - most < int(second[1]) < len(content) - most + 1000  # and the headers of the first


def test_nginx_serves_a_directory_that_was_pushed_to(nginx, pushed, session, signed, tmp_path, said):
    port, place = nginx()
    pushed(f"file://{place}/store")
    one = session(f"http://127.0.0.1:{port}", **signed)
    root = tmp_path / "second"
    assert one.fetch(LOCATION, TOOLCHAIN, root) == root
    assert one.fetch(OTHER.manifest.location.path, None, root) == root
    assert files(root) == sorted([ONE.place, OTHER.place])
    log = (place / "access.log").read_text().splitlines()
    assert [line.split('"')[1].split()[1].rpartition("/")[2] for line in log] == ["index.json", "cpu-x86_64.norm.zip"]
    assert one.fetch(artifact(3).manifest.location.path, TOOLCHAIN, root) is None
    assert said() == []


def test_nginx_takes_what_is_pushed(nginx, pushed, session, signed, tmp_path):
    port, _ = nginx()
    pushed(f"http://127.0.0.1:{port}/kernels")
    root = tmp_path / "second"
    assert session(f"http://127.0.0.1:{port}/kernels", **signed).fetch(LOCATION, TOOLCHAIN, root) == root


def test_nginx_that_is_busy_costs_one_warning(nginx, session, signed, cache, said, no_pauses):
    port, _ = nginx()
    with within(20):
        assert session(f"http://127.0.0.1:{port}/busy", **signed).fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert "503 Service" in warning


def test_nginx_that_has_an_altered_object_is_refused(nginx, pushed, session, signed, tmp_path, said):
    port, place = nginx()
    pushed(f"file://{place}/store")
    for file in (place / "store").rglob("*.zip"):
        file.write_bytes(file.read_bytes()[:-200] + bytes(200))
    assert session(f"http://127.0.0.1:{port}", **signed).fetch(LOCATION, TOOLCHAIN, tmp_path / "second") is None
    assert files(tmp_path / "second") == []
    assert said()


def certificate(place: Path) -> Path:
    """A certificate of 127.0.0.1 that signs itself, and beside it its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (place / "tls.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (place / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return place / "tls.pem"


def test_tls_asks_for_a_certificate_that_this_machine_trusts(
    nginx, pushed, session, signed, tmp_path, monkeypatch, said, no_pauses
):
    file = certificate(tmp_path)
    port, place = nginx(f"ssl_certificate {file}; ssl_certificate_key {tmp_path / 'tls.key'}")
    pushed(f"file://{place}/store")
    root = tmp_path / "second"
    assert session(f"https://127.0.0.1:{port}", **signed).fetch(LOCATION, TOOLCHAIN, root) is None
    assert "CERTIFICATE_VERIFY_FAILED" in said()[0]
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert session(f"https://127.0.0.1:{port}", **signed).fetch(LOCATION, TOOLCHAIN, root) == root


@pytest.fixture
def bucket(monkeypatch):
    """The URL of a bucket of a server, and the server."""
    server = pytest.importorskip("moto.server", reason='pip install "moto[server]" s3fs')
    s3fs = pytest.importorskip("s3fs")
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
        monkeypatch.setenv(name, value)
    name = f"kernels-{uuid.uuid4().hex[:8]}"
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/here", running
    running.stop()


def test_a_bucket_is_pushed_to_and_read(bucket, pushed, session, signed, tmp_path, said):
    url, _ = bucket
    pushed(url)
    one, root = session(url, **signed), tmp_path / "second"
    assert one.fetch(LOCATION, TOOLCHAIN, root) == root
    assert files(root) == sorted([ONE.place, OTHER.place])
    assert one.fetch(artifact(3).manifest.location.path, TOOLCHAIN, root) is None
    assert said() == []


def test_of_two_that_publish_to_a_bucket_the_first_wins(bucket, remote, signed):
    url, _ = bucket
    one = remote(url, **signed)
    assert one.put("sgljit-1/x.zip", b"first")
    assert not one.put("sgljit-1/x.zip", b"second")
    assert one.get("sgljit-1/x.zip") == b"first"
    assert one.put("sgljit-1/x.zip", b"third", replace=True)
    assert one.get("sgljit-1/x.zip") == b"third"


def test_an_empty_index_in_a_bucket_hides_no_artifact(bucket, remote, session, signed, tmp_path, said):
    url, _ = bucket
    one = remote(url, **signed)
    one.put("sgljit-1/index.json", b"")
    one.publish_one(ONE, one.signer())
    assert session(url, **signed).fetch(LOCATION, TOOLCHAIN, tmp_path / "second") == tmp_path / "second"
    (warning,) = said()
    assert "index.json is refused and not used: it is no index of archives" in warning


def test_a_stranger_who_writes_to_the_bucket_is_refused(bucket, remote, session, signed, tmp_path, said):
    url, _ = bucket
    signing.new_key(tmp_path / "stranger")
    content = objects.pack([ONE], signing.private_key(tmp_path / "stranger"))
    remote(url, **signed).put(object_name(LOCATION, TOOLCHAIN), content)
    assert session(url, **signed).fetch(LOCATION, TOOLCHAIN, tmp_path / "second") is None
    assert "it is signed by none of the keys" in said()[0]


def test_a_bucket_whose_server_is_gone_costs_one_time_out(bucket, session, signed, cache, said):
    url, running = bucket
    running.stop()
    with within(2):
        assert session(url, timeout=2, **signed).fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert "cannot be used now" in warning


def test_a_bucket_that_is_not_there_is_no_error(bucket, session, signed, cache):
    url, _ = bucket
    assert session(url.replace("kernels-", "others-"), **signed).fetch(LOCATION, TOOLCHAIN, cache) is None


def test_a_bucket_without_keys_is_refused(bucket, said):
    from sgljit_remote.config import Settings
    from sgljit_remote.remote import session as session_of

    assert session_of(Settings(bucket[0])) is None
    assert "whoever can write there could run code as you" in said()[0]
    assert os.environ["AWS_ACCESS_KEY_ID"] == "testing"
