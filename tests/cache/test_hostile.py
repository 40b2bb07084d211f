"""Archives and artifacts that somebody made to do harm: refused by name, and no harm to their neighbours."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import struct
import warnings
import zipfile
from pathlib import Path

import pytest
from kit import artifacts, change_manifest, leftovers, mostly_slow

import sgljit_tools.cache
from sgljit_core import errors
from sgljit_core.cache import keys, lookup
from sgljit_tools.errors import ArchiveError

PLACE = f"cpu/_/m/{'0' * 32}/{'0' * 32}"


def _zip(*names, content=b"", **fields):
    """An archive of files with these names, whose headers say what ``fields`` says."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in names:
            member = zipfile.ZipInfo(name)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.writestr(member, content, fields.get("compress_type", zipfile.ZIP_DEFLATED))
    return out.getvalue()


def _claiming(size):
    """An archive whose one file is large, and whose directory says that it has ``size`` bytes."""
    packed = bytearray(_zip(f"{PLACE}/module.so", content=bytes(BIG)))
    struct.pack_into("<I", packed, packed.index(b"PK\1\2") + 24, size)
    return bytes(packed)


BIG = 256 << 20
HOSTILE = {
    "a bomb": (lambda: _zip(f"{PLACE}/module.so", content=bytes(BIG)), "holds far more than it can"),
    "a bomb that denies it": (lambda: _claiming(99), "is damaged: Bad CRC-32"),
    "many files": (lambda: _zip(*map(str, range(65_537))), "holds more than 65536 files"),
    "many directories": (lambda: _zip(*(f"{i}/" for i in range(65_537))), "holds more than 65536 files"),
    "twice": (lambda: _zip(*[f"{PLACE}/module.so"] * 2), f"holds {PLACE}/module.so twice"),
    "hidden": (lambda: _zip(f".locks/{PLACE[4:]}/module.so"), "holds '.locks/.*is no file of an"),
    "a hidden file": (lambda: _zip(f"{PLACE}/.module.so"), "is no file of an artifact"),
    "a long name": (lambda: _zip(f"{PLACE}/{'x' * 256}"), "is no file of an artifact"),
    "a long target": (lambda: _zip(f"{'x' * 256}{PLACE[3:]}/module.so"), "is no file of an artifact"),
    "a long family": (lambda: _zip(PLACE.replace("_", "x" * 256) + "/module.so"), "is no file of an artifact"),
    "long in bytes": (lambda: _zip(f"{PLACE}/{'é' * 200}"), "is no file of an artifact"),
    "another compression": (
        lambda: _zip(f"{PLACE}/module.so", compress_type=zipfile.ZIP_LZMA),
        "is no file of an artifact",
    ),
    "a cipher": (lambda: _ciphered(_zip(f"{PLACE}/module.so")), "is damaged: File .* is encrypted"),
}


def _ciphered(packed):
    packed = bytearray(packed)
    for header, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        packed[packed.index(header) + place] |= 1
    return bytes(packed)


