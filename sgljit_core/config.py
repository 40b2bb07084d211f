"""Which settings does the environment have, and which directories follow from them?

Only this module reads ``os.environ``. Each call reads it again, so that a test or a launcher may change a variable at
any time; a changed variable is interpreted again. No kernel call runs any of this.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, get_args

from .errors import ConfigError

Mode = Literal["on", "warn", "error"]
T = TypeVar("T", bound=str)


class Settings(NamedTuple):
    """One reading of the environment. ``*_source`` is the name of the variable that a setting came from.

    Attributes:
        cache_dir: ``SGLJIT_CACHE_DIR``: the root of the artifact cache, an absolute path; by default the user's
            cache directory.
        cuda_arch: ``SGLJIT_CUDA_ARCH``, else ``TVM_FFI_CUDA_ARCH_LIST`` if it has one entry: the target, such as
            ``9.0a``; by default the current device's.
        plugins: ``SGLJIT_PLUGINS``: the distributions that may provide kernels, separated by commas; by default all.
        nvcc: ``SGLJIT_NVCC``: the path of nvcc; by default it is searched.
        hipcc: ``SGLJIT_HIPCC``: the path of hipcc; by default it is searched.
        cxx: ``SGLJIT_CXX``, else ``CXX``: the host compiler; by default it is searched on ``PATH``.
        path: ``PATH``: where programs are searched.
        search: ``CONDA_PREFIX``, ``CUDA_HOME``, ``CUDA_PATH``: where a CUDA toolkit is searched.
        prebuilt: ``SGLJIT_PREBUILT_PATH``: directories of artifacts, separated by ``:``, searched first and never
            written.
        jit: ``SGLJIT_JIT``: whether compiling on demand is allowed: ``on`` (the default), ``warn`` or ``error``.
        jobs: ``SGLJIT_JOBS``: the number of compilers that a process runs at once; by default by cores and memory.
        lock: ``SGLJIT_LOCK``: a file that ``sgljit lock`` wrote: a plugin that differs is refused; by default none is.
        must_be_signed: ``SGLJIT_TRUSTED_KEYS``: whether it names keys: what others compiled must be signed by one then.
        has_remote: ``SGLJIT_REMOTE``: whether a remote is named; extensions are loaded with the first family then.
        trust_shared_cache: ``SGLJIT_TRUST_SHARED_CACHE``: with ``1``, accept caches that others can write.
        cache_home: ``XDG_CACHE_HOME``, else ``~/.cache``: the directory of the user's caches; None without a home.
        runtime_dir: ``XDG_RUNTIME_DIR``: the user's own directory for what is lost at a reboot, if there is one.
    """

    cache_dir: Path | None
    cuda_arch: str | None
    cuda_arch_source: str
    plugins: frozenset[str] | None
    nvcc: str | None
    hipcc: str | None
    cxx: str | None
    cxx_source: str
    path: str
    search: tuple[str, ...]
    prebuilt: tuple[Path, ...]
    jit: Mode
    jobs: int | None
    lock: Path | None
    must_be_signed: bool
    has_remote: bool
    trust_shared_cache: bool
    cache_home: Path | None
    runtime_dir: Path | None


_VARIABLES = (
    *("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "CXX", "PATH", "TVM_FFI_CUDA_ARCH_LIST"),
    *("SGLJIT_REMOTE", "HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),  # HOME is the meaning of "~"
    *("SGLJIT_CACHE_DIR", "SGLJIT_CUDA_ARCH", "SGLJIT_CXX", "SGLJIT_HIPCC", "SGLJIT_JIT", "SGLJIT_JOBS", "SGLJIT_LOCK"),
    *("SGLJIT_NVCC", "SGLJIT_PLUGINS", "SGLJIT_PREBUILT_PATH", "SGLJIT_TRUSTED_KEYS", "SGLJIT_TRUST_SHARED_CACHE"),
)


def settings() -> Settings:
    """Read the environment. Raises ConfigError for an invalid variable."""
    return _interpret(tuple(map(os.environ.get, _VARIABLES)))


def is_observed() -> bool:
    """Whether a variable asks that sgljit-tools observes this process."""
    names = ("SGLJIT_LOG", "SGLJIT_NVTX", "SGLJIT_SYNC", "SGLJIT_TRACE_CALLS")
    return any(os.environ.get(name, "").strip() not in ("", "0") for name in names)


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
        with contextlib.suppress(OSError):  # it is missing, or cannot be asked: the next one up
            return place.stat().st_uid not in (os.getuid(), 0)
    return False


def build_root(build_directory: str | Path | None) -> Path:
    """The writable root of one build: ``build_directory``, else the user's cache."""
    return cache_root() if build_directory is None else Path(build_directory).absolute()


