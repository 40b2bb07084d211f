"""What can go wrong, and what should the reader do about it?

One class per failure, each also an instance of the nearest builtin, so that callers may catch either.
An error carries its data as attributes. Its text names the failure, the expected and the actual value, and the remedy.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The numbers of an OSError that is caused by a missing resource: the next try may succeed.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class SgljitError(Exception):
    """The base of every error that sgljit raises on purpose."""

    @property
    def cause(self) -> str:
        """The same text for all errors that have the same remedy."""
        return _first_line(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: they would call ``__init__`` with the finished text, and it takes other arguments."""
        kind, args, *attributes = tuple(super().__reduce__())
        return _again, (kind, args), *attributes


def _again(kind: type[SgljitError], args: tuple[Any, ...]) -> SgljitError:
    error = kind.__new__(kind, *args)
    super(SgljitError, error).__init__(*args)  # that of the builtin
    return error


class TensorMatchError(SgljitError, ValueError, RuntimeError):
    """A tensor does not have the shape, strides, dtype or device that a kernel requires."""


class InferenceOnlyError(SgljitError, RuntimeError):
    """A tensor that requires grad, or has a tangent, came to an op, which has no gradient."""


class ConfigError(SgljitError, ValueError):
    """An environment variable has a value that sgljit cannot read."""


class NoTargetError(ConfigError):
    """There is no GPU to compile for and no architecture was named, or an instant variant is to run on AMD's GPU."""


class InvalidBuildError(SgljitError, ValueError):
    """The arguments of ``load_jit`` or ``load_host`` do not describe a build."""


class SourceNotFoundError(SgljitError, FileNotFoundError):
    """A source file or an include directory named in a build does not exist."""


class ToolchainNotFoundError(SgljitError, RuntimeError):
    """A compiler is needed, but none was found."""

    def __init__(self, tool: str, *, needed_for: str, searched: Sequence[str], remedy: str) -> None:
        self.tool = tool
        self.needed_for = needed_for
        self.searched = tuple(searched)
        self.remedy = remedy
        self.cache = ""  # why the cache does not serve, where it was asked
        places = "\n".join(f"  - {place}" for place in self.searched)
        super().__init__(f"{tool} not found; it is needed to compile {needed_for}.\nLooked in:\n{places}\n{remedy}")

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.cache}" if self.cache else super().__str__()

    @property
    def cause(self) -> str:
        return f"{self.tool}: {self.remedy}"


class CompileError(SgljitError, RuntimeError):
    """A compiler rejected a kernel. The first real error comes first; ``log`` holds the whole output."""

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

    @property
    def cause(self) -> str:
        return self.first_error


class SourceChangedError(SgljitError, RuntimeError):
    """Sources were edited during each attempt to compile them, so no result matches the files on disk."""


class ParallelCompileError(SgljitError, RuntimeError):
    """Some builds of ``parallel_compile`` failed; ``failures`` holds their exceptions in order.

    The text has a line for each cause, and the full text of the first error.
    """

    def __init__(self, failures: Sequence[Exception], total: int) -> None:
        self.failures = tuple(failures)
        causes: dict[tuple[str, str], list[Exception]] = {}
        for failure in failures:
            cause = failure.cause if isinstance(failure, SgljitError) else _first_line(failure)
            causes.setdefault((type(failure).__name__, cause), []).append(failure)
        listed = "\n".join(
            f"  - {kind}: {_first_line(same[0])}{f' ({len(same)} times)' if len(same) > 1 else ''}"
            for (kind, _), same in causes.items()
        )
        whole = f"\nThe first in full:\n{failures[0]}" if str(failures[0]) != _first_line(failures[0]) else ""
        super().__init__(f"{len(self.failures)} of {total} builds failed:\n{listed}{whole}")


class CompileForbiddenError(SgljitError, RuntimeError):
    """A module is in no tier of the cache, and ``freeze("error")`` or ``SGLJIT_JIT=error`` forbids compiling it."""

    def __init__(self, build: str, *, forbidden_by: str, why: str, remedy: str) -> None:
        self.build = build
        self.forbidden_by = forbidden_by
        self.why = why
        super().__init__(f"{build} is not in the cache, and {forbidden_by} forbids compiling it.\n{why}\n{remedy}")


class CaptureError(SgljitError, RuntimeError):
    """A module would have to be compiled during the capture of a CUDA graph."""

    def __init__(self, build: str, why: str) -> None:
        self.build = build
        super().__init__(
            f"{build} is not in the cache, and nothing is compiled while a CUDA stream is capturing a graph.\n{why}\n"
            f"Call the op once with the same arguments before the capture, or build its variants ahead."
        )


class UntrustedCacheError(SgljitError, PermissionError):
    """Another user could have written a cache directory or an artifact, so nothing is loaded from it."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} {reason}, so another user who can write there could run code as you.\n{remedy}")


class NotACacheError(SgljitError, FileExistsError):
    """A directory that is to be a cache holds other files, among which nothing may be removed."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path = path
        self.names = tuple(names)
        super().__init__(
            f"{path} is no cache of sgljit: it holds {', '.join(names)}, and no CACHEDIR.TAG of sgljit.\n"
            f"A cache removes old files. So let SGLJIT_CACHE_DIR name a directory that is empty or does not exist yet, "
            f"or empty this one"
        )


class StorageError(SgljitError, OSError):
    """No directory takes the files of a build, or an operation on a cache met an error of its file system."""


class ResourceError(SgljitError, OSError):
    """The process or the machine has no file descriptor, process or memory left for what was to be done."""

    def __init__(self, what: str, error: OSError, remedy: str = "") -> None:
        remedy = remedy or (
            "Raise the limits of this process (ulimit -n for files, ulimit -u for processes and threads), or free some"
        )
        super().__init__(f"{what}: {error.strerror or error}. The next call tries again. {remedy}")


class ArtifactLoadError(SgljitError, OSError):
    """A library is undamaged, but this machine cannot load it."""


class DriverError(SgljitError, RuntimeError):
    """The CUDA driver is missing, too old for a kernel, or refuses a call."""


class SignatureError(SgljitError, TypeError):
    """A host part and the kernel, or the deferred function, that it calls do not have the same parameters."""


class InvalidFamilyError(SgljitError, ValueError):
    """A family or an op is declared in a way that cannot work."""


class PluginLoadError(SgljitError, ImportError):
    """A plugin failed while it was imported or registered. The original exception is the ``__cause__``."""

    def __init__(self, plugin: str, reason: str) -> None:
        self.plugin = plugin
        super().__init__(f"plugin {plugin} cannot be loaded: {reason}")


class IncompatiblePluginError(PluginLoadError):
    """A plugin's metadata excludes the running version of sgljit-core."""


class PluginConflictError(SgljitError, RuntimeError):
    """Two distributions claim the same family."""


class UnknownFamilyError(SgljitError, KeyError):
    """``ops[...]`` names a family that no installed plugin provides."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0])


class UnknownOpError(SgljitError, AttributeError):
    """A family has no op with this name."""


__all__ = [name for name, value in globals().items() if isinstance(value, type) and issubclass(value, SgljitError)]
