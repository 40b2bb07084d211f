"""Shipping artifacts: prebuilt tiers, archives; looking after a cache: why, verify, prune, the command line."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import plugin_on_disk
import pytest
from kit import LOAD, artifacts, leftovers, made

import sgljit_core
import sgljit_tools.cache
from sgljit_core import errors
from sgljit_core.cache import explain, keys, lookup, manifest
from sgljit_core.machine import roots
from sgljit_tools.errors import ArchiveError

NO_COMPILER = {"PATH": "", "SGLJIT_CXX": "none"}


@pytest.mark.parametrize(
    ("differs", "is_offered"),
    [
        ({"core_abi": "0"}, True),
        ({"core_abi": "0", "file core:/sgl_kernel/utils.h": "0" * 64}, True),
        ({"core_abi": "0", "kernel": "of<another>"}, False),
        ({"kernel": "of<another>"}, False),
        ({"file core:/sgl_kernel/utils.h": "0" * 64}, False),
    ],
)
def test_packages_are_offered_if_the_core_alone_differs(tmp_path, differs, is_offered):
    source = {"core_abi": "1", "kernel": "of<this>", "file core:/sgl_kernel/utils.h": "1" * 64}
    texts = dict.fromkeys(("target", "family", "module", "sha256", "command", "build", "payload"), "x")
    sizes = dict.fromkeys(("size", "seconds", "created"), 0)
    fields = {**texts, **sizes, "markers": (), "toolchain": {}, "observed": {}}
    carried = manifest.Manifest(**fields, plugin="acme 1.0", core="0.0.9", source={**source, **differs})
    place = tmp_path / carried.location.path / carried.entry_name()
    place.mkdir(parents=True)
    (place / manifest.FILE).write_bytes(carried.dump())
    wanted = keys.Location("x", "x", "x", keys.key(source))
    answer = explain.explain_miss("x", (), wanted, source, {}, [lookup.Tier(tmp_path, True)])
    offered = ". acme 1.0 carries it for the ABI of sgljit-core==0.0.9: pip install --upgrade acme, or pip install"
    assert answer.nearest == place
    assert answer.remedy.startswith(offered) if is_offered else answer.remedy == ""


def test_a_prebuilt_directory_is_searched_and_never_written(children, warm_cache, cache, tmp_path):
    prebuilt = warm_cache.rename(tmp_path / "prebuilt")
    before = {path: path.stat().st_mtime_ns for path in prebuilt.rglob("*")}
    environment = {**NO_COMPILER, "SGLJIT_PREBUILT_PATH": f"{tmp_path / 'nothing'}:{prebuilt}"}
    output = children.run(env=environment)
    assert output.endswith("1\n")
    assert f"SGLJIT_PREBUILT_PATH names {tmp_path / 'nothing'}, which is not a directory" in output
    assert children.run(env={"SGLJIT_PREBUILT_PATH": str(prebuilt)}, markers=("b",), flags=("-DVALUE=2",)) == "2\n"
    assert {path: path.stat().st_mtime_ns for path in prebuilt.rglob("*")} == before
    assert len(artifacts(cache)) == 1


def test_a_damaged_prebuilt_artifact_is_left_alone_and_built_again(children, warm_cache, tmp_path):
    prebuilt = warm_cache.rename(tmp_path / "prebuilt")
    (artifact,) = artifacts(prebuilt)
    (artifact / "module.so").write_bytes(b"")
    output = children.run(env={"SGLJIT_PREBUILT_PATH": str(prebuilt)})
    assert output.endswith("1\n")
    assert "is damaged and not used" in output
    assert (artifact / "module.so").exists()


def test_a_prebuilt_directory_that_others_can_write_is_refused(sgljit, children, warm_cache, tmp_path):
    prebuilt = warm_cache.rename(tmp_path / "prebuilt")
    prebuilt.chmod(0o777)
    child = children.start(env={"SGLJIT_PREBUILT_PATH": str(prebuilt)})
    child.end()
    assert f"{prebuilt} can be written by group or others" in child.output
    assert "or leave it out of SGLJIT_PREBUILT_PATH, or accept it with SGLJIT_TRUST_SHARED_CACHE=1" in child.output
    assert "SGLJIT_CACHE_DIR" not in child.output
    result = sgljit("cache", "verify", "--directory", str(prebuilt))
    assert result.returncode == 1
    assert "or name another directory, or accept it" in result.stderr


def test_a_relative_prebuilt_directory_is_refused(load, monkeypatch):
    monkeypatch.setenv("SGLJIT_PREBUILT_PATH", "some/where")
    with pytest.raises(errors.ConfigError, match="SGLJIT_PREBUILT_PATH must list absolute paths"):
        load()


PREBUILT_PLUGIN = """
from pathlib import Path
from sgljit_core import hookimpl

