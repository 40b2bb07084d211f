"""Which files decide a build, found by reading their ``#include`` lines rather than by asking a compiler.

The scan takes every branch of every ``#if``, so it names a superset of what the compiler reads: a change in an
inactive branch may rebuild, a change that matters always does. An include that only the preprocessor can resolve
(``#include MACRO``) makes every file of the build's own directories count. What gets past the scan all the same (an
include behind a comment, a directory named in a flag) is in the compiler's own dependency file and is recorded with
the artifact; see ``store``.

A scan is remembered with the state of every file and directory that it looked at. As long as none has changed, a warm
start opens the files and reads none.

The rejected alternative, the compiler's dependency file alone, needs the compiler on a warm start, and does not know
about a header that appears later in an earlier directory. Paths are strings here: this runs on every warm start, and
``pathlib`` would take most of its time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sgljit_core.errors import SourceNotFoundError
from sgljit_core.machine.answers import recall, remember

_DIRECTIVE = re.compile(
    rb'^[ \t]*#[ \t]*(?:include|include_next|import|embed)\b[ \t]*(<[^>\n]+>|"[^"\n]+"|[^\n]*)', re.MULTILINE
)
SETTLED_NS = 2_000_000_000  # the coarsest time stamps of a file system (FAT)
_HAS_INCLUDE = re.compile(rb'__has_include\s*\(\s*(<[^>\n]+>|"[^"\n]+")')
# What light code may include of tvm-ffi: its C ABI. Anything else binds the artifact to one version of tvm-ffi.
_C_ABI_HEADERS = frozenset({"tvm/ffi/c_api.h", "tvm/ffi/extra/c_env_api.h"})


@dataclass(frozen=True)
class Root:
    """A directory that includes are searched in. ``label`` stands for it in keys, so that it may move.

    ``own``: the build's own directory, as opposed to the core headers.
    """

    label: str
    directory: Path
    own: bool = True


@dataclass(frozen=True)
class Scan:
    """The result of a scan.

    Attributes:
        files: sha256 by logical name ("csrc/rmsnorm.cu").
        stamps: by path, what the file system says of the file; it changes with every write, even one that is undone.
        uses_tvm_cpp: whether tvm-ffi's C++ headers are used.
    """

    files: dict[str, str]
    stamps: dict[str, tuple[int, ...]] = field(repr=False)
    uses_tvm_cpp: bool

    def is_current(self) -> bool:
        """Whether no file was written since the scan."""
        try:
            return all(_stamp(Path(path).stat()) == stamp for path, stamp in self.stamps.items())
        except OSError:
            return False


def scan(files: Sequence[str], roots: Sequence[Root], extra_text: str = "") -> Scan:
    """Read ``files`` (relative to the first root) and whatever they include from ``roots``, recursively.

    Args:
        files: the build's sources.
        roots: include directories in the order the compiler searches them; the first is csrc.
        extra_text: the generated source, which is scanned as if it lay in the first root.

    Raises:
        SourceNotFoundError: a source does not exist; the text lists what its directory holds.
    """
    question = ["scan", *files, *(f"{root.label} {root.own} {root.directory}" for root in roots), extra_text]
    remembered = _recalled(question)
    if remembered is not None:
        return remembered
    now = time.time_ns()
    scanner = _Scanner(roots)
    for file in files:
        path = roots[0].directory / file
        if not path.is_file():
            raise SourceNotFoundError(f"source {file!r} not found in {roots[0].directory}{_nearby(path)}")
        scanner.add(str(path), 0)
    scanner.follow(_included(extra_text.encode()), str(roots[0].directory), 0)
    found = Scan(dict(sorted(scanner.files.items())), scanner.stamps, scanner.uses_tvm_cpp)
    if scanner.is_repeatable(now):
        directories = scanner.directory_stamps
        remember(question, json.dumps([found.files, found.stamps, found.uses_tvm_cpp, directories]))
    return found


def _recalled(question: Sequence[str]) -> Scan | None:
    """The same scan of an earlier process, if all that it looked at is as it was."""
    answer = recall(question)
    if answer is None:
        return None
    files, stamps, uses_tvm_cpp, directories = json.loads(answer)
    for directory, stamp in directories.items():
        if _directory_stamp(directory) != _tuple(stamp):
            return None
    stamps = {path: _tuple(stamp) for path, stamp in stamps.items()}
    try:
        current = all(_open_stamp(path) == stamp for path, stamp in stamps.items())
    except OSError:
        return None
    return Scan(files, stamps, uses_tvm_cpp) if current else None


def _tuple(stamp: list[int] | None) -> tuple[int, ...] | None:
    return None if stamp is None else tuple(stamp)


def _open_stamp(path: str) -> tuple[int, ...]:
    """The state of a file. NFS asks its server when a file is opened, but not for a mere ``stat``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _stamp(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _directory_stamp(path: str) -> tuple[int, ...] | None:
    """The state of a directory, which changes with every name that comes or goes; None where there is none."""
    try:
        return _stamp(os.stat(path))  # noqa: PTH116
    except OSError:
        return None


class _Scanner:
    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = roots
        self.directories = [str(root.directory) for root in roots]
        self.files: dict[str, str] = {}
        self.stamps: dict[str, tuple[int, ...]] = {}
        self.uses_tvm_cpp = False
        self.directory_stamps: dict[str, tuple[int, ...] | None] = {}
        self._seen: set[str] = set()
        self._listed: dict[str, frozenset[str]] = {}
        self._is_stable = True

    def is_repeatable(self, started: int) -> bool:
        """Whether the states of files and directories are enough to know that the scan would find the same.

        A file that was written in the last seconds may be written again without a change of its time stamps.

        Args:
            started: when the scan began, in nanoseconds since 1970.
        """
        stamps = (*self.stamps.values(), *filter(None, self.directory_stamps.values()))
        return self._is_stable and all(max(stamp[-2:]) < started - SETTLED_NS for stamp in stamps)

    def add(self, path: str, root: int) -> None:
        """Take a file, and what it includes."""
        if path in self._seen:
            return
        self._seen.add(path)
        with open(path, "rb") as file:  # noqa: PTH123 - see the module's docstring
            stamp = _stamp(os.fstat(file.fileno()))  # before the content, so that a write in between shows
            content = file.read()
        self.files[self._name(path, root)] = hashlib.sha256(content).hexdigest()
        self.stamps[path] = stamp
        self.follow(_included(content), os.path.dirname(path), root)  # noqa: PTH120

    def _name(self, path: str, root: int) -> str:
        directory = self.directories[root]
        if path.startswith(directory + "/"):
            return f"{self.roots[root].label}/{path[len(directory) + 1 :]}"
        return f"{self.roots[root].label}/{os.path.relpath(path, directory)}"

    def follow(self, included: Sequence[tuple[bool, str] | None], directory: str, root: int) -> None:
        """Take what a file of ``directory`` includes."""
        for name in included:
            if name is None:
                self._add_everything()
                continue
            quoted, target = name
            if target.startswith("tvm/ffi/") and target not in _C_ABI_HEADERS:
                self.uses_tvm_cpp = True
            found = self._find(quoted, target, directory, root)
            if found is not None:
                self.add(*found)

    def _find(self, quoted: bool, target: str, directory: str, root: int) -> tuple[str, int] | None:
        places = [(directory, root)] if quoted else []
        for place, index in (*places, *zip(self.directories, range(len(self.roots)), strict=True)):
            path = f"{place}/{target}" if target[:1] != "/" else target
            if self._is_file(path):
                # One name for each file, or headers that include each other through ".." would never end.
                return (os.path.realpath(path) if ".." in target else path), index
        return None

    def _is_file(self, path: str) -> bool:
        """Most answers are no, for standard headers: so each directory is listed once and most ask nothing more."""
        directory, _, name = path.rpartition("/")
        if directory not in self._listed:
            self.directory_stamps[directory] = _directory_stamp(directory)
            self._listed[directory] = _names(directory)
        if name not in self._listed[directory]:
            return False
        is_file = os.path.isfile(path)  # noqa: PTH113
        self._is_stable &= is_file  # a link to nowhere may lead somewhere tomorrow, and no directory changes
        return is_file

    def _add_everything(self) -> None:
        self._is_stable = False  # the directories of a whole tree are not worth remembering
        for index, root in enumerate(self.roots):
            if root.own:
                for path in _tree(str(root.directory)):
                    self.add(path, index)


def _names(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return frozenset()


def _tree(directory: str) -> Iterator[str]:
    """The files below a directory, but for hidden ones and Python's."""
    for place, directories, names in os.walk(directory):
        directories[:] = sorted(d for d in directories if not d.startswith(".") and d != "__pycache__")
        yield from (os.path.join(place, name) for name in sorted(names) if not name.startswith("."))  # noqa: PTH118


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _included(content: bytes) -> tuple[tuple[bool, str] | None, ...]:
    """(quoted, name) of each include; None for one that only the preprocessor can resolve."""
    found: list[tuple[bool, str] | None] = []
    for pattern in (_DIRECTIVE, _HAS_INCLUDE):
        for match in pattern.finditer(content):
            text = match[1].decode(errors="replace").strip()
            found.append((text[0] == '"', text[1:-1]) if text[:1] in ("<", '"') else None)
    return tuple(found)


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f", which has no directory {path.parent.name!r}"
    names = sorted(p.name for p in path.parent.iterdir() if p.is_file())
    return f"; that directory holds: {', '.join(names) or 'nothing'}"
