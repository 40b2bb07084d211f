"""Verified code becomes a loaded library.

The bytes that were verified are loaded, from an anonymous file in memory. A library that is truncated, replaced or
pruned on disk can then neither be executed unverified nor kill the process with SIGBUS later. It costs 1 ms for 1 MB.

The C library knows a library by the path that it was loaded from: two libraries must not share one. And no other file
may appear at that path later: libbacktrace, with which tvm-ffi reports errors, maps what it finds there, and an empty
file would be a SIGBUS. So the path is a link to the descriptor, with a random name, in a directory of the user's own.
Once the library is loaded, link and descriptor are removed. Where no link can be made, the path is that of the
descriptor, which then stays open. No library is ever unloaded, as functions of it may be in use.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgljit_core.config import runtime_directory
from sgljit_core.errors import ArtifactLoadError
from sgljit_core.machine import trust

from . import exceptions

if TYPE_CHECKING:
    from tvm_ffi import Module

_count = itertools.count(1)


def load_library(payload: bytes, name: str) -> Module:
    """Load a shared library from its bytes, for the life of the process. Profilers show its ``name``.

    Raises ArtifactLoadError: this machine cannot load it, because of a missing library or symbol version.
    """
    ffi = _tvm_ffi()
    try:
        with _file(payload, name) as path:
            # tvm_ffi.load_module does this for a path that ends in .so.
            module: Module = ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")
    except RuntimeError as error:
        reason = str(error)[max(0, str(error).find("Failed to load")) :]
        raise ArtifactLoadError(f"{name} cannot be loaded on this machine: {reason}") from error
    except OSError as error:
        remedy = " Raise the limit (ulimit -n)" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        raise ArtifactLoadError(f"{name} cannot be loaded, as there is no file for it: {error}.{remedy}") from error
    ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)  # keeps it loaded while functions of it are in use
    return module


@contextlib.contextmanager
def _file(payload: bytes, name: str) -> Iterator[str]:
    """A path to load a library by, while the block runs."""
    descriptor = _memory_file(payload, name)
    if descriptor is None:
        with _file_on_disk(payload, name) as path:
            yield path
        return
    link, keep = None, False
    with contextlib.suppress(OSError):
        directory = runtime_directory()
        os.close(trust.walk(directory, make=True))  # it raises where another user has made it, or could replace it
        path = str(directory / f"{name}-{os.urandom(8).hex()}")
        os.symlink(f"/proc/self/fd/{descriptor}", path)  # noqa: PTH211
        link = path
    try:
        # Without a link the descriptor stays open, and its number, which may come again, gets another spelling.
        yield link or f"/proc/self/fd/{'./' * next(_count)}{descriptor}"
        keep = link is None
    finally:
        if link is not None:
            with contextlib.suppress(OSError):
                os.unlink(link)  # noqa: PTH108
        if not keep:
            os.close(descriptor)


def _memory_file(payload: bytes, name: str) -> int | None:
    """The descriptor of a file in memory; None where there are no such files, or ``/proc`` gives them no path."""
    try:
        descriptor = os.memfd_create(f"sgljit:{name}"[:200], os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    keep = False
    try:
        with contextlib.suppress(OSError), open(descriptor, "wb", closefd=False) as file:
            file.write(payload)
            keep = os.path.exists(f"/proc/self/fd/{descriptor}")  # noqa: PTH110
    finally:
        if not keep:
            os.close(descriptor)
    return descriptor if keep else None


@contextlib.contextmanager
def _file_on_disk(payload: bytes, name: str) -> Iterator[str]:
    """The way without /proc or memory files: a private file, gone once it is loaded."""
    from sgljit_core.machine import private  # not in a warm start

    descriptor, path = tempfile.mkstemp(dir=private.process_directory(), prefix=f"{name}-", suffix=".so")
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(payload)
        yield path
    finally:
        with contextlib.suppress(OSError):
            Path(path).unlink()


def tvm_ffi_version() -> str:
    """The version of tvm-ffi that runs."""
    return str(_tvm_ffi().__version__)


@functools.cache
def _tvm_ffi() -> Any:
    """tvm-ffi, which knows our exceptions from the first import on."""
    import tvm_ffi

    exceptions.register(tvm_ffi)
    return tvm_ffi