@hookimpl
def sgljit_prebuilt_dirs():
    return [Path(__file__).parent / "artifacts"]
"""


def test_a_plugin_may_bring_artifacts(children, warm_cache, tmp_path):
    """A wheel of artifacts alone, installed where another user's files are."""
    site = tmp_path / "site"
    package = plugin_on_disk.install(site, "sgljit-bundle", "bundle", plugin=PREBUILT_PLUGIN, group="sgljit.extensions")
    warm_cache.rename(package / "artifacts")
    (package / "artifacts").chmod(0o775)
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n" + LOAD
    assert children.run(code, env=NO_COMPILER) == "1\n"
    child = children.start(code, env={**NO_COMPILER, "SGLJIT_PLUGINS": ""})
    child.end()
    assert "No artifact of it was found in" in child.output


FETCHING_PLUGIN = """
import shutil
from pathlib import Path
from sgljit_core import hookimpl

@hookimpl
def sgljit_fetch(location, toolchain_key, root):
    print("asked", location.parts[2], toolchain_key is None)
    shutil.copytree(Path(__file__).parent / "artifacts", root, dirs_exist_ok=True)
    return root
"""
TIERS = "import sgljit_core\nprint(sgljit_core.stats().hits)\n"


@pytest.fixture
def fetching(warm_cache, tmp_path) -> str:
    """Code that installs an extension, which copies the artifacts of a warm cache into the one that misses them."""
    site = tmp_path / "site"
    plugin = {"plugin": FETCHING_PLUGIN, "group": "sgljit.extensions"}
    package = plugin_on_disk.install(site, "sgljit-fetching", "fetching", **plugin)
    warm_cache.rename(package / "artifacts")
    return f"import sys; sys.path.insert(0, {str(site)!r})\n"


def test_an_extension_brings_what_no_tier_has(children, fetching):
    assert children.run(fetching + LOAD + TIERS, env=NO_COMPILER) == "asked number True\n1\n{'remote': 1}\n"
    assert children.run(fetching + LOAD + TIERS, env=NO_COMPILER) == "1\n{'cache': 1}\n"


def test_what_an_extension_brings_is_verified_and_compiled_if_it_is_damaged(children, fetching, tmp_path):
    (artifact,) = artifacts(tmp_path / "site" / "sgljit_fetching" / "artifacts")
    (artifact / "module.so").write_bytes(b"other code")
    output = children.run(fetching + LOAD)
    assert output.startswith("asked number False\n")
    assert "is damaged and not used" in output
    assert output.endswith("\n1\n")


@pytest.mark.parametrize("mode", ["error", "warn"])
def test_after_the_warm_up_no_extension_is_asked(children, fetching, mode):
    code = f"{fetching}import sgljit_core; sgljit_core.freeze({mode!r})\n{LOAD}"
    child = children.start(code)
    child.end()
    assert "asked" not in child.output
    assert ("CompileForbiddenError" if mode == "error" else "a miss") in child.output


def test_a_process_that_may_not_compile_asks_all_the_same(children, fetching):
    code = f"{fetching}import sgljit_core; sgljit_core.freeze('on')\n{LOAD}"
    assert children.run(code, env={"SGLJIT_JIT": "error"}) == "asked number False\n1\n"


def test_neither_a_question_nor_a_capture_asks_an_extension(children, fetching):
    question = LOAD.replace("module = ", "sgljit_core.why(lambda: ").replace(
        "extra_cflags=flags)", "extra_cflags=flags))"
    )
    question = question.replace("print(module.number())", "")
    assert children.run(f"{fetching}import sgljit_core{question}") == ""
    capture = "import torch; torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True"
    child = children.start(f"{fetching}{capture}\n{LOAD}")
    child.end()
    assert "CaptureError" in child.output
    assert "asked" not in child.output


