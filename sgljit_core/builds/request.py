"""A piece of code that was asked for: what identifies it, and how it is made and loaded.

Its keys are computed once, when the request is made. If a source is edited after that, the request is out of date, and
a new one is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from sgljit_core.cache import keys
from sgljit_core.cache.keys import Location
from sgljit_core.compilers.includes import Scan
from sgljit_core.errors import ToolchainNotFoundError
from sgljit_core.plugins.origin import plugin_of
from sgljit_core.specs.build import BuildSpec, Product

T = TypeVar("T")


class Request(ABC, Generic[T]):
    """A request for a module or for a device kernel, see ``jit``: which build, and where all that is made is kept.

    ``source`` are the ingredients of the source key, of the files of ``scan``, and ``tools`` those of
    ``toolchain_key``: both are None where a compiler is missing. ``payload`` is the name of the payload's file in an
    artifact. ``load`` loads verified bytes, by the ``name`` that profilers show, and raises ArtifactLoadError.
    """

    payload: ClassVar[str]
    load: Callable[[bytes, str], T]

    def __init__(self, build: BuildSpec, root: Path, source: Mapping[str, str], scan: Scan) -> None:
        self.build = build
        self.root = root
        self.source = source
        self.scan = scan
        self.tools: Mapping[str, str] | None = None
        with contextlib.suppress(ToolchainNotFoundError):
            self.tools = self.find_tools(build.label)
        source_key, toolchain_key = keys.keys_of(source, self.tools or {})
        self.location = Location(build.target.name, build.family, build.module, source_key)
        self.toolchain_key = None if self.tools is None else toolchain_key
        self.name = f"{build.module}-{source_key[:8]}"

    @property
    def named(self) -> BuildSpec:
        """The build with the name and version of its plugin: for messages, as reading them takes longer than a hit."""
        family = self.build.family
        return dataclasses.replace(self.build, plugin=plugin_of(family)) if family else self.build

    @abstractmethod
    def find_tools(self, needed_for: str) -> Mapping[str, str]:
        """The ingredients of the toolchain key. Raises ToolchainNotFoundError, with ``needed_for`` in its text."""

    @abstractmethod
    def make(self, directory: Path) -> Product:
        """Make the payload in a directory. Raises CompileError."""

    def serves(self, toolchain: Mapping[str, str]) -> bool:
        """Whether this machine can run what another toolchain made; asked about artifacts that a plugin carries."""
        return True
