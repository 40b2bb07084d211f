"""What can go wrong, and what should the reader do about it?

One class per failure, each also an instance of the nearest builtin, so that callers may catch either.
An error carries its data as attributes and says in its text: what failed, expected and got, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "CompileError",
    "ConfigError",
    "IncompatiblePluginError",
    "InvalidBuildError",
    "InvalidFamilyError",
    "PluginConflictError",
    "PluginLoadError",
    "SgljitError",
    "SourceNotFoundError",
    "TensorMatchError",
    "ToolchainNotFoundError",
    "UnknownFamilyError",
    "UnknownOpError",
]


class SgljitError(Exception):
    """The base of every error that sgljit raises on purpose."""


class TensorMatchError(SgljitError, ValueError, RuntimeError):
    """A tensor does not have the shape, strides, dtype or device that a kernel demands. Raised from C++."""


class ConfigError(SgljitError, ValueError):
    """An environment variable holds something that sgljit cannot read."""


class InvalidBuildError(SgljitError, ValueError):
    """The arguments of ``load_jit`` do not describe a build."""


class SourceNotFoundError(SgljitError, FileNotFoundError):
    """A source file or an include directory named in a build does not exist."""


class ToolchainNotFoundError(SgljitError, RuntimeError):
    """A compiler is needed and there is none."""

    def __init__(self, tool: str, *, needed_for: str, searched: Sequence[str], remedy: str) -> None:
        self.tool = tool
        self.needed_for = needed_for
        self.searched = tuple(searched)
        self.remedy = remedy
        places = "\n".join(f"  - {place}" for place in self.searched)
        super().__init__(f"{tool} not found; it is needed to compile {needed_for}.\nLooked in:\n{places}\n{remedy}")


class CompileError(SgljitError, RuntimeError):
    """A compiler rejected a kernel. The first real error comes first; ``log`` holds everything."""

    def __init__(self, *, build: str, first_error: str, command: str, log: str, build_directory: Path) -> None:
        self.build = build
        self.first_error = first_error
        self.command = command
        self.log = log
        self.build_directory = build_directory
        super().__init__(
            f"{build} does not compile: {first_error}\n"
            f"The build directory is kept: {build_directory}\n"
            f"Command: {command}\n"
            f"Whole log:\n{log}"
        )


class InvalidFamilyError(SgljitError, ValueError):
    """A ``KernelFamily`` or ``Op`` is declared with names that cannot work."""


class PluginLoadError(SgljitError, ImportError):
    """A plugin failed while it was imported or registered. The original exception is the ``__cause__``."""

    def __init__(self, plugin: str, reason: str) -> None:
        self.plugin = plugin
        super().__init__(f"plugin {plugin} cannot be loaded: {reason}")


class IncompatiblePluginError(PluginLoadError):
    """A plugin's own metadata excludes the running version of sgljit-core."""


class PluginConflictError(SgljitError, RuntimeError):
    """Two distributions claim the same family."""


class UnknownFamilyError(SgljitError, KeyError):
    """``ops[...]`` was asked for a family that no installed plugin provides."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0])


class UnknownOpError(SgljitError, AttributeError):
    """A family has no op of that name."""
