"""A warm start reads no source, and still sees every edit."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from sgljit_core.compilers import includes

SETTLED = time.time_ns() - 60 * 10**9


@pytest.fixture
def tree(tmp_path, cache):
    """Two include directories; ``a.cpp`` includes ``first.h`` and ``second.h``, which is in the later one."""
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    late.mkdir()
    (early / "a.cpp").write_text('#include "first.h"\n#include <second.h>\n')
    (early / "first.h").write_text("#pragma once\n")
    (late / "second.h").write_text("#pragma once\n")
    age(tmp_path)
    return tmp_path


def age(tree: Path) -> None:
    """As if nothing had been written for a while."""
    for path in (*tree.rglob("*"), tree):
        os.utime(path, ns=(SETTLED, SETTLED), follow_symlinks=False)


def scan(tree: Path) -> includes.Scan:
    roots = [includes.Root("early", tree / "early"), includes.Root("late", tree / "late")]
    return includes.scan(["a.cpp"], roots)


@pytest.fixture
def settled(monkeypatch):
    """Files count as settled at once."""
    monkeypatch.setattr(includes, "SETTLED_NS", -(10**9))


def test_a_scan_is_repeated_without_reading_a_source(tree, settled, monkeypatch):
    first = scan(tree)
    reads: list[str] = []
    monkeypatch.setattr(includes, "open", lambda path, mode: reads.append(path), raising=False)
    assert scan(tree) == first
    assert reads == []
    assert set(first.files) == {"early/a.cpp", "early/first.h", "late/second.h"}


EDITS = {
    "a source": lambda tree: (tree / "early" / "a.cpp").write_text("int edited;\n"),
    "a header": lambda tree: (tree / "late" / "second.h").write_text("int edited;\n"),
    "a header of the same size and time": lambda tree: same_size_and_time(tree / "late" / "second.h"),
    "a header that appears in an earlier directory": lambda tree: (tree / "early" / "second.h").write_text("int x;\n"),
    "a header that goes": lambda tree: (tree / "early" / "first.h").unlink(),
    "a header that is replaced by a rename": lambda tree: replaced(tree / "early" / "first.h"),
    "a header that becomes a link": lambda tree: linked(tree / "late" / "second.h"),
    "a directory that goes": lambda tree: shutil.rmtree(tree / "late"),
}


def same_size_and_time(path: Path) -> None:
    status = path.stat()
    path.write_text(path.read_text().replace("once", "twos"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("int y;\n")
    other.replace(path)


def linked(path: Path) -> None:
    target = path.parent.parent / "elsewhere.h"
    target.write_text("int z;\n")
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_seen(edit, tree, settled):
    before = scan(tree)
    EDITS[edit](tree)
    after = scan(tree)
    assert after.files != before.files
    shutil.rmtree(next(Path(os.environ["SGLJIT_CACHE_DIR"]).glob(".answers")))
    assert scan(tree).files == after.files  # as without a memory


def test_what_was_just_written_is_not_remembered(tree):
    """Two writes within one tick of the file system's clock leave the same time stamp."""
    scan(tree)
    assert not list(Path(os.environ["SGLJIT_CACHE_DIR"]).glob(".answers/*"))


def test_a_link_to_nowhere_that_comes_to_lead_somewhere_is_seen(tree, settled):
    (tree / "early" / "second.h").symlink_to(tree / "target.h")
    before = scan(tree)
    (tree / "target.h").write_text("int now;\n")
    assert set(scan(tree).files) - set(before.files) == {"early/second.h"}


def test_a_tree_that_a_macro_includes_is_read_each_time(tree, settled):
    (tree / "early" / "a.cpp").write_text("#include HEADER\n")
    scan(tree)
    (tree / "early" / "deep").mkdir()
    (tree / "early" / "deep" / "new.h").write_text("int deep;\n")
    assert "early/deep/new.h" in scan(tree).files


def test_a_memory_of_another_user_is_not_believed(tree, settled):
    first = scan(tree)
    (kept,) = Path(os.environ["SGLJIT_CACHE_DIR"]).glob(".answers/*")
    kept.write_text(kept.read_text().replace("a.cpp", "b.cpp"))
    kept.chmod(0o666)
    assert scan(tree) == first


def test_garbage_in_the_memory_is_no_answer(tree, settled):
    first = scan(tree)
    (kept,) = Path(os.environ["SGLJIT_CACHE_DIR"]).glob(".answers/*")
    kept.write_text('{"question": 1}')
    assert scan(tree) == first


def test_a_link_on_the_way_that_is_led_elsewhere_is_seen(tree, settled):
    """``..`` is resolved to one name for each file, which says nothing about the links before it."""
    for version in ("1", "2"):
        (tree / f"v{version}.h").write_text(f"int v{version};\n")
    (tree / "early" / "current").symlink_to(tree / "v1.h")
    (tree / "late" / "link.h").symlink_to(tree / "early" / "current")
    (tree / "early" / "a.cpp").write_text('#include "../late/link.h"\n')
    before = scan(tree)
    (tree / "next").symlink_to(tree / "v2.h")
    (tree / "next").replace(tree / "early" / "current")
    assert scan(tree).files != before.files


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_directory_that_cannot_be_read_now_is_not_remembered_as_empty(number, tree, settled, monkeypatch):
    real = os.listdir

    def fail_once(path):
        monkeypatch.setattr(os, "listdir", real)
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "listdir", fail_once)
    scan(tree)
    assert set(scan(tree).files) == {"early/a.cpp", "early/first.h", "late/second.h"}