def test_an_archive_carries_artifacts_to_a_machine_without_a_compiler(load, children, cache, tmp_path):
    load("a")
    load("b", flags=("-DVALUE=2",))
    file = tmp_path / "kernels.zip"
    assert sgljit_tools.cache.export_archive(file) == 2
    cache.rename(tmp_path / "away")
    assert sgljit_tools.cache.import_archive(file) == 2
    assert sgljit_tools.cache.import_archive(file) == 2  # again: nothing changes
    assert leftovers(cache) == []
    assert children.run(env=NO_COMPILER, markers=("a",)) == "1\n"
    assert children.run(env=NO_COMPILER, markers=("b",), flags=("-DVALUE=2",)) == "2\n"


def test_the_same_artifacts_make_the_same_archive(warm_cache, tmp_path):
    for name in ("one.zip", "two.zip"):
        sgljit_tools.cache.export_archive(tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_an_export_of_nothing_leaves_a_file_as_it_is(warm_cache, tmp_path):
    file = tmp_path / "a.zip"
    assert sgljit_tools.cache.export_archive(file, family="norm") == 0
    assert not file.exists()
    sgljit_tools.cache.export_archive(file)
    before = file.read_bytes()
    assert sgljit_tools.cache.export_archive(file, target="sm_90a") == 0
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.glob("*.zip*")] == ["a.zip"]
    with pytest.raises(FileNotFoundError, match=r"/nowhere'$"):
        sgljit_tools.cache.export_archive(tmp_path / "nowhere/a.zip")


def _rewritten(source, target, change):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            new.writestr(*change(member.filename, old.read(member)))
    return target


def _renamed(to):
    return lambda name, content: (to if name.endswith(".so") else name, content)


def _linked(name, content):
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return (member, "/etc/passwd") if name.endswith(".so") else (name, content)


