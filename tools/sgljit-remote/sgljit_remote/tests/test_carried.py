"""With trusted keys, what wheels carry and what lies in directories of prebuilt artifacts must be signed."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import sgljit_core
import sgljit_remote
from sgljit_core.cache import lookup
from sgljit_core.cache.lookup import Tier
from sgljit_core.cache.manifest import ManifestError
from sgljit_core.errors import ConfigError, SgljitError
from sgljit_remote import carried, commands, objects, signing
from sgljit_remote.errors import KeyFileError, RefusedObjectError
from sgljit_remote.remote import put_in_place

from . import served
from .conftest import files
from .test_processes import LOAD

ONE = served.artifact().manifest
OF_OTHERS = [("prebuilt", False), ("carried", True), ("plugin", True)]


@pytest.fixture
def trusted(key, monkeypatch):
    """This process trusts a key; it."""
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(key.parent / "trusted"))
    return signing.private_key(key)


@pytest.fixture
def prebuilt(tmp_path):
    """A directory with an artifact; the place of that."""
    artifact = served.artifact()
    put_in_place(artifact, tmp_path / "prebuilt")
    return tmp_path / "prebuilt" / artifact.place


def found(prebuilt, name, vouched):
    return Tier(prebuilt.parents[4], vouched, name).read(prebuilt)


@pytest.mark.parametrize(("name", "vouched"), OF_OTHERS)
def test_what_others_compiled_must_be_signed(prebuilt, trusted, said, name, vouched):
    before = sgljit_core.stats().faults, sgljit_remote.stats().refusals
    assert found(prebuilt, name, vouched) is None
    reason = "it is not signed, and SGLJIT_TRUSTED_KEYS asks for a signature"
    assert said() == [f"{prebuilt} is refused and not used: {reason}"]
    assert (sgljit_core.stats().faults, sgljit_remote.stats().refusals) == (before[0], before[1] + 1)
    assert carried.sign_directory(prebuilt.parents[4], trusted) == 1
    assert found(prebuilt, name, vouched).payload == served.artifact().payload


@pytest.mark.parametrize("name", ["cache", "remote"])
def test_what_this_user_compiled_or_the_remote_verified_needs_no_signature(prebuilt, trusted, name):
    assert found(prebuilt, name, False) is not None


def test_without_keys_nothing_is_asked(prebuilt):
    assert found(prebuilt, "carried", True) is not None


def _of_a_stranger(prebuilt, trusted, tmp_path):
    signing.new_key(tmp_path / "stranger")
    carried.sign_directory(prebuilt.parents[4], signing.private_key(tmp_path / "stranger"))


def _for_another_use(prebuilt, trusted, tmp_path):
    text = served.artifact().manifest.dump()
    (prebuilt / "signature").write_bytes(signing.sign(text, trusted, "bundle"))


def _of_another_artifact(prebuilt, trusted, tmp_path):
    (prebuilt / "signature").write_bytes(signing.sign(served.artifact(2).manifest.dump(), trusted))


def _longer(prebuilt, trusted, tmp_path):
    carried.sign_directory(prebuilt.parents[4], trusted)
    with (prebuilt / "signature").open("ab") as file:
        file.write(b"x")


def _other_code_with_a_manifest_that_fits(prebuilt, trusted, tmp_path):
    """Whoever can write the directory writes payload and manifest, and keeps the signature of the old ones."""
    carried.sign_directory(prebuilt.parents[4], trusted)
    payload = b"evil"
    evil = replace(served.artifact().manifest, size=len(payload), sha256=hashlib.sha256(payload).hexdigest())
    (prebuilt / "module.so").write_bytes(payload)
    (prebuilt / "manifest.json").write_bytes(evil.dump())


def _a_signed_one_in_the_place_of_another(prebuilt, trusted, tmp_path):
    other = served.artifact(2)
    put_in_place(other, tmp_path / "other")
    carried.sign_directory(tmp_path / "other", trusted)
    shutil.rmtree(prebuilt)
    shutil.copytree(tmp_path / "other" / other.place, prebuilt)


def _a_link(prebuilt, trusted, tmp_path):
    carried.sign_directory(prebuilt.parents[4], trusted)
    (prebuilt / "signature").rename(tmp_path / "signature")
    (prebuilt / "signature").symlink_to(tmp_path / "signature")


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (_of_a_stranger, "signed by none of the keys"),
        (_for_another_use, "signed by none of the keys"),
        (_of_another_artifact, "signed by none of the keys"),
        (_longer, "signed by none of the keys"),
        (_other_code_with_a_manifest_that_fits, "signed by none of the keys"),
        (_a_link, "its signature cannot be read"),
    ],
)
@pytest.mark.parametrize(("name", "vouched"), OF_OTHERS)
def test_what_an_attacker_puts_there_is_refused(prebuilt, trusted, tmp_path, said, attack, reason, name, vouched):
    attack(prebuilt, trusted, tmp_path)
    assert found(prebuilt, name, vouched) is None
    (warning,) = said()
    assert f"{prebuilt} is refused and not used: " in warning
    assert reason in warning


def test_a_directory_in_the_place_of_a_signature_is_refused_and_closed(prebuilt, trusted, said):
    (prebuilt / "signature").mkdir()
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    assert found(prebuilt, "prebuilt", False) is None
    assert len([*Path("/proc/self/fd").iterdir()]) == descriptors
    assert "its signature cannot be read (Is a directory)" in said()[0]


@pytest.mark.parametrize(("name", "vouched"), OF_OTHERS)
def test_a_signed_artifact_in_the_place_of_another_is_damaged(prebuilt, trusted, tmp_path, name, vouched):
    _a_signed_one_in_the_place_of_another(prebuilt, trusted, tmp_path)
    with pytest.raises(ManifestError, match="its manifest belongs to another artifact"):
        found(prebuilt, name, vouched)


def test_keys_that_cannot_be_used_refuse_everything(prebuilt, trusted, monkeypatch, tmp_path, said):
    carried.sign_directory(prebuilt.parents[4], trusted)
    for places in (tmp_path / "nothing", ":"):
        monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(places))
        assert found(prebuilt, "prebuilt", False) is None
    assert [re.search(r"SGLJIT_TRUSTED_KEYS names|cannot be read", warning)[0] for warning in said()] == [
        "cannot be read",
        "SGLJIT_TRUSTED_KEYS names",
    ]


def test_without_this_package_everything_is_refused(prebuilt, trusted, monkeypatch):
    monkeypatch.setitem(sys.modules, "sgljit_remote.carried", None)
    with pytest.raises(ManifestError, match="SGLJIT_TRUSTED_KEYS needs sgljit-remote"):
        found(prebuilt, "carried", True)


def test_a_refused_one_hides_no_other(prebuilt, trusted, tmp_path):
    own = served.artifact()
    put_in_place(own, tmp_path / "here")
    tiers = [Tier(prebuilt.parents[4], name="prebuilt"), Tier(tmp_path / "here")]
    search = lookup.find(tiers, own.manifest.location, own.manifest.toolchain_key)
    assert search.tier == tiers[1]
    assert search.damaged == {}


def test_a_process_loads_what_is_signed_and_compiles_the_rest(run, tmp_path, trusted, key):
    run(LOAD, "1", cache="prebuilt", SGLJIT_REMOTE="", SGLJIT_TRUSTED_KEYS="")
    keys = {"SGLJIT_TRUSTED_KEYS": str(key.parent / "trusted"), "SGLJIT_REMOTE": ""}
    settings = {"SGLJIT_PREBUILT_PATH": str(tmp_path / "prebuilt"), **keys}
    output, errors = run(LOAD, "1", cache="second", **settings)
    assert json.loads(output)["builds"] == {"compiled": 1}
    assert "is refused and not used: it is not signed, and SGLJIT_TRUSTED_KEYS asks for a signature" in errors
    carried.sign_directory(tmp_path / "prebuilt", trusted)
    output, errors = run(LOAD, "1", cache="third", **settings)
    assert json.loads(output)["values"] == [1]
    assert json.loads(output)["hits"] == {"prebuilt": 1}
    assert errors == ""


def test_an_unsigned_archive_is_not_imported(prebuilt, trusted, tmp_path, monkeypatch, said):
    cache = pytest.importorskip("sgljit_tools.cache", reason="the archives are those of sgljit-tools")
    cache.export_archive(tmp_path / "archive.zip", prebuilt.parents[4])
    with pytest.raises(SgljitError, match="no key of SGLJIT_TRUSTED_KEYS has signed it"):
        cache.import_archive(tmp_path / "archive.zip", tmp_path / "imported")
    assert "is refused and not used: it is not signed" in said()[0]
    assert files(tmp_path / "imported") == []
    monkeypatch.delenv("SGLJIT_TRUSTED_KEYS")
    assert cache.import_archive(tmp_path / "archive.zip", tmp_path / "imported") == 1


def test_an_archive_is_signed_and_serves_as_a_prebuilt_directory(prebuilt, trusted, key, tmp_path, said):
    cache = pytest.importorskip("sgljit_tools.cache", reason="the archives are those of sgljit-tools")
    from sgljit_tools.cli.cache import export_archive

    file, root = tmp_path / "archive.zip", tmp_path / "imported"
    export_archive(file, prebuilt.parents[4], sign=key)
    assert cache.import_archive(file, root) == 1
    assert lookup.find([Tier(root, name="prebuilt")], ONE.location, ONE.toolchain_key).artifact is not None
    assert [
        artifact.manifest
        for artifact in objects.unpack(file.read_bytes(), signing.public_keys([key.parent / "trusted"])).artifacts
    ] == [ONE]
    signing.new_key(tmp_path / "stranger")
    commands.sign([file], tmp_path / "stranger")
    assert said() == []
    with pytest.raises(SgljitError, match="no key of SGLJIT_TRUSTED_KEYS has signed it"):
        cache.import_archive(file, tmp_path / "other")
    assert "it is signed by none of the keys" in said()[0]
    before = file.read_bytes()
    with pytest.raises(KeyFileError, match="cannot be read"):
        export_archive(file, prebuilt.parents[4], sign=tmp_path / "nothing")
    assert file.read_bytes() == before


def test_an_archive_with_a_damaged_artifact_is_not_signed(prebuilt, trusted, key, tmp_path):
    file = tmp_path / "archive.zip"
    content = objects.pack([served.artifact(1, sha256="0" * 64)], None)
    for damaged in (content, b"nothing"):
        file.write_bytes(damaged)
        with pytest.raises(RefusedObjectError, match="is damaged: "):
            commands.sign([file], key)
        assert file.read_bytes() == damaged


def test_an_archive_that_is_too_large_for_one_is_not_signed_and_says_so(prebuilt, key, tmp_path, monkeypatch):
    file = tmp_path / "archive.zip"
    content = objects.pack([served.artifact(1)], None)
    file.write_bytes(content)
    monkeypatch.setattr(objects, "LARGEST", 100)
    reason = r"more than the 100 that one archive may have: make several, such as one of each family"
    with pytest.raises(RefusedObjectError, match=rf"archive\.zip is not signed: its files have \d+ bytes, {reason}"):
        commands.sign([file], key)
    assert file.read_bytes() == content


@pytest.fixture
def wheel(prebuilt, tmp_path):
    """A wheel that carries the artifact."""
    info, root = "acme-1.0.dist-info", prebuilt.parents[4]
    files = {f"acme/prebuilt/{path.relative_to(root)}": path.read_bytes() for path in prebuilt.iterdir()}
    files |= {"acme/__init__.py": b"", f"{info}/METADATA": b"Name: acme\n", f"{info}/WHEEL": b"Wheel-Version: 1.0\n"}
    with zipfile.ZipFile(tmp_path / "acme-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n")
    return tmp_path / "acme-1.0-py3-none-any.whl"


def test_a_wheel_is_signed_and_its_record_lists_the_signatures(wheel, key, trusted, tmp_path, capsys):
    commands.sign([wheel], key)
    commands.sign([wheel], key)  # again, such as with the next key
    assert capsys.readouterr().out == f"signed 1 artifacts in {wheel}\n" * 2
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        record = archive.read("acme-1.0.dist-info/RECORD").decode().splitlines()
        assert {one.external_attr >> 16 for one in archive.infolist() if one.filename.endswith("/signature")} == {
            0o100644
        }
        assert len(archive.namelist()) == len(set(archive.namelist())) == len(record) == 7
    (name, digest, size) = next(row for row in csv.reader(record) if row[0].endswith("/signature"))
    content = (tmp_path / "site" / name).read_bytes()
    encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    assert (digest, size) == (f"sha256={encoded}", "64")
    assert record[-1] == "acme-1.0.dist-info/RECORD,,"
    root = tmp_path / "site/acme/prebuilt"
    assert Tier(root, True, "carried").read(root / served.artifact().place) is not None


def test_what_is_no_wheel_or_is_damaged_is_not_signed(wheel, prebuilt, key, tmp_path, monkeypatch):
    (tmp_path / "nothing.whl").write_bytes(b"nothing")
    with pytest.raises(RefusedObjectError, match=r"nothing.whl is no wheel, or is damaged"):
        commands.sign([tmp_path / "nothing.whl"], key)
    before = wheel.read_bytes()
    (prebuilt / "module.so").write_bytes(b"evil")
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, b"evil" if name.endswith("module.so") else content)
    altered = wheel.read_bytes()
    assert altered != before
    with pytest.raises(RefusedObjectError, match=r"module\.so is not the one that its manifest says"):
        commands.sign([wheel], key)
    assert wheel.read_bytes() == altered
    with pytest.raises(ManifestError):
        commands.sign([prebuilt.parents[4]], key)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("fault", ["missing", "garbled"])
def test_a_wheel_without_a_payload_that_can_be_read_is_not_signed(wheel, key, fault):
    with zipfile.ZipFile(wheel) as archive:
        (payload,) = (member for member in archive.infolist() if member.filename.endswith("module.so"))
        contents = {name: archive.read(name) for name in archive.namelist() if name != payload.filename}
    if fault == "missing":
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
    else:
        with wheel.open("r+b") as file:
            file.seek(payload.header_offset + 30 + len(payload.filename))
            file.write(b"\xff")  # no kind of block of a compressed stream
    before = wheel.read_bytes()
    with pytest.raises(RefusedObjectError, match=r"whl is no wheel, or is damaged: .*(There is no item|invalid block)"):
        commands.sign([wheel], key)
    assert wheel.read_bytes() == before


def test_a_key_is_looked_at_where_there_is_nothing_to_sign_yet(key, tmp_path):
    commands.sign([], key)
    with pytest.raises(KeyFileError, match="nothing cannot be read"):
        commands.sign([], tmp_path / "nothing")


def test_without_a_key_or_an_artifact_nothing_is_signed(wheel, key, tmp_path):
    with pytest.raises(ConfigError, match="no key to sign with: name one with --sign"):
        commands.sign([wheel], None)
    with pytest.raises(KeyFileError):
        commands.sign([wheel], tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no artifact to sign"):
        commands.sign([tmp_path / "empty"], key)


def test_the_signature_is_that_of_an_object_of_a_remote(prebuilt, trusted):
    carried.sign_directory(prebuilt.parents[4], trusted)
    packed = objects.pack([served.artifact()], trusted)
    with zipfile.ZipFile(carried.io.BytesIO(packed)) as archive:
        assert archive.read(f"{served.artifact().place}/signature") == (prebuilt / "signature").read_bytes()
