"""Verified code becomes a loaded library.

The bytes that were verified are the bytes that are loaded: they go into an anonymous file in memory, which is loaded
through its descriptor. A library that is truncated, replaced or pruned on disk (or on another machine, on NFS) can then
neither be executed unverified nor kill the process with SIGBUS later. It costs 1 ms for 1 MB.

The descriptor stays open, as the library's name is its path: whoever reads a library by its name, to print a C++
backtrace or in a debugger, finds it. Behind a number that is used again it might be an empty file, which libbacktrace
(tvm-ffi reports errors with it) maps and reads: a SIGBUS.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgljit_core import errors, paths
from sgljit_core.errors import ArtifactLoadError
from sgljit_core.machine import trust

from . import exceptions

if TYPE_CHECKING:
    from tvm_ffi import Module


_numbers: set[int] = set()  # of the descriptors that libraries were loaded by


def load_library(payload: bytes, name: str) -> Module:
    """Load a shared library from its bytes, for the life of the process.

    Args:
        name: what ``/proc/<pid>/maps`` and profilers show.

    Raises:
        ArtifactLoadError: this machine cannot load it, because of a missing library or symbol version.
    """
    try:
        descriptor = _memory_file(payload, name)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise ArtifactLoadError(
                f"{name} cannot be loaded: {error.strerror}. Each loaded module keeps a file open: raise the limit "
                f"(ulimit -n)"
            ) from error
        return _load_from_disk(payload, name)
    path = f"/proc/self/fd/{descriptor}"
    try:
        if Path(path).exists():
            return _load(path, name)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return _load_from_disk(payload, name)  # no /proc


def _memory_file(payload: bytes, name: str) -> int:
    """A file in memory, whose descriptor has a number that no library was loaded by.

    The C library takes two libraries of one name for the same. A number comes again where somebody else closes
    descriptors that they do not know, as a daemon does.
    """
    descriptors = [os.memfd_create(f"sgljit:{name}"[:200], os.MFD_CLOEXEC)]
    try:
        while descriptors[-1] in _numbers:
            descriptors.append(os.dup(descriptors[-1]))
        view = memoryview(payload)
        while view:
            view = view[os.write(descriptors[-1], view) :]
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    for descriptor in descriptors[:-1]:
        os.close(descriptor)
    _numbers.add(descriptors[-1])
    return descriptors[-1]


def _load_from_disk(payload: bytes, name: str) -> Module:
    """The way without /proc or memory files: a private file, gone once it is loaded."""
    try:
        parent = trust.private_directory(paths.scratch_directory())
    except (OSError, errors.UntrustedCacheError):
        parent = Path(tempfile.gettempdir())
    descriptor, path = tempfile.mkstemp(dir=parent, prefix=f"{name}-", suffix=".so")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
        return _load(path, name)
    finally:
        Path(path).unlink()


def _load(path: str, name: str) -> Module:
    ffi = _tvm_ffi()
    try:
        # What tvm_ffi.load_module does for a path that ends in .so.
        module: Module = ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")
    except RuntimeError as error:
        raise ArtifactLoadError(f"{name} cannot be loaded on this machine: {_reason(error)}") from error
    ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)  # keeps it loaded while functions of it are in use
    vars(module)[_PATH] = path
    return module


_PATH = "sgljit path"  # no function of a module is called so


def exports(module: Module) -> list[str]:
    """The names of the functions that a loaded library exports; none where its file is gone. For messages."""
    path = Path(vars(module).get(_PATH, ""))
    content = path.read_bytes() if path.is_file() else b""
    names = {name.decode() for name in re.findall(rb"\0__tvm_ffi_([A-Za-z]\w*)(?=\0)", content)}
    return sorted(name for name in names if module.implements_function(name))


def _reason(error: RuntimeError) -> str:
    text = str(error)
    return text[text.find("Failed to load") :] if "Failed to load" in text else text


def tvm_ffi_version() -> str:
    """The version of tvm-ffi that runs."""
    return str(_tvm_ffi().__version__)


def _tvm_ffi() -> Any:
    """tvm-ffi, which knows our exceptions from the first import on."""
    import tvm_ffi

    if not _registered:
        exceptions.register(tvm_ffi)
        _registered.append(True)
    return tvm_ffi


_registered: list[bool] = []
