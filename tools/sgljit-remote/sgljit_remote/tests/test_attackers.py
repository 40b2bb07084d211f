"""Somebody who can write to the remote, and wants other code to run: each attempt is refused, with a warning."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sgljit_remote import index, objects, signing
from sgljit_remote.config import Settings
from sgljit_remote.errors import KeyFileError, RemoteUnavailableError, UntrustedRemoteError
from sgljit_remote.index import Archive
from sgljit_remote.objects import Artifact, object_name
from sgljit_remote.remote import Remote, Session, session as session_of

from . import served
from .conftest import files
from .served import artifact

ONE, OTHER = artifact(1), artifact(2)
LOCATION, TOOLCHAIN = ONE.manifest.location.path, ONE.manifest.toolchain_key
NAME = object_name(LOCATION, TOOLCHAIN)
EVIL = b"evil" * 500


def archive_of(members):
    """A zip archive, of which nothing but the form is right."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return written.getvalue()


def members_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def signed(key):
    """The honest object."""
    return objects.pack([ONE], signing.private_key(key))


@pytest.fixture
def stranger(tmp_path):
    signing.new_key(tmp_path / "stranger")
    return signing.private_key(tmp_path / "stranger")


@pytest.fixture
def attack(server, session, key, cache, said):
    """Put an object in the place of the honest one, with keys that are trusted; the warning."""

    def attack(content, name=NAME):
        server.objects[f"/{name}"] = content
        victim = session(unsigned=False, trusted_keys=(key.parent / "trusted",))
        assert victim.fetch(LOCATION, TOOLCHAIN, cache) is None
        assert files(cache) == []
        (warning,) = said()
        assert f"{server.url}/{name} is refused and not used: " in warning
        return warning

    return attack


def test_the_honest_object_is_taken(server, session, signed, key, cache, said):
    server.objects[f"/{NAME}"] = signed
    assert session(unsigned=False, trusted_keys=(key.parent / "trusted",)).fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert files(cache) == [ONE.place]
    assert said() == []


def test_an_altered_payload(attack, signed):
    members = members_of(signed)
    members[f"{ONE.place}/module.so"] = EVIL[: len(ONE.payload)].ljust(len(ONE.payload))
    assert "module.so is not the one that its manifest says" in attack(archive_of(members.items()))


def test_an_altered_payload_with_a_manifest_that_fits(attack, signed):
    forged = artifact(1, size=len(EVIL), sha256=hashlib.sha256(EVIL).hexdigest())
    members = members_of(signed)
    members[f"{ONE.place}/module.so"] = EVIL
    members[f"{ONE.place}/manifest.json"] = forged.manifest.dump()
    assert "it is signed by none of the keys of SGLJIT_TRUSTED_KEYS" in attack(archive_of(members.items()))


def test_an_unsigned_object(attack):
    assert "it is not signed, and SGLJIT_TRUSTED_KEYS asks for a signature" in attack(objects.pack([ONE], None))


def test_an_object_that_a_stranger_has_signed(attack, stranger):
    assert "it is signed by none of the keys of SGLJIT_TRUSTED_KEYS" in attack(objects.pack([ONE], stranger))


@pytest.mark.parametrize("signature", [b"", b"\0" * 64, b"x" * 10_000])
def test_what_is_no_signature(attack, signed, signature):
    members = {**members_of(signed), f"{ONE.place}/signature": signature}
    assert "it is signed by none of the keys" in attack(archive_of(members.items()))


def test_a_signature_of_something_else_than_a_manifest(key):
    own = signing.private_key(key)
    text = ONE.manifest.dump()
    (trusted,) = signing.public_keys([key.parent / "trusted"])
    assert signing.signer(text, signing.sign(text, own), [trusted]) is trusted
    assert signing.signer(text, own.sign(text), [trusted]) is None


def test_another_artifact_with_its_true_signature(attack, key):
    assert f"it holds another artifact, {OTHER.place}" in attack(objects.pack([OTHER], signing.private_key(key)))