def _truncated(name, content):
    return name, content[: len(content) // 2] if name.endswith(".so") else content


BAD = {
    "out of the root": (_renamed("../../evil.so"), "which is no file of an artifact"),
    "absolute": (_renamed("/tmp/evil.so"), "which is no file of an artifact"),
    "dots inside": (
        _renamed("cpu/../m/" + "0" * 32 + "/" + "0" * 32 + "/module.so"),
        "which is no file of an artifact",
    ),
    "a link": (_linked, "has 11 bytes, expected"),  # it is read as a file
    "truncated payload": (_truncated, "is damaged: "),
    "another place": (
        lambda name, content: (f"sm_90a/{name.partition('/')[2]}", content),
        "is not what its manifest says",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_archive_is_refused_and_leaves_nothing(warm_cache, tmp_path, kind):
    change, text = BAD[kind]
    sgljit_tools.cache.export_archive(tmp_path / "good.zip")
    bad = _rewritten(tmp_path / "good.zip", tmp_path / "bad.zip", change)
    warm_cache.rename(tmp_path / "away")
    with pytest.raises(ArchiveError, match=text):
        sgljit_tools.cache.import_archive(bad)
    assert artifacts(warm_cache) == []
    assert leftovers(warm_cache) == []
    assert not (tmp_path / "evil.so").exists()


def test_an_archive_that_was_cut_is_refused(load, cache, tmp_path):
    load()
    load("other", flags=("-DVALUE=2",))
    assert sgljit_tools.cache.export_archive(tmp_path / "all.zip") == 2
    packed = (tmp_path / "all.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        third = archive.infolist()[2].header_offset
    cache.rename(tmp_path / "away")
    for length in (0, third, len(packed) - 1):
        (tmp_path / "cut.zip").write_bytes(packed[:length])
        with pytest.raises(ArchiveError, match="is damaged"):
            sgljit_tools.cache.import_archive(tmp_path / "cut.zip")
    assert artifacts(cache) == []


def test_where_one_artifact_of_an_archive_has_no_place_none_enters(load, cache, tmp_path):
    load()
    load("other", flags=("-DVALUE=2",))
    sgljit_tools.cache.export_archive(tmp_path / "two.zip")
    *_, last = (path.parent.relative_to(cache) for path in artifacts(cache))
    cache.rename(tmp_path / "away")
    roots.make(cache, *last.parent.parts)
    (cache / last).write_text("a file")
    with pytest.raises(errors.StorageError):
        sgljit_tools.cache.import_archive(tmp_path / "two.zip")
    assert artifacts(cache) == []


@pytest.mark.parametrize("text", ['"created": 1e400', '"created": ' + "9" * 400, r'"build": "\ud800"'])
def test_a_manifest_with_what_nobody_can_print_is_damaged(warm_cache, text):
    (artifact,) = artifacts(warm_cache)
    file = artifact / "manifest.json"
    document = json.loads(file.read_text())
    document["manifest"] |= json.loads("{" + text + "}")
    document["sha256"] = keys.digest(keys.canonical(document["manifest"]))
    file.write_text(json.dumps(document))
    with pytest.raises(manifest.ManifestError, match=r"other types than expected|cannot be read"):
        manifest.Manifest.parse(file.read_bytes())
    assert sgljit_tools.cache.prune().artifacts != []


def test_what_is_no_archive_is_refused(cache, tmp_path):
    (tmp_path / "text.zip").write_text("hello " * 1000)
    with pytest.raises(ArchiveError, match="is no archive of artifacts, or is damaged"):
        sgljit_tools.cache.import_archive(tmp_path / "text.zip")
    with pytest.raises(ArchiveError, match=r"text\.tar: the name of an archive ends in \.zip"):
        sgljit_tools.cache.export_archive(tmp_path / "text.tar")
    with pytest.raises(FileNotFoundError):
        sgljit_tools.cache.import_archive(tmp_path / "missing.zip")


def test_why_names_the_first_difference(load, csrc, compiler, monkeypatch):
    why = sgljit_core.why
    assert why(load).artifact is None
    assert str(why(load)).endswith("no artifact of this module and target was ever built here")
    load()
    assert why(load).artifact is not None
    assert "a hit" in str(why(load))
    (csrc / "value.h").write_text("#define VALUE 2\n")
    assert why(load).differences == ("csrc/value.h changed",)
    assert why(lambda: load(flags=("-g",))).differences == ("csrc/value.h changed", "flag -g added (cxx)")
    (csrc / "value.h").write_text("#pragma once\n#ifndef VALUE\n#define VALUE 1\n#endif\n")
    text = compiler.path.read_text()
    compiler.path.write_text(
        text.replace('*" --version "*) exec', '*" --version "*) echo "g++ 99.1"; exit;;\n*" -v- "*) exec')
    )
    (difference,) = why(load).differences
    assert difference.startswith("cxx ")
    assert difference.endswith("-> g++ 99.1")
    with pytest.raises(ValueError, match="did not ask for a module"):
        why(lambda: None)
    assert len(sgljit_tools.cache.entries()) == 1  # nothing was built by asking


def test_entries_verify_and_prune(load, cache):
    for i in range(4):
        load(str(i), flags=(f"-DVALUE={i}",))
    found = sgljit_tools.cache.entries()
    assert [entry.manifest.module for entry in found] == ["number"] * 4
    assert all(entry.size > 1000 and not entry.problem for entry in found)
    (found[0].directory / "module.so").write_bytes(b"x")
    (damaged,) = sgljit_tools.cache.verify()
    assert damaged.directory == found[0].directory
    assert "has 1 bytes, expected" in damaged.problem
    assert [entry.directory for entry in sgljit_tools.cache.prune().artifacts] == [damaged.directory]
    by_age = sorted(sgljit_tools.cache.entries(), key=lambda entry: entry.built)
    removed = sgljit_tools.cache.prune(larger_than=by_age[-1].size).artifacts
    assert [e.directory for e in removed] == [e.directory for e in by_age[:2]]
    value = by_age[-1].manifest.markers[1]
    newest = sgljit_core.why(lambda: load(value, flags=(f"-DVALUE={value}",)))
    other = sgljit_core.why(lambda: load("edited", flags=("-DVALUE=4",)))
    assert sgljit_tools.cache.prune(keep=[newest]).artifacts == []
    assert sgljit_tools.cache.prune(keep=[]).artifacts == []
    assert len(sgljit_tools.cache.prune(keep=[other]).artifacts) == 1
    assert [path.name for path in cache.iterdir() if not path.name.startswith(".")] == ["CACHEDIR.TAG"]


def test_prune_by_age(warm_cache):
    assert sgljit_tools.cache.prune(older_than=3600).artifacts == []
    time.sleep(0.01)
    assert len(sgljit_tools.cache.prune(older_than=0).artifacts) == 1


def _used(artifact, hours):
    then = time.time() - hours * 3600
    os.utime(artifact, (then, then))


def test_prune_by_size_goes_by_last_use_and_a_dry_run_only_says_so(load, sgljit, children, cache):
    for i in range(3):
        load(str(i), flags=(f"-DVALUE={i}",))
    found = sorted(sgljit_tools.cache.entries(), key=lambda entry: entry.built)
    oldest, unused, newest = (entry.directory for entry in found)
    for artifact in (oldest, unused, newest):
        _used(artifact, 50)
    assert children.run(markers=("0",), flags=("-DVALUE=0",)) == "0\n"  # a hit
    _used(newest, 1)
    before = newest.stat().st_mtime
    assert children.run(markers=("2",), flags=("-DVALUE=2",)) == "2\n"
    assert newest.stat().st_mtime == before  # once a day is enough
    limit = f"{2.5 * found[0].size / 1e6}"
    result = sgljit("cache", "prune", "--megabytes", limit, "--dry-run")
    assert f"{unused}\nwould remove 1 artifacts, " in result.stdout, result.stderr
    assert len(artifacts(cache)) == 3
    result = sgljit("cache", "prune", "--megabytes", limit)
    assert f"{unused}\nremoved 1 artifacts, " in result.stdout, result.stderr
    assert artifacts(cache) == sorted([oldest, newest])


def test_nothing_but_artifacts_is_removed_from_a_directory_that_somebody_uses_for_more(load, cache):
    """Files of the user's own, some five levels below, where artifacts lie."""
    load()
    (artifact,) = artifacts(cache)
    own = [
        cache / "work/project/src/deep/dir/thesis.tex",
        cache / "work/project/src/deep/file.txt",
        cache / "blobs" / "a" / "b" / ("0" * 32) / "notes",
        cache / "blobs" / "a" / "b" / ("0" * 32) / ("1" * 32),  # a file
    ]
    for file in own:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"precious" * 1000)
        _used(file, 72)
        _used(file.parent, 72)
    link = artifact.parent / ("2" * 32)
    link.symlink_to(own[0].parent)
    assert sgljit_tools.cache.prune(older_than=0, larger_than=0).artifacts
    assert all(file.is_file() for file in own)
    assert not artifact.exists()


def test_prune_of_an_absent_cache_makes_none(cache):
    assert sgljit_tools.cache.prune() == ([], [])
    assert sgljit_tools.cache.entries() == []
    assert not cache.exists()


@pytest.mark.slow
def test_pruning_while_others_build_and_load(children, cache):
    """Twenty builds beside a process that prunes everything all the time."""
    pruner = children.start("import sgljit_tools.cache\nwhile True: sgljit_tools.cache.prune(older_than=0)")
    for i in range(10):
        assert children.run(markers=(str(i),), flags=(f"-DVALUE={i}",)) == f"{i}\n"
    assert pruner.process.is_alive()


def test_the_command_line(sgljit, load, cache, tmp_path):
    load("cli")
    assert sgljit("cache", "path").stdout.strip() == str(cache)
    listed = sgljit("cache", "list").stdout
    assert "number<cli> for cpu-" in listed
    assert "1 artifacts" in listed
    assert sgljit("cache", "verify").returncode == 0
    assert "wrote 1 artifacts" in sgljit("cache", "export", str(tmp_path / "a.zip")).stdout
    other = made(tmp_path / "other")
    assert "1 artifacts" in sgljit("cache", "import", str(tmp_path / "a.zip"), "--directory", str(other)).stdout
    (artifact,) = artifacts(other)
    (artifact / "module.so").write_bytes(b"")
    result = sgljit("cache", "verify", "--directory", str(other))
    assert result.returncode == 1
    assert "has 0 bytes" in result.stdout
    assert "removed 1 artifacts" in sgljit("cache", "prune", "--directory", str(other)).stdout
    assert "removed 1 artifacts" in sgljit("cache", "prune", "--days", "0").stdout
    result = sgljit("cache", "why", "no_such_family")
    assert result.returncode == 1
    assert "no installed plugin provides the kernel family 'no_such_family'" in result.stderr


def test_the_command_line_speaks_json(sgljit, load, cache):
    load("spoken")
    (one,) = json.loads(sgljit("cache", "list", "--json").stdout)["artifacts"]
    assert one["build"].startswith("number<spoken> for cpu-")
    assert one["bytes"] > 0
    assert one["problem"] == ""
    assert json.loads(sgljit("cache", "verify", "--json").stdout) == {"total": 1, "damaged": []}
    (artifact,) = artifacts(cache)
    (artifact / "module.so").write_bytes(b"")
    result = sgljit("cache", "verify", "--json")
    (damaged,) = json.loads(result.stdout)["damaged"]
    assert result.returncode == 1
    assert damaged["directory"] == str(artifact)
    assert "has 0 bytes" in damaged["problem"]
    would = json.loads(sgljit("cache", "prune", "--dry-run", "--json").stdout)
    assert [one["directory"] for one in would["artifacts"]] == [str(artifact)]
    assert would["dry_run"] is True
    (artifact / "manifest.json").write_text("{")
    (unknown,) = json.loads(sgljit("cache", "list", "--json").stdout)["artifacts"]
    assert set(unknown) == {"directory", "bytes", "problem"}
    assert unknown["problem"]


def test_a_long_list_says_what_kernels_take(sgljit, load, cache):
    load("long")
    (artifact,) = artifacts(cache)
    document = json.loads((artifact / "manifest.json").read_text())
    assert "registers" not in sgljit("cache", "list", "--long").stdout
    document["manifest"]["resources"] = {"registers": 40, "shared_bytes": 512, "spilled_bytes": 8}
    document["sha256"] = keys.digest(keys.canonical(document["manifest"]))
    (artifact / "manifest.json").write_text(json.dumps(document))
    assert "s, 40 registers, 512 shared bytes, 8 spilled bytes\n" in sgljit("cache", "list", "--long").stdout
    assert "registers" not in sgljit("cache", "list").stdout
    (one,) = json.loads(sgljit("cache", "list", "--json").stdout)["artifacts"]
    assert one["resources"]["spilled_bytes"] == 8


@pytest.mark.parametrize("resources", [None, {"registers": "40"}, {"registers": -1}, [], "missing"])
def test_a_manifest_of_before_has_no_resources_and_one_with_others_is_damaged(load, cache, resources):
    load("before")
    (artifact,) = artifacts(cache)
    document = json.loads((artifact / "manifest.json").read_text())
    document["manifest"]["resources"] = resources
    if resources == "missing":
        del document["manifest"]["resources"]
    document["sha256"] = keys.digest(keys.canonical(document["manifest"]))
    text = json.dumps(document).encode()
    if resources == "missing":
        assert manifest.Manifest.parse(text).resources == {}
    else:
        with pytest.raises(manifest.ManifestError, match="other types than expected: resources"):
            manifest.Manifest.parse(text)


def test_an_export_that_leaves_damaged_artifacts_out_fails_and_names_them(sgljit, load, cache, tmp_path):
    load("whole")
    load("damaged", flags=("-DVALUE=2",))
    damaged = next(path for path in artifacts(cache) if b"damaged" in (path / "manifest.json").read_bytes())
    (damaged / "module.so").write_bytes(b"")
    result = sgljit("cache", "export", str(tmp_path / "a.zip"))
    assert result.returncode == 1
    assert "wrote 1 artifacts" in result.stdout
    assert f"{damaged} is damaged and left out: module.so has 0 bytes" in result.stderr
    assert "error: some artifacts could not be written" in result.stderr


@pytest.mark.parametrize("command", [("verify",), ("list",), ("prune",), ("export", "none.zip")])
def test_a_directory_that_is_not_there_is_refused(sgljit, cache, tmp_path, command):
    missing = tmp_path / "missing"
    result = sgljit("cache", *command, "--directory", str(missing))
    assert result.returncode == 1
    assert result.stderr == f"error: {missing} is not a directory, so there are no artifacts in it\n"
    assert not missing.exists()


def test_the_users_own_cache_need_not_be_there_yet(sgljit, cache):
    result = sgljit("cache", "verify")
    assert (result.returncode, result.stdout) == (0, "0 damaged of 0\n")
    assert sgljit("cache", "verify", "--directory", str(cache)).returncode == 0


def test_a_miss_without_a_difference_names_the_damaged_artifact_or_the_file_that_changed(load, cache, csrc, tmp_path):
    header = made(tmp_path / "flagged") / "flagged.h"
    header.write_text("#define VALUE 1\n")
    (csrc / "value.h").write_text("#include <flagged.h>\n")

    def observed():
        return load(flags=(f"-I{header.parent}",))

    observed()
    (artifact,) = artifacts(cache)
    header.write_text("#define VALUE 2\n")
    assert sgljit_core.why(observed).differences == (f"{header}, which the compiler read, changed",)
    header.unlink()
    answer = sgljit_core.why(observed)
    assert str(answer).endswith(f"differs: {header}, which the compiler read, is gone")
    (artifact / "module.so").write_bytes(b"")
    (difference,) = sgljit_core.why(observed).differences
    assert difference.startswith(f"{artifact} is damaged: module.so has 0 bytes, expected ")


NUMBERS = """
import torch
from .plugin import FAMILY
def samples(device):
    for i in range(3):
        yield {"x": torch.zeros(1), "i": i}
@FAMILY.op(mutates=("x",), samples="sgljit_many.ops:samples")
def number(x: torch.Tensor, i: int) -> None:
    FAMILY.load_jit("number", str(i), cpp_files=["number.cpp"], cpp_wrappers=[("number", f"number<{i}>")]).number()
"""


@pytest.mark.slow
def test_a_family_is_built_ahead_explained_and_kept_when_stale_ones_go(sgljit, load, cache, tmp_path):
    site = tmp_path / "site"
    package = plugin_on_disk.install(site, "sgljit-many", "many")
    (package / "ops.py").write_text(NUMBERS)
    (package / "csrc" / "number.cpp").write_text("template <int N> int number() { return N; }\n")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    load("of no family")
    environment = {"PYTHONPATH": path, "SGLJIT_PLUGINS": "sgljit-many"}
    result = sgljit("cache", "why", "many", **environment)
    assert result.stdout.count("a miss") == 3
    assert result.stdout.endswith("0 of 3 are in the cache\n")
    assert result.returncode == 1
    # Forbidden is what is compiled on demand, not what is asked for.
    result = sgljit("cache", "build", "many", SGLJIT_JIT="error", **environment)
    assert "3 modules are ready" in result.stdout, result.stderr
    result = sgljit("cache", "why", "many", **environment)
    assert result.returncode == 0
    explained = result.stdout
    assert explained.count("a hit") == 3
    assert explained.endswith("3 of 3 are in the cache\n")
    assert "many.number<2> for cpu-" in explained
    assert "of sgljit-many 1.2.3" in explained
    source = package / "csrc" / "number.cpp"
    source.write_text(source.read_text() + "// edited\n")
    assert "number.cpp changed" in sgljit("cache", "why", "many", **environment).stdout
    assert "3 modules are ready" in sgljit("cache", "build", **environment).stdout
    assert len(artifacts(cache)) == 7
    result = sgljit("cache", "prune", "--stale", **environment)
    assert "removed 3 artifacts" in result.stdout, result.stderr
    assert len(artifacts(cache)) == 4  # those of the sources as they are, and the one that no family has declared
    manifest = json.loads((artifacts(cache)[-1] / "manifest.json").read_text())["manifest"]
    assert manifest["plugin"] == "sgljit-many 1.2.3"
    assert manifest["family"] == "many"
    assert {"size", "sha256", "source", "toolchain", "target", "command", "seconds"} <= set(manifest)


def test_an_export_of_nothing_fails_and_says_what_there_is(tmp_path, cache):
    (cache / "sm_90a").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sgljit_core", "cache", "export", str(tmp_path / "k.zip"), "--target", "sm_90"]
    environment = {**os.environ, "SGLJIT_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error: nothing to write; the cache has the families none and targets none" in done.stderr


@pytest.mark.slow
def test_building_ahead_into_a_cache_that_takes_nothing_fails(tmp_path):
    """As an image's author would meet it: what was built is gone when the command ends."""
    if os.geteuid() == 0:
        full = tmp_path / "full"
        full.mkdir(mode=0o700)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(full)])
        if mounted.returncode != 0:
            pytest.skip("no file system can be mounted here")
    else:
        pytest.skip("only root can mount a small file system")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sgljit_core", "cache", "build", "wait_value", "--cuda-arch", "9.0"],
            env={**os.environ, "SGLJIT_CACHE_DIR": str(full)},
            capture_output=True,
            text=True,
        )
    finally:
        subprocess.run(["umount", str(full)], check=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "error: some builds could not be kept in the cache" in done.stderr


@pytest.mark.slow  # compiles all of their programs for the CPU
@pytest.mark.parametrize(
    ("family", "number"),
    [("sampling", 7), ("norm", 45), ("quant", 20), ("rope", 14), ("kvcache", 8), ("moe", 25), ("hicache", 3)],
)
def test_without_a_device_a_family_is_explained_for_the_cpu(sgljit, cache, family, number):
    result = sgljit("cache", "why", family, CUDA_VISIBLE_DEVICES="")
    assert result.stdout.endswith(f"0 of {number} are in the cache\n"), result.stderr
    assert "kernels for CUDA, because there is no device here" in result.stderr


@pytest.mark.slow
def test_without_a_device_the_part_of_a_family_for_the_cpu_is_built_and_kept(sgljit, cache):
    only = {"CUDA_VISIBLE_DEVICES": "", "SGLJIT_PLUGINS": "sgljit-kvcache"}  # prune asks for the calls of all families
    result = sgljit("cache", "build", "kvcache", **only)
    assert "8 modules are ready" in result.stdout, result.stderr
    assert "kernels for CUDA, because there is no device here" in result.stderr
    assert "removed 0 artifacts" in sgljit("cache", "prune", "--stale", **only).stdout
    assert sgljit("cache", "why", "kvcache", **only).stdout.endswith("8 of 8 are in the cache\n")


@pytest.mark.slow
def test_what_a_package_carries_is_listed_and_verified_whoever_can_write_it(sgljit, cache, tmp_path):
    site = tmp_path / "site"
    package = plugin_on_disk.install(site, "sgljit-many", "many")
    (package / "ops.py").write_text(NUMBERS)
    plugin_on_disk.install(site, "sgljit-broken", "broken", plugin="raise ValueError")
    (package / "csrc" / "number.cpp").write_text("template <int N> int number() { return N; }\n")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "SGLJIT_PLUGINS": "sgljit-many,sgljit-broken"}
    assert sgljit("cache", "build", "many", **environment).returncode == 0
    cache.rename(package / "prebuilt")
    (package / "prebuilt").chmod(0o777)

    heading, *listed, count = sgljit("cache", "list", **environment).stdout.splitlines()[1:]
    assert heading == f"sgljit-many 1.2.3 carries, in {package / 'prebuilt'}:"
    assert len([line for line in listed if "many.number<" in line]) == 3
    assert count.startswith("3 artifacts, ")
    result = sgljit("cache", "verify", **environment)
    assert (result.returncode, result.stdout) == (0, "0 damaged of 3\n")
    (artifacts(package / "prebuilt")[0] / "module.so").write_bytes(b"")
    result = sgljit("cache", "verify", **environment)
    assert result.returncode == 1
    assert "module.so has 0 bytes" in result.stdout
    assert result.stdout.endswith("1 damaged of 3\n")


def test_an_export_names_a_directory_that_may_not_be_listed(load, cache, tmp_path, monkeypatch, caplog):
    load()
    load("b", flags=("-DVALUE=2",))
    closed = artifacts(cache)[0].parent
    real = Path.iterdir

    def iterdir(directory):
        if directory == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(directory))
        return real(directory)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert sgljit_tools.cache.export_archive(tmp_path / "a.zip") == 1
    assert f"{closed} may not be listed, and the artifacts below it are left out" in caplog.text