def runtime_directory() -> Path:
    """The directory that the processes of a user share on a machine; it is lost at a reboot."""
    own = settings().runtime_dir
    return own / "sgljit" if own and own.is_absolute() and own.is_dir() else _user_directory() / "run"


def _user_directory() -> Path:
    """The user's directory in the temporary directory. Callers check its owner: another user may have made it."""
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError:  # no directory takes a file
        place = "/tmp"  # noqa: S108 - the error of whoever writes there names it
    return Path(place) / f"sgljit-{os.getuid()}"


@functools.lru_cache(maxsize=4)
def _interpret(values: tuple[str | None, ...]) -> Settings:
    raw = {name: value for name, value in zip(_VARIABLES, values, strict=True) if value is not None}
    # Unset, empty and blank are the same, except for the variables whose empty value has a meaning.
    given = {name: value.strip() for name, value in raw.items() if value.strip()}
    root, lock = given.get("SGLJIT_CACHE_DIR"), given.get("SGLJIT_LOCK")
    arch_source = "SGLJIT_CUDA_ARCH" if "SGLJIT_CUDA_ARCH" in given else "TVM_FFI_CUDA_ARCH_LIST"
    arch = given.get(arch_source)
    if arch_source == "TVM_FFI_CUDA_ARCH_LIST" and set(" ,;") & set(arch or ""):
        arch = None  # tvm-ffi compiles for each entry; here each device compiles what it runs
    cxx_source = "SGLJIT_CXX" if "SGLJIT_CXX" in given else "CXX"
    allowed = raw.get("SGLJIT_PLUGINS")
    prebuilt = given.get("SGLJIT_PREBUILT_PATH", "").split(os.pathsep)
    jobs = given.get("SGLJIT_JOBS", "")
    if jobs and (not jobs.isdecimal() or int(jobs) < 1):
        raise ConfigError(f"SGLJIT_JOBS must be a whole number of at least 1, got {jobs!r}")
    return Settings(
        cache_dir=_absolute("SGLJIT_CACHE_DIR must be an absolute path", root) if root else None,
        cuda_arch=arch,
        cuda_arch_source=arch_source,
        plugins=None if allowed is None else frozenset(n.strip() for n in allowed.split(",") if n.strip()),
        nvcc=given.get("SGLJIT_NVCC"),
        hipcc=given.get("SGLJIT_HIPCC"),
        cxx=given.get(cxx_source),
        cxx_source=cxx_source,
        path=raw.get("PATH", os.defpath),
        search=tuple(raw.get(name, "") for name in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")),
        prebuilt=tuple(_absolute("SGLJIT_PREBUILT_PATH must list absolute paths", p) for p in prebuilt if p),
        jit=_one_of(given, "SGLJIT_JIT", get_args(Mode)),
        jobs=int(jobs) if jobs else None,
        lock=_absolute("SGLJIT_LOCK must be an absolute path", lock) if lock else None,
        must_be_signed="SGLJIT_TRUSTED_KEYS" in given,
        has_remote="SGLJIT_REMOTE" in given,
        trust_shared_cache=_one_of(given, "SGLJIT_TRUST_SHARED_CACHE", ("0", "1")) == "1",
        cache_home=_cache_home(given),
        runtime_dir=Path(given["XDG_RUNTIME_DIR"]) if "XDG_RUNTIME_DIR" in given else None,
    )


def _cache_home(given: Mapping[str, str]) -> Path | None:
    named = Path(given.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # others are to be ignored: XDG Base Directory Specification
        return named
    with contextlib.suppress(RuntimeError):  # a user without HOME who is not in the user database
        home = Path("~").expanduser()
        return home / ".cache" if home.is_absolute() else None
    return None


def _absolute(rule: str, name: str) -> Path:
    path = Path(name)
    with contextlib.suppress(RuntimeError):  # nobody has this home
        path = path.expanduser()
    if not path.is_absolute():
        raise ConfigError(f"{rule}, got {name!r}")
    return path


def _one_of(given: Mapping[str, str], name: str, values: tuple[T, ...]) -> T:
    """The value of a variable, one of ``values``; the first if it is unset."""
    value = given.get(name, values[0]).lower()
    if value in values:
        return values[values.index(value)]
    raise ConfigError(f"{name} must be one of {', '.join(values)}; got {value!r}")