def test_another_artifact_under_this_ones_name(attack, key):
    members = members_of(objects.pack([OTHER], signing.private_key(key)))
    renamed = [(name.replace(OTHER.place, ONE.place), content) for name, content in members.items()]
    assert f"its manifest is that of another artifact, {OTHER.place}" in attack(archive_of(renamed))


def test_an_artifact_of_another_toolchain_under_this_ones_name(attack, key):
    other = artifact(1, toolchain="g++ 4")
    assert f"it holds another artifact, {other.place}" in attack(objects.pack([other], signing.private_key(key)))


@pytest.mark.parametrize(
    "name",
    [
        "../../evil/module.so",
        "/etc/cron.d/evil",
        f"{ONE.place}/../../../../../../evil",
        f"./{ONE.place}/module.so",
        f"{ONE.place}/sub/module.so",
        f"{ONE.place}/.hidden",
        f"{ONE.place}\\module.so",
        f"{ONE.place}/",
        f".staging/{ONE.place.partition('/')[2]}/module.so",
        f"{ONE.place}/a\nb",
    ],
)
def test_names_that_lead_elsewhere(attack, signed, name, tmp_path):
    warning = attack(archive_of([*members_of(signed).items(), (name, EVIL)]))
    assert "which is no file of an artifact" in warning
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


@pytest.mark.parametrize("payload", ["../../../../../../evil", "/tmp/evil", "manifest.json", "signature", "", ".evil"])
def test_a_manifest_whose_payload_lies_elsewhere(server, session, cache, said, tmp_path, payload):
    """Nobody honest signs it; without keys it is refused as well."""
    forged = artifact(1, payload=payload)
    members = [(f"{ONE.place}/manifest.json", forged.manifest.dump()), (f"{ONE.place}/module.so", ONE.payload)]
    server.objects[f"/{NAME}"] = archive_of(members)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert "it has other files than its manifest says" in said()[0]
    assert files(cache) == []


@pytest.mark.parametrize("fields", [{"target": "../x"}, {"family": "../norm"}, {"module": "/number"}, {"module": ""}])
def test_a_manifest_whose_place_is_elsewhere(server, session, cache, said, fields):
    forged = Artifact(artifact(1, **fields).manifest, ONE.payload)
    members = [(f"{ONE.place}/manifest.json", forged.manifest.dump()), (f"{ONE.place}/module.so", ONE.payload)]
    server.objects[f"/{NAME}"] = archive_of(members)
    assert session().fetch(LOCATION, TOOLCHAIN, cache) is None
    assert "its manifest is that of another artifact" in said()[0]


def test_files_beside_those_of_the_manifest(attack, signed):
    members = {**members_of(signed), f"{ONE.place}/second.so": EVIL}
    assert "it has other files than its manifest says" in attack(archive_of(members.items()))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_payload_that_is_there_twice(attack, signed):
    members = [*members_of(signed).items(), (f"{ONE.place}/module.so", EVIL)]
    assert "twice" in attack(archive_of(members))


def test_what_unpacks_to_far_more_than_its_size(attack, key):
    payload = b"\0" * (64 << 20)
    bomb = artifact(1, size=len(payload), sha256=hashlib.sha256(payload).hexdigest())
    content = objects.pack([Artifact(bomb.manifest, payload)], signing.private_key(key))
    assert "it holds far more than it can: more than 100 times its own size" in attack(content)


def test_an_index_that_leads_to_a_strangers_archive(server, session, signed, stranger, key, cache, said):
    archive = Archive("cpu-x86_64.norm", "norm", "cpu-x86_64", 1, (ONE.place,))
    server.objects[f"/{index.NAME}"] = index.dump([archive])
    server.objects[f"/{archive.object_name}"] = objects.pack([ONE], stranger)
    server.objects[f"/{NAME}"] = signed
    victim = session(unsigned=False, trusted_keys=(key.parent / "trusted",))
    assert victim.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert [request.rpartition("/")[2] for request in server.requests] == [
        "index.json",
        "cpu-x86_64.norm.zip",
        f"{TOOLCHAIN}.zip",
    ]
    (warning,) = said()
    assert "signed by none of the keys" in warning


