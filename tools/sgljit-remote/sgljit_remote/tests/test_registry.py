"""Registries of container images: Debian's, and what a bad one can answer."""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.server
import json
import threading
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from sgljit_core.errors import ConfigError
from sgljit_remote import objects, registry, signing
from sgljit_remote.errors import RefusedObjectError, RemoteUnavailableError
from sgljit_remote.objects import object_name

from . import served
from .conftest import files
from .served import artifact, redirecting, within

ONE, OTHER = artifact(1), artifact(2)
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
LATER = time.monotonic() + 3600
# "someone:secret", by bcrypt.
PASSWORDS = "someone:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"


@pytest.mark.slow
def test_a_registry_is_pushed_to_and_read(running, pushed, session, signed, tmp_path, said):
    url = f"oci+http://{running()}/team/kernels"
    pushed(url)
    one, root = session(url, **signed), tmp_path / "second"
    assert one.fetch(LOCATION, TOOLCHAIN, root) == root
    assert files(root) == sorted([ONE.place, OTHER.place])
    assert one.fetch(artifact(3).manifest.location.path, TOOLCHAIN, root) is None
    assert said() == []


@pytest.mark.slow
def test_objects_small_and_large_are_read_as_they_were_written(running):
    store = registry.RegistryStore(f"oci+http://{running()}/kernels")
    assert store.get("x", 10, LATER) is None  # nobody has written to the repository
    for content in (b"", b"small", bytes(registry._MOST_INSIDE + 1)):
        assert store.put("a/b c+1.zip", content, LATER, replace=True)
        assert store.get("a/b c+1.zip", len(content), LATER) == content
        if content:
            with pytest.raises(RefusedObjectError, match=r"a/b c\+1\.zip has more than"):
                store.get("a/b c+1.zip", len(content) - 1, LATER)
    assert not store.put("a/b c+1.zip", b"second", LATER, replace=False)
    assert len(store.get("a/b c+1.zip", 1 << 30, LATER)) > 5


@pytest.mark.slow
def test_an_object_of_up_to_a_mebibyte_is_one_request(running, monkeypatch):
    store = registry.RegistryStore(f"oci+http://{running()}/kernels")
    store.put("x", bytes(registry._MOST_INSIDE), LATER, replace=False)
    asked, answered = [], store._client.answered

    def noted(url, *args, **request):
        asked.append(url)
        return answered(url, *args, **request)

    monkeypatch.setattr(store._client, "answered", noted)
    assert store.get("x", 1 << 30, LATER) == bytes(registry._MOST_INSIDE)
    assert len(asked) == 1


@pytest.mark.slow
def test_a_stranger_who_writes_to_the_registry_is_refused(running, remote, session, signed, tmp_path, said):
    url = f"oci+http://{running()}/kernels"
    signing.new_key(tmp_path / "stranger")
    content = objects.pack([ONE], signing.private_key(tmp_path / "stranger"))
    remote(url, **signed).put(object_name(LOCATION, TOOLCHAIN), content)
    assert session(url, **signed).fetch(LOCATION, TOOLCHAIN, tmp_path / "second") is None
    assert "it is signed by none of the keys" in said()[0]


