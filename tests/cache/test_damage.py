"""Artifacts that are not what they were: detected before anything of them is loaded."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from kit import artifacts, mostly_slow

import sgljit_tools.cache
from sgljit_core.machine import answers, processes, roots

DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "one bit flipped": lambda path: path.write_bytes(_flipped(path.read_bytes())),
    "replaced": lambda path: path.write_bytes(b"\x7fELF" + bytes(path.stat().st_size - 4)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "gone": lambda path: path.unlink(),
    "a link": lambda path: (path.rename(path.with_suffix(".moved")), path.symlink_to(path.with_suffix(".moved"))),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


def _flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.parametrize("name", ["module.so", "manifest.json"])
@pytest.mark.parametrize("kind", mostly_slow(*DAMAGE, quick=3))
def test_damage_is_found_and_replaced(kind, name, children, compiler, warm_cache):
    (artifact,) = artifacts(warm_cache)
    DAMAGE[kind](artifact / name)
    output = children.run()
    assert output.endswith("1\n")
    assert compiler.calls() == 1
    assert output.count("is damaged and not used") == 1
    assert str(artifact) in output
    assert artifacts(warm_cache) == [artifact]
    assert sgljit_tools.cache.verify() == []
    assert children.run() == "1\n"
    assert compiler.calls() == 1


@pytest.mark.parametrize("name", ["module.so", "manifest.json"])
def test_without_a_compiler_the_error_says_what_is_damaged_and_how(name, children, warm_cache, tmp_path):
    (artifact,) = artifacts(warm_cache)
    DAMAGE["truncated"](artifact / name)
    child = children.start(env={"PATH": str(tmp_path), "SGLJIT_CXX": "no-such-compiler"})
    child.end()
    assert child.process.exitcode == 1  # an exception, not a signal
    assert "ToolchainNotFoundError: a C++ compiler not found" in child.output
    assert f"{artifact} was found and is damaged: " in child.output


def test_an_artifact_of_another_build_is_not_taken_for_this_one(load, children, cache):
    """Whole, but copied from elsewhere."""
    load("other", flags=("-DVALUE=2",))
    (other,) = artifacts(cache)
    children.run()
    (mine,) = set(artifacts(cache)) - {other}
    shutil.rmtree(mine)
    shutil.copytree(other, mine)
    output = children.run()
    assert output.endswith("1\n")
    assert "its manifest belongs to another artifact" in output


def test_a_payload_outside_the_artifact_is_refused(children, warm_cache):
    (artifact,) = artifacts(warm_cache)
    document = json.loads((artifact / "manifest.json").read_text())
    document["manifest"]["payload"] = "../../module.so"
    from sgljit_core.cache import keys

    document["sha256"] = keys.digest(keys.canonical(document["manifest"]))
    (artifact / "manifest.json").write_text(json.dumps(document))
    assert "names a payload elsewhere" in children.run()


def test_a_library_that_this_machine_cannot_load_is_built_again(children, compiler, cache):
    """As from a machine with a newer C library: whole, but it does not load."""
    children.run(markers=("a",))
    (artifact,) = artifacts(cache)
    library = (artifact / "module.so").read_bytes()
    (artifact / "module.so").write_bytes(library.replace(b"libtvm_ffi.so", b"libtvm_ff_.so"))
    import hashlib

    from sgljit_core.cache import keys

    document = json.loads((artifact / "manifest.json").read_text())
    document["manifest"]["sha256"] = hashlib.sha256((artifact / "module.so").read_bytes()).hexdigest()
    document["sha256"] = keys.digest(keys.canonical(document["manifest"]))
    (artifact / "manifest.json").write_text(json.dumps(document))
    output = children.run(markers=("a",))
    assert output.endswith("1\n")
    assert "cannot be loaded on this machine: " in output
    assert compiler.calls() == 2


def test_old_failures_do_not_pile_up(cache):
    roots.make(cache)
    for i in range(30):
        staging = cache / ".staging" / f"number.{processes.current()}.{i:08x}"
        staging.mkdir(parents=True)
        (staging / "failed").touch()
    removed = sgljit_tools.cache.prune()
    assert removed.artifacts == []
    assert len(removed.leftovers) == 14
    assert len(list((cache / ".staging").iterdir())) == 16


def test_remembered_answers_do_not_pile_up(load, cache):
    answers.remember(["what?"], "old")
    directory = cache / answers.DIRECTORY
    (old,) = directory.iterdir()
    os.utime(old, (0, time.time() - 8 * 86400))
    fresh = [directory / f"{i:032x}.json" for i in range(1030)]
    for path in fresh:
        path.touch()
    sgljit_tools.cache.prune(dry_run=True)
    assert set(directory.iterdir()) == {old, *fresh}
    sgljit_tools.cache.prune()
    assert len(set(directory.iterdir()) & set(fresh)) == len(list(directory.iterdir())) == 1024
    assert answers.recall(["what?"]) is None
    answers.remember(["what?"], "new")
    assert load().number() == 1  # a build collects, too
    assert len(list(directory.iterdir())) == 1024
    assert answers.recall(["what?"]) == "new"