def test_a_refused_object_is_replaced_by_what_is_compiled_here(server, session, stranger, key, cache):
    own = session(unsigned=False, trusted_keys=(key.parent / "trusted",), signing_key=key)
    server.objects[f"/{NAME}"] = objects.pack([ONE], stranger)
    assert own.fetch(LOCATION, TOOLCHAIN, cache) is None
    own.publish(ONE)
    fresh = session(unsigned=False, trusted_keys=(key.parent / "trusted",))
    assert fresh.fetch(LOCATION, TOOLCHAIN, cache) == cache


def test_a_network_without_keys_is_refused_before_anything_is_asked(server, said):
    assert session_of(Settings(server.url)) is None
    (warning,) = said()
    assert f"the remote {server.url} is not used: whoever can write there could run code as you" in warning
    assert "SGLJIT_TRUSTED_KEYS, or accept it as it is with SGLJIT_REMOTE_UNSIGNED=1" in warning
    assert server.requests == []


@pytest.mark.parametrize("url", ["s3://bucket/kernels", "ftp://host/kernels", "https://host/kernels"])
def test_every_other_network_too(url):
    with pytest.raises(UntrustedRemoteError, match="whoever can write there could run code as you"):
        Remote(Settings(url))


@pytest.mark.usefixtures("waived")
def test_a_directory_that_others_can_write_is_refused_without_keys(tmp_path, cache, said, key):
    place = tmp_path / "shared"
    place.mkdir()
    remote = Remote(Settings(f"file://{place}", timeout=20))
    remote.publish_one(ONE, None)
    place.chmod(0o777)
    assert Session(remote).fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert "can be written by group or others" in warning
    assert "(SGLJIT_TRUSTED_KEYS), or anybody who can write there (SGLJIT_REMOTE_UNSIGNED=1)" in warning
    assert Session(Remote(Settings(str(place), unsigned=True, timeout=20))).fetch(LOCATION, TOOLCHAIN, cache) == cache


@pytest.mark.usefixtures("waived")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_an_object_of_another_user_is_refused_without_keys(tmp_path, cache, said):
    place = tmp_path / "shared"
    place.mkdir()
    remote = Remote(Settings(f"file://{place}", timeout=20))
    remote.publish_one(ONE, None)
    os.chown(place / NAME, 12345, 12345)
    assert Session(remote).fetch(LOCATION, TOOLCHAIN, cache) is None
    assert "belongs to user 12345" in said()[0]


def test_a_redirect_out_of_tls_is_not_followed(remote):
    handler = next(one for one in remote().store._client._opener.handlers if type(one).__name__ == "_SameScheme")
    request = type("Request", (), {"full_url": "https://host/x"})
    with pytest.raises(RemoteUnavailableError, match="without TLS"):
        handler.redirect_request(request, io.BytesIO(), 302, "", {}, "http://host/x")


@pytest.mark.parametrize("to", ["ftp://127.0.0.1:1", "file:///etc/passwd?", "FTP://127.0.0.1:1"])
def test_a_redirect_to_another_protocol_is_not_followed(server, session, cache, said, to):
    """Else whoever answers has this machine talk to servers of its own network that only it can reach."""
    server.fault = served.redirecting(to)
    assert session(timeout=20).fetch(LOCATION, TOOLCHAIN, cache) is None
    (warning,) = said()
    assert "cannot be used now: " in warning
    assert "it redirects to " in warning or "302" in warning


def test_a_redirect_with_a_body_without_end_is_followed_at_once(server, remote):
    sent = []

    def redirect(handler):
        if handler.path != "/x":
            return False
        handler.send_response(302)
        handler.send_header("Location", f"{server.url}/there")
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client hangs up
            while len(sent) < 100:
                handler.wfile.write(bytes(1 << 20))
                sent.append(1 << 20)
        return True

    server.fault = redirect
    server.objects["/there"] = b"content"
    assert remote().get("x") == b"content"
    assert len(sent) < 50  # as far as the buffers of a connection take it


def test_a_password_goes_to_the_server_alone_and_into_no_message(server, session, cache, said):
    seen = []
    server.fault = lambda handler: seen.append(handler.headers["Authorization"])
    url = server.url.replace("//", "//me:s3cret@")
    session(url).fetch(LOCATION, TOOLCHAIN, cache)
    assert seen == ["Basic bWU6czNjcmV0"] * 2
    server.fault = lambda handler: handler.send_error(403) or True
    session(url).fetch(LOCATION, TOOLCHAIN, cache)
    assert said()
    assert "s3cret" not in "".join(said())


