"""Where are the files?

Only this module knows: headers, the user's cache, a plugin's package, tvm-ffi. It creates nothing.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

from .config import settings
from .errors import SourceNotFoundError


def cache_root() -> Path:
    """The root of the writable artifact cache: ``SGLJIT_CACHE_DIR``, else a directory of the user's caches.

    A user without a home, or whose ``HOME`` is another user's, has it among the temporary files.
    """
    config = settings()
    if config.cache_dir is not None:
        return config.cache_dir
    if config.cache_home is not None and not _is_foreign(config.cache_home):
        return config.cache_home / "sgljit"
    return _user_directory() / "cache"


def is_chosen(root: Path) -> bool:
    """Whether somebody has named a root, so that it is a mistake if it cannot be used."""
    return settings().cache_dir is not None or root != cache_root()


def can_be_guessed(root: Path) -> bool:
    """Whether another user can know the name of a root before it exists, and make it first. No setting shares it."""
    return _user_directory() in root.parents


def _is_foreign(path: Path) -> bool:
    """Whether a directory, or the one that it would be made in, is another user's: HOME may be somebody else's."""
    for place in (path, *path.parents):
        try:
            return place.stat().st_uid not in (os.getuid(), 0)
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # noqa: PERF203 - the next one up
            continue
        except OSError:
            return False  # who writes there finds out
    return False


def build_root(build_directory: str | Path | None) -> Path:
    """The writable root of one build: ``build_directory``, else the user's cache."""
    return cache_root() if build_directory is None else Path(build_directory).absolute()


def runtime_directory() -> Path:
    """The directory that the processes of a user share on a machine; it is lost at a reboot."""
    configured = settings().runtime_dir
    if configured is not None and configured.is_absolute() and configured.is_dir():
        return configured / "sgljit"
    return _user_directory() / "run"


def _user_directory() -> Path:
    """The user's directory in the temporary directory. Callers check its owner: another user may have made it."""
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError:  # no directory takes a file
        place = "/tmp"  # noqa: S108 - the error of whoever writes there names it
    return Path(place) / f"sgljit-{os.getuid()}"


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