@pytest.mark.slow
def test_a_password_stands_in_the_url_or_in_dockers_file(running, tmp_path, monkeypatch):
    (tmp_path / "passwords").write_text(PASSWORDS)
    host = running(f"auth: {{htpasswd: {{realm: here, path: {tmp_path}/passwords}}}}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    store = registry.RegistryStore(f"oci+http://{host}/kernels")
    with pytest.raises(RemoteUnavailableError, match="none is known: see `docker login`"):
        store.get("x", 10, LATER)
    store = registry.RegistryStore(f"oci+http://someone:secret@{host}/kernels")
    assert "secret" not in store.shown
    assert store.put("x", b"content", LATER, replace=False)
    assert store.get("x", 10, LATER) == b"content"
    auth = base64.b64encode(b"someone:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    assert registry.RegistryStore(f"oci+http://{host}/kernels").get("x", 10, LATER) == b"content"
    with pytest.raises(RemoteUnavailableError, match="401"):
        registry.RegistryStore(f"oci+http://someone:wrong@{host}/kernels").get("x", 10, LATER)


class Tokens(http.server.BaseHTTPRequestHandler):
    """Gives a token of a registry's scheme, which ends after ``seconds``, to whoever has the password."""

    def do_GET(self):
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.asked.append((asked["scope"], self.headers.get("Authorization")))
        kind, name, actions = asked["scope"].split(":")
        if self.headers.get("Authorization") is None:
            actions = "pull"  # nobody in particular may read
        now = int(time.time())
        claims = {"iss": "tests", "sub": "", "aud": asked["service"], "jti": str(time.monotonic_ns())}
        claims |= {"nbf": now - 200, "iat": now - 200, "exp": now + self.server.seconds}
        claims["access"] = [{"type": kind, "name": name, "actions": actions.split(",")}]
        certificate = base64.b64encode(self.server.certificate.public_bytes(serialization.Encoding.DER)).decode()
        header = {"typ": "JWT", "alg": "ES256", "x5c": [certificate]}
        text = b".".join(_url64(json.dumps(part).encode()) for part in (header, claims))
        r, s = utils.decode_dss_signature(self.server.key.sign(text, ec.ECDSA(hashes.SHA256())))
        token = text + b"." + _url64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        body = json.dumps({"token": token.decode()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def _url64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


@pytest.fixture
def tokens(tmp_path):
    """A server of tokens, and the lines of a registry's configuration that ask for them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "tokens.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    server.key, server.certificate, server.asked, server.seconds = key, certificate, [], 300
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    realm = f"http://127.0.0.1:{server.server_address[1]}/token"
    fields = f"realm: '{realm}', service: here, issuer: tests, rootcertbundle: {tmp_path}/tokens.pem"
    yield server, f"auth: {{token: {{{fields}}}}}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_token_is_asked_for_with_the_password_and_again_when_it_has_ended(running, tokens):
    server, lines = tokens
    host = running(lines)
    store = registry.RegistryStore(f"oci+http://someone:secret@{host}/team/kernels")
    assert store.put("x", b"content", LATER, replace=False)
    scopes = [scope for scope, _ in server.asked]
    assert scopes[0] == "repository:team/kernels:pull"
    assert sorted(scopes[-1].rpartition(":")[2].split(",")) == ["pull", "push"]
    assert {authorization for _, authorization in server.asked} == {
        f"Basic {base64.b64encode(b'someone:secret').decode()}"
    }
    asked = len(server.asked)
    assert store.get("x", 10, LATER) == b"content"
    assert len(server.asked) == asked  # the token still counts
    server.seconds = -100  # the registry takes a minute of difference between clocks
    reader = registry.RegistryStore(f"oci+http://{host}/team/kernels")
    with pytest.raises(RemoteUnavailableError, match="401"):
        reader.get("x", 10, LATER)
    server.seconds = 300
    assert reader.get("x", 10, LATER) == b"content"
    with pytest.raises(RemoteUnavailableError, match="401"):
        reader.put("y", b"", LATER, replace=False)  # a token for nobody writes nothing


@pytest.mark.slow
def test_a_registry_that_is_gone_costs_one_time_out(session, signed, cache, said):
    with served.refusing() as url, within(1):
        assert session(f"oci+{url}/kernels", timeout=1, **signed).fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert "cannot be used now" in warning


def manifest(content: bytes = b"content", **layer: object) -> bytes:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return json.dumps({"layers": [{"digest": digest, "size": len(content), **layer}]}).encode()


@pytest.fixture
def answers(server):
    """The store of a server that answers with a manifest, and has blobs."""

    def answers(text, **blobs):
        tag = hashlib.sha256(b"x").hexdigest()
        server.objects[f"/v2/kernels/manifests/{tag}"] = text
        for content in blobs.values():
            server.objects[f"/v2/kernels/blobs/sha256:{hashlib.sha256(b'content').hexdigest()}"] = content
        return registry.RegistryStore(f"oci+{server.url}/kernels")

    return answers


def test_a_manifest_of_somebody_elses_tool_serves_without_its_content(answers):
    assert answers(manifest(), blob=b"content").get("x", 10, LATER) == b"content"


def test_the_content_in_a_manifest_serves(answers):
    assert answers(manifest(data=base64.b64encode(b"content").decode())).get("x", 10, LATER) == b"content"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"<html>", "a manifest that is none of an object"),
        (b"[" * 100000, "a manifest that is none of an object"),
        (b'{"layers": []}', "a manifest that is none of an object"),
        (manifest(digest="sha256:../../../_catalog"), "a manifest that is none of an object"),
        (manifest(digest="sha512:" + "0" * 128), "a manifest that is none of an object"),
        (manifest(size="7"), "a manifest that is none of an object"),
        (manifest(data="?"), "a manifest that is none of an object"),
        (manifest(data=7), "a manifest that is none of an object"),
        (manifest(bytes(99), size=9, data="A" * 132), "a manifest that is none of an object"),
        (manifest(data=base64.b64encode(b"another").decode()), "is not what its digest says"),
        (manifest(size=1 << 40), "x has more than 10 bytes"),
        (manifest(), "has a manifest, and no content"),
        (bytes(5 << 20), f"x has more than {4 << 20} bytes"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_no_object_is_refused(answers, text, reason):
    with pytest.raises(RefusedObjectError, match=reason.replace("+", r"\+")):
        answers(text).get("x", 10, LATER)


def test_a_blob_that_differs_from_its_digest_is_refused(answers):
    with pytest.raises(RefusedObjectError, match="is not what its digest says"):
        answers(manifest(), blob=b"another").get("x", 10, LATER)


def test_a_blob_that_is_larger_than_its_manifest_says_is_refused(answers):
    with pytest.raises(RefusedObjectError, match="x has more than 10 bytes"):
        answers(manifest(), blob=bytes(1000)).get("x", 10, LATER)


@pytest.fixture
def immutable(server, monkeypatch):
    """The URL of a registry that takes blobs, and no manifest: one of that tag came a moment before, and must stay."""

    def answer(handler):
        handler.send_response(202 if handler.command == "POST" else 404 if "manifests" in handler.path else 200)
        handler.send_header("Location", "/v2/kernels/blobs/uploads/1")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(served.Handler, "do_HEAD", answer, raising=False)
    monkeypatch.setattr(served.Handler, "do_POST", answer, raising=False)
    server.fault = served.status(412)
    return f"oci+{server.url}/kernels"


def test_a_tag_that_cannot_change_stays_or_is_an_error(immutable):
    store = registry.RegistryStore(immutable)
    assert not store.put("x", b"content", LATER, replace=False)
    with pytest.raises(RemoteUnavailableError, match="it does not replace x: it answers 412 Precondition Failed"):
        store.put("x", b"content", LATER, replace=True)


def test_a_process_publishes_to_a_registry_of_tags_that_cannot_change(immutable, session, signed, said):
    session(immutable, is_writable=True, **signed).publish(ONE)
    assert said() == []


def challenging(challenge):
    def fault(handler):
        if handler.path.startswith("/v2/"):
            handler.server.requests.append(f"as {handler.headers['Authorization']}")
            handler.send_response(401)
            handler.send_header("WWW-Authenticate", challenge.format(url=handler.server.url))
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return True
        return False

    return fault


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        ('Bearer realm="https://elsewhere/token"', "it wants a password sent to https://"),
        ('Bearer realm="file:///etc/passwd"', "it wants a password sent to file://"),
        ('Bearer realm="http://[::1/token"', r"it wants a password sent to 'http://\[::1/token', which is no URL"),
        ('Bearer realm="{url}/token"', "/token gives no token"),
        ("Bearer", "it asks for a user and a password, and none is known"),
        ("Negotiate", "it asks for a user and a password, and none is known"),
        ("", "it asks for a user and a password, and none is known"),
    ],
)
@pytest.mark.parametrize("token", [b"", b"[]", b'{"token": ""}', b"[" * 100000])
def test_a_challenge_that_cannot_be_answered_is_an_error(server, challenge, reason, token):
    server.fault = challenging(challenge)
    server.objects["/token"] = token
    store = registry.RegistryStore(f"oci+http://someone:secret@{server.url.removeprefix('http://')}/kernels")
    with pytest.raises(RemoteUnavailableError, match=reason):
        store.get("x", 10, LATER)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://[::1/uploads", r"it wants uploads sent to 'http://\[::1/uploads', which is no URL"),
        ("https://elsewhere/uploads", "it wants uploads sent to https://"),
        ("", "it takes no uploads"),
    ],
)
def test_a_place_of_uploads_that_cannot_be_used_is_an_error(server, monkeypatch, location, reason):
    def answer(handler):
        handler.send_response(202 if handler.command == "POST" else 404)
        handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(served.Handler, "do_HEAD", answer, raising=False)
    monkeypatch.setattr(served.Handler, "do_POST", answer, raising=False)
    store = registry.RegistryStore(f"oci+{server.url}/kernels")
    with pytest.raises(RemoteUnavailableError, match=reason):
        store.put("x", b"content", LATER, replace=True)


def test_a_password_is_not_sent_before_it_is_asked_for_nor_to_where_a_registry_redirects(server, answers):
    with served.running() as other:
        server.fault = redirecting(other.url)
        seen = []
        other.fault = lambda handler: seen.append(handler.headers["Authorization"])
        store = registry.RegistryStore(f"oci+http://someone:secret@{server.url.removeprefix('http://')}/kernels")
        store._authorization = "Bearer of-this-registry"
        assert store.get("x", 10, LATER) is None
        assert seen == [None]
    server.fault = challenging('Basic realm="here"')
    with pytest.raises(RemoteUnavailableError, match="401"):
        registry.RegistryStore(f"oci+http://someone:secret@{server.url.removeprefix('http://')}/kernels").get(
            "x", 10, LATER
        )
    assert [one for one in server.requests if one.startswith("as ")] == [
        "as None",
        f"as Basic {base64.b64encode(b'someone:secret').decode()}",
    ]


@pytest.mark.parametrize(
    "url", ["oci://host", "oci://host/", "oci:///kernels", "oci://host/Kernels", "oci://h/a:latest"]
)
def test_what_names_no_repository_is_a_mistake(url):
    with pytest.raises(ConfigError, match="a registry is named oci://HOST/REPOSITORY, in lower case; got oci://"):
        registry.RegistryStore(url)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"auths": {"host": {}}}', '{"auths": {"host": {"auth": "?"}}}', "[" * 100000]
)
def test_a_file_of_passwords_that_says_nothing_is_none(tmp_path, monkeypatch, text):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(text)
    assert registry.RegistryStore("oci://host/kernels")._user == ""


def test_tls_is_asked_for_unless_the_url_says_otherwise():
    assert registry.RegistryStore("oci://host:5000/a/b")._root == "https://host:5000/v2/a/b"