# Keys.


def test_a_key_is_for_its_owner_and_no_file_is_overwritten(tmp_path):
    public = signing.new_key(tmp_path / "a")
    assert public == tmp_path / "a.pub"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "a").read_bytes()
    for name in ("a", "a.pub"):
        with pytest.raises(KeyFileError, match="cannot be written"):
            signing.new_key(tmp_path / name.removesuffix(".pub"))
    (tmp_path / "b.pub").write_text("mine")
    with pytest.raises(KeyFileError, match=r"b\.pub cannot be written \(it is there already\)"):
        signing.new_key(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == before
    assert not (tmp_path / "b").exists()


def test_keys_are_rotated_by_adding_one_and_removing_another(server, session, key, tmp_path, cache):
    trusted = tmp_path / "trusted"
    server.objects[f"/{NAME}"] = objects.pack([ONE], signing.private_key(key))
    signing.new_key(tmp_path / "new").rename(trusted / "new.pub")
    server.objects[f"/{object_name(OTHER.manifest.location.path, TOOLCHAIN)}"] = objects.pack(
        [OTHER], signing.private_key(tmp_path / "new")
    )
    both = session(unsigned=False, trusted_keys=(trusted,))
    assert both.fetch(LOCATION, TOOLCHAIN, cache) == cache
    assert both.fetch(OTHER.manifest.location.path, TOOLCHAIN, cache) == cache
    (trusted / "own.pub").unlink()
    later = session(unsigned=False, trusted_keys=(trusted,))
    assert later.fetch(LOCATION, TOOLCHAIN, tmp_path / "second") is None
    assert later.fetch(OTHER.manifest.location.path, TOOLCHAIN, tmp_path / "second") is not None


def other_kind() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda place: place.mkdir(), "where there is no key"),
        (
            lambda place: None,
            r"cannot be read \(No such file or directory\); expected public keys, as files \*\.pub, where SGLJIT",
        ),
        (lambda place: place.write_text("nothing"), "is not a public key in PEM"),
        (lambda place: place.write_bytes(other_kind()), "expected Ed25519"),
        (lambda place: (place.write_bytes(other_kind()), place.chmod(0o666)), "can be written by group or others"),
    ],
)
def test_keys_that_cannot_be_used_refuse_the_remote(server, tmp_path, said, prepare, text):
    place = tmp_path / "keys"
    prepare(place)
    settings = Settings(server.url, trusted_keys=(place,), unsigned=True)
    with pytest.raises(KeyFileError, match=text):
        Remote(settings)
    assert session_of(settings) is None
    assert len(said()) == 1
    assert server.requests == []


def test_a_directory_of_keys_that_others_can_write_refuses_the_remote(server, key):
    (key.parent / "trusted").chmod(0o777)
    with pytest.raises(KeyFileError, match=r"the keys in .* are not used: .*can be written by group or others"):
        Remote(Settings(server.url, trusted_keys=(key.parent / "trusted",)))


def test_a_private_key_that_is_none(tmp_path, server):
    (tmp_path / "key").write_text("nothing")
    with pytest.raises(KeyFileError, match="is not a private key in PEM without a password"):
        Remote(Settings(server.url, unsigned=True, signing_key=tmp_path / "key")).signer()
    text = (
        r"nothing cannot be read \(No such file or directory\); expected a private key, as --sign or SGLJIT_SIGNING_KEY"
    )
    with pytest.raises(KeyFileError, match=text):
        Remote(Settings(server.url, unsigned=True, signing_key=tmp_path / "nothing")).signer()


def test_who_trusts_keys_and_has_none_publishes_nothing(server, session, key, said):
    one = session(unsigned=False, trusted_keys=(key.parent / "trusted",))
    one.publish(ONE)
    one.publish(OTHER)
    assert server.requests == []
    (warning,) = said()
    assert "nothing is published" in warning


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings("memory://x").url = "memory://y"