@pytest.mark.parametrize("kind", mostly_slow(*HOSTILE, quick=4))
def test_a_hostile_archive_is_refused_and_takes_little(cache, tmp_path, kind):
    make, text = HOSTILE[kind]
    file = tmp_path / "bad.zip"
    file.write_bytes(make())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BIG // 2, before[1]))
    try:
        with pytest.raises(ArchiveError, match=text):
            sgljit_tools.cache.import_archive(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert artifacts(cache) == leftovers(cache) == []


def test_a_file_of_an_archive_has_a_limit(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(lookup, "LARGEST", 99)
    (tmp_path / "a.zip").write_bytes(_zip(f"{PLACE}/module.so", content=bytes(100)))
    with pytest.raises(ArchiveError, match=r"module\.so claims 100 bytes"):
        sgljit_tools.cache.import_archive(tmp_path / "a.zip")


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_an_observed_file_that_could_be_read_for_ever_is_not_read(load, children, cache, csrc, tmp_path, kind):
    header = tmp_path / "flagged" / "flagged.h"
    header.parent.mkdir()
    header.write_text("#define VALUE 1\n")
    (csrc / "value.h").write_text("#include <flagged.h>\n")
    flags = (f"-I{header.parent}",)
    assert load(flags=flags).number() == 1
    (artifact,) = artifacts(cache)
    os.mkfifo(tmp_path / "fifo")
    endless = {"fifo": str(tmp_path / "fifo"), "device": "/dev/zero"}[kind]
    change_manifest(artifact, observed={endless: "0" * 64})
    assert children.start(flags=flags).join().endswith("1\n")


ODD = {
    "size": "many",
    "seconds": "long",
    "created": float("nan"),
    "build": 7,
    "payload": "module\0.so",
    "markers": "number",
    "source": ["a"],
    "toolchain": None,
    "observed": {"/etc/passwd": 1},
}


@pytest.mark.slow
def test_bad_artifacts_neither_break_nor_hide_the_others(load, sgljit, cache, tmp_path):
    for index in range(len(ODD) + 5):
        load(str(index), flags=(f"-DVALUE={index}",))
    whole, *bad = artifacts(cache)
    for (name, value), artifact in zip(ODD.items(), bad, strict=False):
        change_manifest(artifact, **{name: value})
    deep, number, fifo, foreign = bad[len(ODD) :]
    (deep / "manifest.json").write_text("[" * 100_000)
    (number / "manifest.json").write_text(json.dumps({"manifest": 5, "sha256": keys.digest("5"), "format": 1}))
    (fifo / "manifest.json").unlink()
    os.mkfifo(fifo / "manifest.json")
    (foreign / "module.so").chmod(0o777)

    found = {entry.directory: entry for entry in sgljit_tools.cache.entries()}
    assert set(found) == {whole, *bad}
    for name, artifact in zip(ODD, bad, strict=False):
        assert found[artifact].problem == f"its manifest has other types than expected: {name}"
    result = sgljit("cache", "list")
    assert (result.returncode, result.stderr) == (0, "")
    assert {entry.directory for entry in sgljit_tools.cache.verify()} == set(bad)
    assert sgljit_tools.cache.export_archive(tmp_path / "a.zip") == 1
    assert {entry.directory for entry in sgljit_tools.cache.prune().artifacts} == set(bad) - {foreign}
    assert artifacts(cache) == sorted([whole, foreign])


def test_a_directory_that_may_not_be_listed_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    def closed(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(
        errors.StorageError, match=r"the cache cannot be listed: .*Permission denied.*Name another that you may"
    ):
        sgljit_tools.cache.entries(tmp_path)


def test_an_archive_that_cannot_be_opened_is_an_error_with_a_remedy(cache, tmp_path):
    for file, reason in ((tmp_path / ("x" * 300), "File name too long"), (tmp_path, "Is a directory")):
        with pytest.raises(
            errors.StorageError, match=f"the archive cannot be imported: .*{reason}.*Name another that you may read"
        ):
            sgljit_tools.cache.import_archive(file)
    with pytest.raises(FileNotFoundError, match=r"nothing\.zip"):
        sgljit_tools.cache.import_archive(tmp_path / "nothing.zip")
    assert leftovers(cache) == []


@pytest.mark.parametrize("flags", ["[", "[" * 100_000, "5"])
def test_odd_flags_in_a_manifest_do_not_hinder_what_says_why_a_build_is_a_miss(load, cache, caplog, flags):
    """An archive may bring it: the manifest has the sha256 that it claims, and is of another key."""
    load(flags=("-DVALUE=2",))
    (artifact,) = artifacts(cache)
    source = json.loads((artifact / "manifest.json").read_text())["manifest"]["source"]
    change_manifest(artifact, source={**source, "flags cxx": flags})
    caplog.set_level("INFO", "sgljit")
    assert load().number() == 1
    assert "number for cpu-x86_64: a miss" in caplog.text
