"""Verified code becomes a loaded library.

The bytes that were verified are the bytes that are loaded, from an anonymous file in memory. A library that is
truncated, replaced or pruned on disk (or on another machine, on NFS) can then neither be executed unverified nor kill
the process with SIGBUS later. It costs 1 ms for 1 MB.

A library's name is the path that it was loaded by, and two rules hold for it. No two libraries have one name, as the C
library takes them for the same. And nothing else is found there later: libbacktrace (tvm-ffi reports errors with it)
maps and reads what it finds, and an empty file would be a SIGBUS. So the path is a link to the descriptor, in a
directory of the user's own, with a name at random; when the library is loaded, both are removed. Where no such link
can be made, the path is the descriptor's own, which then stays open.

A library is never unloaded, as functions and kernels of it may be in use: each keeps its mappings.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgljit_core.errors import ArtifactLoadError
from sgljit_core.machine import private

from . import exceptions

if TYPE_CHECKING:
    from tvm_ffi import Module


_EXPORT = re.compile(rb"\0__tvm_ffi_(\w+)(?=\0)")  # of an exported function, in a library's table of names
_count = itertools.count(1)


def load_library(payload: bytes, name: str) -> Module:
    """Load a shared library from its bytes, for the life of the process.

    Args:
        name: what ``/proc/<pid>/maps`` and profilers show.

    Raises:
        ArtifactLoadError: this machine cannot load it, because of a missing library or symbol version.
    """
    try:
        with _file(payload, name) as path:
            return _load(path, name)
    except ArtifactLoadError:
        raise
    except OSError as error:
        remedy = " Raise the limit (ulimit -n)" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        raise ArtifactLoadError(f"{name} cannot be loaded, as there is no file for it: {error}.{remedy}") from error


@contextmanager
def _file(payload: bytes, name: str) -> Iterator[str]:
    """A path to load a library by, while the block runs."""
    try:
        descriptor = _memory_file(payload, name)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        with _file_on_disk(payload, name) as on_disk:
            yield on_disk
        return
    own = f"/proc/self/fd/{'./' * next(_count)}{descriptor}"  # another number may come again
    link = None
    with contextlib.suppress(OSError):
        path = private.user_directory() / f"{name}-{os.urandom(8).hex()}"
        path.symlink_to(f"/proc/self/fd/{descriptor}")
        link = path
    loaded = False
    try:
        if not os.path.exists(own):  # noqa: PTH110 - no /proc
            with _file_on_disk(payload, name) as instead:
                yield instead
        else:
            yield own if link is None else str(link)
            loaded = True
    finally:
        if link is not None:
            with contextlib.suppress(OSError):
                link.unlink()
        if link is not None or not loaded:
            os.close(descriptor)


def _memory_file(payload: bytes, name: str) -> int:
    descriptor = os.memfd_create(f"sgljit:{name}"[:200], os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(payload)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _file_on_disk(payload: bytes, name: str) -> Iterator[str]:
    """The way without /proc or memory files: a private file, gone once it is loaded."""
    descriptor, path = tempfile.mkstemp(dir=private.process_directory(), prefix=f"{name}-", suffix=".so")
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(payload)
        yield path
    finally:
        with contextlib.suppress(OSError):
            Path(path).unlink()


def _load(path: str, name: str) -> Module:
    ffi = _tvm_ffi()
    try:
        # tvm_ffi.load_module does this for a path that ends in .so.
        module: Module = ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")
    except RuntimeError as error:
        raise ArtifactLoadError(f"{name} cannot be loaded on this machine: {_reason(error)}") from error
    ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)  # keeps it loaded while functions of it are in use
    return module


def exports(module: Module) -> list[str]:
    """The names of the functions that a library exports which was loaded here, for messages.

    A module does not list them, and its library has no path any more. So they are found in this process's memory,
    which has the names of all libraries; there are none where ``/proc`` does not show it.
    """
    names: set[bytes] = set()
    with contextlib.suppress(OSError), Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            addresses, access, offset, *_ = line.split(maxsplit=5)
            is_loaded_here = "/memfd:sgljit:" in line or line.endswith(".so (deleted)")
            if is_loaded_here and access.startswith("r") and int(offset, 16) == 0:
                start, end = (int(address, 16) for address in addresses.split("-"))
                memory.seek(start)
                names.update(_EXPORT.findall(memory.read(end - start)))
    return sorted(filter(module.implements_function, map(bytes.decode, names)))


def _reason(error: RuntimeError) -> str:
    text = str(error)
    return text[text.find("Failed to load") :] if "Failed to load" in text else text


def tvm_ffi_version() -> str:
    """The version of tvm-ffi that runs."""
    return str(_tvm_ffi().__version__)


@functools.cache
def _tvm_ffi() -> Any:
    """tvm-ffi, which knows our exceptions from the first import on."""
    import tvm_ffi

    exceptions.register(tvm_ffi)
    return tvm_ffi
