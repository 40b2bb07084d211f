"""Where are the files that are installed? Headers, a plugin's package, tvm-ffi. ``config`` knows the caches."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from .config import build_root as build_root, cache_root as cache_root
from .errors import SourceNotFoundError


@functools.cache
def core_include() -> Path:
    """The directory that holds ``sgl_kernel/``: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    candidates = (package / "include", package.parent / "include")
    for candidate in candidates:
        if (candidate / "sgl_kernel").is_dir():
            return candidate
    raise SourceNotFoundError("sgl_kernel headers not found in {} or {}; reinstall sgljit-core".format(*candidates))


def package_directory(package: str) -> Path:
    """The directory of an importable package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SourceNotFoundError(f"package {package!r} is not installed, or is a single module without a directory")
    return Path(next(iter(spec.submodule_search_locations))).resolve()


CARRIED = "prebuilt"


def carried_artifacts(csrc: Path) -> Path | None:
    """The artifacts that a plugin's wheel carries: ``prebuilt/`` beside ``csrc/``, of the owner of both."""
    directory = csrc.parent / CARRIED
    return directory if directory.is_dir() and directory.lstat().st_uid == csrc.parent.stat().st_uid else None


def tvm_ffi_include() -> Path:
    """The include directory of tvm-ffi; its wheel keeps ``dlpack/`` there too."""
    return package_directory("tvm_ffi") / "include"


def tvm_ffi_library() -> Path:
    """``libtvm_ffi.so``, which libraries link against; at run time the process has loaded it already."""
    library = package_directory("tvm_ffi") / "lib" / "libtvm_ffi.so"
    if not library.is_file():
        raise SourceNotFoundError(f"{library} not found; reinstall apache-tvm-ffi")
    return library
