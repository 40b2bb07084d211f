"""Are the installed plugins those that were locked? ``SGLJIT_LOCK`` names the file that says what they were.

A lock has the version of each plugin's distribution, and the sha256 of each of its files. The core asks ``check``
before it imports a plugin. The wheel's own list of files (RECORD) is believed at no time: a lock is written where the
two agree, and compared with the files alone.

Bytecode is not locked, since each machine compiles its own: it must be what its source compiles to. Files outside of
``site-packages``, such as scripts, whose first line names an interpreter, are not locked either.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import importlib.util
import json
import marshal
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from sgljit_core.config import settings
from sgljit_core.plugins.discovery import EXTENSIONS, KERNELS, Plugin, entry_points

from . import owned
from .counts import refused
from .errors import LockError, PluginDiffersError

GROUPS = (KERNELS, EXTENSIONS, "sgljit.commands", "sgljit.bundles")
_FORMAT = 1
_LARGEST = 64 << 20
_INSTALLERS = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}  # written on each machine, and not imported
_HEADER = 16  # bytes of a .pyc before its code


@dataclass(frozen=True)
class Locked:
    """A distribution in a lock: its version, and the sha256 of its files by their paths in ``site-packages``."""

    version: str
    files: Mapping[str, str]


def plugins() -> dict[str, Plugin]:
    """The installed distributions whose code the core imports, by name, each as one of its entry points."""
    allowed = settings().plugins
    found = [plugin for group in GROUPS for plugin in entry_points(group, allowed)]
    return {_canonical(plugin.distribution): plugin for plugin in sorted(found, key=lambda one: one.distribution)}


def locked(plugin: Plugin) -> Locked:
    """The entry of an installed plugin. Raises LockError: its files are not those that its wheel had."""
    try:
        files = _recorded(plugin)
        if reason := next(_differences(plugin, Locked(plugin.version, files)), ""):
            raise ValueError(reason)
    except (OSError, ValueError) as error:
        remedy = "Install it anew, from a wheel"
        raise LockError(f"{plugin} in {plugin.location} cannot be locked: {error}. {remedy}") from error
    return Locked(plugin.version, files)


def write(file: Path, entries: Mapping[str, Locked]) -> None:
    """Write a lock, complete or not at all. Raises OSError."""
    document = {"format": _FORMAT, "distributions": {name: asdict(entry) for name, entry in entries.items()}}
    with owned.replaced(file) as written:
        with written.open("x", encoding="utf-8") as opened:
            opened.write(json.dumps(document, indent=1, sort_keys=True) + "\n")
        written.chmod(0o644)  # whatever the umask says: one that others can write is refused


def read(file: Path) -> dict[str, Locked]:
    """The distributions of a lock by name. Raises LockError."""
    try:
        content = owned.read(file, _LARGEST)
    except OSError as error:  # also a file that others can write
        raise LockError(f"the lock {file} is not used: {error}") from error
    return _parsed(file, content)


@functools.lru_cache(maxsize=1)
def _parsed(file: Path, content: bytes) -> dict[str, Locked]:
    try:
        document = json.loads(content)
        if document["format"] != _FORMAT:
            raise ValueError(f"its format is {document['format']!r}, expected {_FORMAT}")
        return {
            name: Locked(str(entry["version"]), {str(path): str(digest) for path, digest in entry["files"].items()})
            for name, entry in document["distributions"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        text = f"the lock {file} is none ({type(error).__name__}: {error}); write it anew with `sgljit lock`"
        raise LockError(text) from error


def check(plugin: Plugin, file: Path) -> None:
    """Refuse a plugin that a lock does not have as it is installed. Nothing of it is imported.

    Raises:
        PluginDiffersError: also where the lock cannot be used.
    """
    try:
        entry = read(file).get(_canonical(plugin.distribution))
        if entry is None:
            raise ValueError(f"the lock {file} has no {plugin.distribution}")
        if reason := next(_differences(plugin, entry), ""):
            raise ValueError(f"it differs from the lock {file}: {reason}")
    except (LockError, OSError, ValueError) as error:
        refused(str(plugin.location), f"{plugin}: {error}")
        # The command is a plugin's, too: with the variable it might be refused as well.
        remedy = f"install what was locked, or write the lock anew: env -u SGLJIT_LOCK sgljit lock {file}"
        raise PluginDiffersError(str(plugin), f"{error}. It is in {plugin.location}; {remedy}") from error


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _recorded(plugin: Plugin) -> dict[str, str]:
    """The files of a plugin and their sha256, as the RECORD of its wheel has them."""
    info = _metadata(plugin)
    try:
        lines = (info / "RECORD").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError("it has no list of its files (RECORD)") from None
    files = {}
    for path, digest, *_ in filter(None, csv.reader(lines)):
        if not _is_locked(PurePosixPath(path), info):
            continue
        kind, _, value = digest.partition("=")
        if kind != "sha256":
            raise ValueError(f"RECORD has no sha256 of {path}")
        files[path] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return files


def _metadata(plugin: Plugin) -> Path:
    """The directory of a plugin's metadata. An editable install is refused: its files are somewhere else."""
    name = _canonical(plugin.distribution)
    found = [one for one in plugin.location.glob("*.dist-info") if _canonical(one.stem.partition("-")[0]) == name]
    if len(found) != 1:
        listed = ", ".join(one.name for one in found) or "none"
        raise ValueError(f"expected one directory of its metadata (.dist-info), got {listed}")
    try:
        if json.loads((found[0] / "direct_url.json").read_bytes()).get("dir_info", {}).get("editable"):
            raise ValueError("it is installed editable, so that its files may change at any time")
    except FileNotFoundError:  # it comes from an index
        pass
    return found[0]


