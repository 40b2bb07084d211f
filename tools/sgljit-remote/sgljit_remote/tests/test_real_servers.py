"""nginx, over HTTP and TLS, and servers of buckets."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sgljit_remote import objects, signing, transfer
from sgljit_remote.objects import object_name

from .conftest import files
from .real import proxy
from .served import artifact, within

pytestmark = pytest.mark.slow
ONE, OTHER = artifact(1), artifact(2)
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key


def test_a_transfer_from_nginx_goes_on_where_it_broke_off(nginx, remote, signed, tmp_path):
    port, place = nginx()
    content, most = os.urandom(3 << 20), 2 << 20
    bundle = place / "store/sgljit-1/bundles/large.bundle"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(content)
    with proxy(port) as one:
        one.fault, one.left, one.times = "cut", most, 1
        transfer.pull_bundle(remote(f"http://127.0.0.1:{one.port}", timeout=20.0, **signed), tmp_path / "got", "large")
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


def test_of_two_that_publish_to_nginx_the_first_wins(nginx, remote, signed):
    port, _ = nginx()
    there = remote(f"http://127.0.0.1:{port}", **signed)
    assert there.put("one", b"first")
    assert not there.put("one", b"second")
    assert there.get("one") == b"first"
    assert there.put("one", b"third", replace=True)
    assert there.get("one") == b"third"
    assert there.put("empty", b"")
    assert not there.put("empty", b"second")


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


def test_a_bucket_is_pushed_to_and_read(cloud, pushed, session, signed, tmp_path, said):
    url, _ = cloud
    pushed(url)
    one, root = session(url, **signed), tmp_path / "second"
    assert one.fetch(LOCATION, TOOLCHAIN, root) == root
    assert files(root) == sorted([ONE.place, OTHER.place])
    assert one.fetch(artifact(3).manifest.location.path, TOOLCHAIN, root) is None
    assert said() == []


@pytest.mark.parametrize("cloud", ["bucket", "azure"], indirect=True)
def test_of_two_that_publish_to_a_bucket_the_first_wins(cloud, remote, signed):
    url, _ = cloud
    one = remote(url, **signed)
    assert one.put("sgljit-1/x.zip", b"first")
    assert not one.put("sgljit-1/x.zip", b"second")
    assert one.get("sgljit-1/x.zip") == b"first"
    assert one.put("sgljit-1/x.zip", b"third", replace=True)
    assert one.get("sgljit-1/x.zip") == b"third"


def test_an_empty_index_in_a_bucket_hides_no_artifact(cloud, remote, session, signed, tmp_path, said):
    url, _ = cloud
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


def test_a_bucket_whose_server_is_gone_costs_one_time_out(cloud, session, signed, cache, said):
    url, stop = cloud
    stop()
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
