"""Which files decide a build, found by reading their ``#include`` lines rather than by asking a compiler?

The scan takes every branch of every ``#if``, so it names a superset of what the compiler reads: a change in an
inactive branch may rebuild, a change that matters always does. An include that only the preprocessor can resolve
(``#include MACRO``) makes every file of the build's own directories count.

The rejected alternative, the compiler's own dependency file, needs the compiler on a warm start, and does not know
about a header that appears later in an earlier directory.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import SourceNotFoundError

__all__ = ["Root", "Scan", "scan"]

_DIRECTIVE = re.compile(
    rb'^[ \t]*#[ \t]*(?:include|include_next|import|embed)\b[ \t]*(<[^>\n]+>|"[^"\n]+"|[^\n]*)', re.MULTILINE
)
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
    """The result: sha256 by logical name ("csrc/rmsnorm.cu"), and whether tvm-ffi's C++ headers are used."""

    files: dict[str, str]
    paths: dict[str, Path]
    uses_tvm_cpp: bool


def scan(files: Sequence[str], roots: Sequence[Root], extra_text: str = "") -> Scan:
    """Read ``files`` (relative to the first root) and whatever they include from ``roots``, recursively.

    Args:
        files: the build's sources.
        roots: include directories in the order the compiler searches them; the first is csrc.
        extra_text: the generated source, which is scanned as if it lay in the first root.

    Raises:
        SourceNotFoundError: a source does not exist; the text lists what its directory holds.
    """
    scanner = _Scanner(roots)
    for file in files:
        path = roots[0].directory / file
        if not path.is_file():
            raise SourceNotFoundError(f"source {file!r} not found in {roots[0].directory}{_nearby(path)}")
        scanner.add(path, roots[0])
    scanner.follow(extra_text.encode(), roots[0].directory, roots[0])
    return Scan(dict(sorted(scanner.files.items())), scanner.paths, scanner.uses_tvm_cpp)


class _Scanner:
    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = roots
        self.files: dict[str, str] = {}
        self.paths: dict[str, Path] = {}
        self.uses_tvm_cpp = False

    def add(self, path: Path, root: Root) -> None:
        """Take a file, and what it includes."""
        relative = os.path.relpath(path, root.directory).replace(os.sep, "/")
        name = f"{root.label}/{relative}"
        if name in self.files:
            return
        content = path.read_bytes()
        self.files[name] = hashlib.sha256(content).hexdigest()
        self.paths[name] = path
        self.follow(content, path.parent, root)

    def follow(self, content: bytes, directory: Path, root: Root) -> None:
        """Take what ``content``, a file of ``directory``, includes."""
        for name in _included(content):
            if name is None:
                self._add_everything()
                continue
            quoted, target = name
            if target.startswith("tvm/ffi/") and target not in _C_ABI_HEADERS:
                self.uses_tvm_cpp = True
            if quoted and (directory / target).is_file():
                self.add(directory / target, root)
                continue
            for candidate in self.roots:
                if (candidate.directory / target).is_file():
                    self.add(candidate.directory / target, candidate)
                    break

    def _add_everything(self) -> None:
        for root in self.roots:
            if root.own:
                for path in sorted(root.directory.rglob("*")):
                    if path.is_file():
                        self.add(path, root)


def _included(content: bytes) -> Iterable[tuple[bool, str] | None]:
    """(quoted, name) of each include; None for one that only the preprocessor can resolve."""
    for pattern in (_DIRECTIVE, _HAS_INCLUDE):
        for match in pattern.finditer(content):
            text = match[1].decode(errors="replace").strip()
            yield (text[0] == '"', text[1:-1]) if text[:1] in ("<", '"') else None


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f", which has no directory {path.parent.name!r}"
    names = sorted(p.name for p in path.parent.iterdir() if p.is_file())
    return f"; that directory holds: {', '.join(names) or 'nothing'}"
