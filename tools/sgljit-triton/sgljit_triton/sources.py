"""How are kernel files imported, wherever they are? Under names and paths that are the same on every machine.

Triton writes the file of a function into the machine code, for profilers. So the modules of a family get the path
``FAMILY/DIRECTORY/FILE``, with the name of the sources' directory. Runs in the compiler's process, which has nothing of
the project, and in the interpreter's.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType


class _Loader(importlib.abc.InspectLoader):
    """Loads one file; a directory is a package without code."""

    def __init__(self, path: Path, label: str) -> None:
        self._path = path
        self._label = label

    def is_package(self, fullname: str) -> bool:
        return self._path.is_dir()

    def get_filename(self, fullname: str) -> str:
        """The path that code objects, and so the machine code, have."""
        return self._label

    def get_source(self, fullname: str) -> str:
        return "" if self._path.is_dir() else self._path.read_text(encoding="utf-8")

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_source(fullname), self._label)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the kernel files of a family as modules of ``package``."""

    def __init__(self, family: str, csrc: Path) -> None:
        self.package = f"sgljit_{family}_kernels"
        self._family = family
        self._csrc = csrc

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parts = fullname.split(".")
        if parts[0] != self.package:
            return None
        place = self._csrc.joinpath(*parts[1:])
        if not place.is_dir():
            place = place.with_name(f"{place.name}.py")
            if not place.is_file():
                return None
        label = "/".join((self._family, self._csrc.name, *place.relative_to(self._csrc).parts))
        loader = _Loader(place, label)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=label, is_package=place.is_dir())

    def forget(self) -> None:
        """Import the files anew when they are asked for again."""
        for name in [name for name in sys.modules if name.partition(".")[0] == self.package]:
            del sys.modules[name]
        linecache.clearcache()  # has the text of the old ones

    def module(self, file: str) -> ModuleType:
        """The module of a file, imported."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        return importlib.import_module(f"{self.package}.{file.removesuffix('.py').replace('/', '.')}")
