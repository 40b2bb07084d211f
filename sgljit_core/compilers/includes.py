"""Which files decide a build? Read from their ``#include`` lines, without a compiler.

The scan takes every branch of every ``#if``, so it names a superset of the files that the compiler reads: a change in
an inactive branch may rebuild, a change that matters always does. An include that only the preprocessor can resolve
(``#include MACRO``), and an ``.incbin`` that is not found, add every file of the build's own directories. The
compiler lists what the scan still misses (an include behind a comment, a directory named in a flag); see ``native``.

A scan is remembered with the state of every file and directory that it looked at. As long as none has changed, a warm
start opens the files and reads none. Rejected: the compiler's list alone. It needs the compiler on a warm start, and
misses a header that appears later in an earlier directory. Paths are strings: ``pathlib`` would take most of the time.
"""

# ruff: noqa: PTH113, PTH116, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import hashlib
import json
import operator
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sgljit_core.errors import SourceNotFoundError
from sgljit_core.machine.answers import recall, remember

_DIRECTIVE = rb'(?m)^[ \t]*#[ \t]*(?:include|include_next|import|embed)\b[ \t]*(<[^>\n]+>|"[^"\n]+"|[^\n]*)'
_HAS_INCLUDE = rb'__has_include\s*\(\s*(<[^>\n]+>|"[^"\n]+")'
_INCBIN = rb'\.incbin\b(?:[ \t]*\\?"([^"\\\n]+)\\?")?'
_SCANNER = "scan 3"  # raise the number when the same files would give another scan
_state = operator.attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
SETTLED_NS = 2_000_000_000  # the coarsest time stamps of a file system (FAT)
# The headers of tvm-ffi's C ABI. Any other header of tvm-ffi binds the artifact to one version of it.
_C_ABI_HEADERS = frozenset({"tvm/ffi/c_api.h", "tvm/ffi/extra/c_env_api.h"})
# Names in a kernel that is written to SGLang's headers, of any release. A comment with one costs some compile time.
_OF_SGLANG = rb"\btvm\s*::\s*ffi\s*::|\bnamespace\s+sglang\b|\bsglang\s*::"


class Root(NamedTuple):
    """A directory that includes are searched in. ``label`` stands for it in keys, so that it may move.

    ``own``: the build's own directory, as opposed to the core headers.
    """

    label: str
    directory: Path
    own: bool = True


class Scan(NamedTuple):
    """The result of a scan.

    Attributes:
        files: sha256 by logical name ("csrc/rmsnorm.cu").
        stamps: the state of each file by path; it changes with every write, even one that is undone.
        uses_tvm_cpp: whether a file of the build itself includes tvm-ffi's C++ headers.
        is_port: whether a file of the build itself has names of SGLang's headers.
    """

    files: dict[str, str]
    stamps: dict[str, list[int]]
    uses_tvm_cpp: bool
    is_port: bool = False

    def is_current(self) -> bool:
        """Whether no file was written since the scan."""
        try:
            return all(list(_state(os.stat(path))) == stamp for path, stamp in self.stamps.items())
        except OSError:
            return False


def scan(files: Sequence[str], roots: Sequence[Root], extra_text: str = "", port_text: str = "") -> Scan:
    """Read ``files`` (relative to the first root) and the files that they include from ``roots``, recursively.

    Args:
        files: the build's sources.
        roots: include directories in the order the compiler searches them; the first is csrc.
        extra_text: the generated source, which is scanned as if it were in the first root.
        port_text: what the generated source has besides if the build is a port.

    Raises:
        SourceNotFoundError: a source does not exist; the text lists the content of its directory. Or a file is none,
            but a device, a FIFO or a socket, which a compiler would read for ever.
    """
    places = (f"{root.label} {root.own} {root.directory}" for root in roots)
    question = [_SCANNER, *files, *places, extra_text, port_text]
    if (remembered := _recalled(question)) is not None:
        return remembered
    now = time.time_ns()
    scanner = _Scanner(roots)
    for file in files:
        path = roots[0].directory / file
        if not path.is_file():
            _check_plain(str(path))
            where = path.parent if file[:1] == "/" else roots[0].directory
            raise SourceNotFoundError(f"source {file!r} not found in {where}{_nearby(path)}")
        scanner.add(str(path), 0)
    scanner.follow(extra_text.encode(), str(roots[0].directory), 0)
    if scanner.is_port:
        scanner.follow(port_text.encode(), str(roots[0].directory), 0)
    found = Scan(dict(sorted(scanner.files.items())), scanner.stamps, scanner.uses_tvm_cpp, scanner.is_port)
    if scanner.is_repeatable(now):
        answer = [found.files, found.stamps, found.uses_tvm_cpp, found.is_port, scanner.directory_stamps]
        remember(question, json.dumps(answer))
    return found


def _recalled(question: Sequence[str]) -> Scan | None:
    """The same scan of an earlier process, if every file and directory that it looked at is unchanged."""
    if (answer := recall(question)) is None:
        return None
    try:
        files, stamps, uses_tvm_cpp, is_port, directories = json.loads(answer)
        current = _are_unchanged(directories) and _are_unchanged(stamps)
    except (OSError, ValueError, AttributeError):  # a file is gone, or the answer is none of ours
        return None
    return Scan(files, stamps, uses_tvm_cpp, is_port) if current else None