def _is_locked(path: PurePosixPath, info: Path) -> bool:
    """Whether a lock has a file of a RECORD: not what each machine writes for itself."""
    if path.is_absolute() or ".." in path.parts or "__pycache__" in path.parts:
        return False
    return not (path.parts[0] == info.name and path.name in _INSTALLERS)


def _differences(plugin: Plugin, entry: Locked) -> Iterator[str]:
    """The differences between a plugin and its entry, each as a text."""
    if plugin.version != entry.version:
        yield f"its version is {plugin.version}, expected {entry.version}"
    info = _metadata(plugin).name
    if f"{info}/entry_points.txt" not in entry.files:
        yield f"the lock has no {info}/entry_points.txt"
    for path, digest in entry.files.items():
        yield from _difference(plugin.location / path, path, digest)
    for package in _packages(entry):
        for path in _found_in(plugin.location / package, plugin.location):
            if path not in entry.files:
                yield f"{path} is there, and was not"
    modules = {PurePosixPath(path).parts[0].partition(".")[0] for path in entry.files}
    for name in sorted(filter(str.isidentifier, modules)):
        yield from _imported_from_elsewhere(name, plugin, entry)
    if re.split("[.:]", plugin.module)[0] not in modules:
        yield f"its entry point names {plugin.module}, which is none of its modules"


def _difference(file: Path, path: str, digest: str) -> Iterator[str]:
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        yield f"{path} is missing"
        return
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        yield f"{path} has the sha256 {found}, expected {digest}"
    elif path.endswith(".py"):
        bytecode = Path(importlib.util.cache_from_source(str(file)))
        if bytecode.is_file() and not _is_compiled_from(bytecode.read_bytes(), content, file):
            yield f"{bytecode.name} beside {path} is compiled from another source; remove it"


def _is_compiled_from(bytecode: bytes, source: bytes, file: Path) -> bool:
    """Whether bytecode is what a source compiles to. Python ignores one of another release, and so does this."""
    if not bytecode.startswith(importlib.util.MAGIC_NUMBER):
        return True
    try:
        code = marshal.loads(bytecode[_HEADER:])  # noqa: S302 - what an import would read next
        return bool(code == compile(source, str(file), "exec", dont_inherit=True))
    except (ValueError, TypeError, EOFError, SyntaxError):
        return False


def _packages(entry: Locked) -> set[PurePosixPath]:
    """The directories that belong to a distribution alone: its outermost packages with an ``__init__.py``."""
    own = {PurePosixPath(path).parent for path in entry.files if PurePosixPath(path).name == "__init__.py"}
    return {package for package in own if own.isdisjoint(package.parents)}


def _found_in(package: Path, site: Path) -> Iterator[str]:
    """The paths of all files of a package, and of links to directories, but for bytecode."""
    for directory, directories, files in os.walk(package):
        place = Path(directory)
        links = [name for name in directories if (place / name).is_symlink()]
        if place.name != "__pycache__":
            yield from ((place / name).relative_to(site).as_posix() for name in (*files, *links))


def _imported_from_elsewhere(name: str, plugin: Plugin, entry: Locked) -> Iterator[str]:
    """Whether an import of a module or package of the distribution finds another one."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    for place in [spec.origin] if spec.origin else spec.submodule_search_locations or ():
        path = Path(place).resolve()
        is_own = path.is_relative_to(plugin.location)
        if not is_own or (spec.origin and path.relative_to(plugin.location).as_posix() not in entry.files):
            yield f"the module {name} is imported from {place}"