def _open_stamp(path: str) -> list[int] | None:
    """The state of a file, or of a directory, which changes with every name that comes or goes; None if there is none.

    NFS asks its server when a file is opened, but not for a mere ``stat``. Raises OSError: it cannot be opened now.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a FIFO by now
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return list(_state(os.fstat(descriptor)))
    finally:
        os.close(descriptor)


def _are_unchanged(stamps: Mapping[str, list[int] | None]) -> bool:
    """Whether each file and directory has the state that was recorded. Raises OSError as ``_open_stamp`` does."""
    for path, stamp in stamps.items():  # noqa: SIM110 - all() would make a call for each
        if _open_stamp(path) != stamp:
            return False
    return True


class _Scanner:
    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = roots
        self.directories = [str(root.directory) for root in roots]
        self.files: dict[str, str] = {}
        self.stamps: dict[str, list[int]] = {}
        self.uses_tvm_cpp = False
        self.is_port = False
        self.directory_stamps: dict[str, list[int] | None] = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._is_stable = True

    def is_repeatable(self, started: int) -> bool:
        """Whether unchanged files and directories prove that the scan, begun at ``started``, would find the same again.

        A file that was written in the last seconds may be written again without a change of its time stamps.
        """
        stamps = (*self.stamps.values(), *filter(None, self.directory_stamps.values()))
        return self._is_stable and all(max(stamp[-2:]) < started - SETTLED_NS for stamp in stamps)

    def add(self, path: str, root: int) -> None:
        """Add a file, and the files that it includes."""
        if path in self.stamps:
            return
        _check_plain(path)
        with open(path, "rb") as file:
            # Before the content, so that a write in between shows.
            self.stamps[path] = list(_state(os.fstat(file.fileno())))
            content = file.read()
        name = path.removeprefix(f"{self.directories[root]}/")
        if name == path:
            name = os.path.relpath(path, self.directories[root])
        self.files[f"{self.roots[root].label}/{name}"] = hashlib.sha256(content).hexdigest()
        self.follow(content, os.path.dirname(path), root)

    def follow(self, content: bytes, directory: str, root: int) -> None:
        """Add the files that the content of a file in ``directory`` includes."""
        own = self.roots[root].own
        self.is_port |= own and re.search(_OF_SGLANG, content) is not None
        for match in (*re.finditer(_DIRECTIVE, content), *re.finditer(_HAS_INCLUDE, content)):
            name = match[1].decode(errors="replace").strip()
            if name[:1] not in ("<", '"'):
                self._add_everything()
                continue
            target = name[1:-1]
            # The core's own headers include one only where a file of the build does.
            if own and target.startswith("tvm/ffi/") and target not in _C_ABI_HEADERS:
                self.uses_tvm_cpp = True
            self._add_first(target, [(directory, root)] if name[0] == '"' else [])
        for match in re.finditer(_INCBIN, content):
            # The assembler looks in the roots; a file beside the source counts as well.
            target = (match[1] or b"").decode(errors="replace")
            found = target and [self._add_first(target, []), self._add_first(target, [(directory, root)])]
            if not found or not any(found):
                self._add_everything()

    def _add_first(self, target: str, places: Sequence[tuple[str, int]]) -> bool:
        """Add the first file of that name in some places and the roots: whether there is one."""
        for place, index in (*places, *zip(self.directories, range(len(self.roots)), strict=True)):
            path = f"{place}/{target}" if target[:1] != "/" else target
            if self._is_file(path):
                # One name for each file, or headers that include each other through ".." would never end.
                real = os.path.realpath(path) if ".." in target else path
                # A link on the way to it may be led elsewhere without a change of the file.
                self._is_stable &= real == path or real == os.path.normpath(path)
                self.add(real, index)
                return True
        return False

    def _is_file(self, path: str) -> bool:
        """Whether a path is a file. Directories are listed once: most includes are standard headers in none of them."""
        directory, _, name = path.rpartition("/")
        if directory not in self._listed:
            try:
                self.directory_stamps[directory] = _open_stamp(directory)
                self._listed[directory] = frozenset(os.listdir(directory))
            except OSError as error:
                self._listed[directory] = frozenset()
                self._is_stable &= isinstance(error, (FileNotFoundError, NotADirectoryError))
        if name not in self._listed[directory]:
            return False
        is_file = os.path.isfile(path)
        if not is_file:
            _check_plain(path)
        self._is_stable &= is_file  # a dangling link may become valid without a change of any directory
        return is_file

    def _add_everything(self) -> None:
        """Add the files of the build's own directories, but for hidden ones and Python's."""
        self._is_stable = False  # the directories of a whole tree are not worth remembering
        for index, root in enumerate(self.roots):
            for place, directories, names in os.walk(root.directory) if root.own else ():
                directories[:] = sorted(d for d in directories if not d.startswith(".") and d != "__pycache__")
                for name in sorted(names):
                    if not name.startswith("."):
                        self.add(os.path.join(place, name), index)


def _check_plain(path: str) -> None:
    """Refuse a device, a FIFO and a socket: a compiler would read it for ever, and so would the scan."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        real = os.path.realpath(path)
        leads = f" (it leads to {real})" if real != path else ""
        raise SourceNotFoundError(f"{path} is no plain file, but a device, a FIFO or a socket{leads}")


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f", which has no directory {path.parent.name!r}"
    names = sorted(p.name for p in path.parent.iterdir() if p.is_file())
    return f"; that directory holds: {', '.join(names) or 'nothing'}"
