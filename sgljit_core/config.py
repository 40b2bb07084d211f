"""Which settings does the environment have?

Only this module reads ``os.environ``. Each call reads it again, so that a test or a launcher may change a variable at
any time; a changed variable is interpreted again. No kernel call runs any of this.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from .errors import ConfigError

Mode = Literal["on", "warn", "error"]
T = TypeVar("T", bound=str)


@dataclass(frozen=True)
class Engines:
    """The permissions of adapters in their engines.

    Attributes:
        on: whether they do anything.
        strict: whether they raise where they would otherwise leave the work to the engine.
        ops: the ops that they may use; None for all.
    """

    on: bool
    strict: bool
    ops: frozenset[str] | None


@dataclass(frozen=True)
class Settings:
    """One reading of the environment.

    Attributes:
        cache_dir: ``SGLJIT_CACHE_DIR``: the root of the artifact cache, an absolute path; by default the user's
            cache directory.
        cache_bytes: ``SGLJIT_CACHE_MEGABYTES``: the megabytes that builds keep the cache within, by default 4096;
            ``0`` and ``unlimited`` for any size.
        cuda_arch: ``SGLJIT_CUDA_ARCH``, else ``TVM_FFI_CUDA_ARCH_LIST``: the target, such as ``9.0a``; by default
            the current device's.
        cuda_arch_source: the name of the variable that ``cuda_arch`` came from.
        plugins: ``SGLJIT_PLUGINS``: the distributions that may provide kernels, separated by commas; by default all.
        nvcc: ``SGLJIT_NVCC``: the path of nvcc; by default it is searched.
        cxx: ``SGLJIT_CXX``, else ``CXX``: the host compiler; by default it is searched on ``PATH``.
        cxx_source: the name of the variable that ``cxx`` came from.
        path: ``PATH``: where programs are searched.
        search: ``CONDA_PREFIX``, ``CUDA_HOME``, ``CUDA_PATH``: where a CUDA toolkit is searched.
        prebuilt: ``SGLJIT_PREBUILT_PATH``: directories of artifacts, separated by ``:``, searched first and never
            written.
        jit: ``SGLJIT_JIT``: whether compiling on demand is allowed: ``on`` (the default), ``warn`` or ``error``.
        jobs: ``SGLJIT_JOBS``: the number of compilers that may run at once; by default by cores and memory.
        engines: ``SGLJIT_ENGINES``: what adapters may do: ``on`` (the default), ``off``, or a list of ``strict`` and
            names of ops.
        trust_shared_cache: ``SGLJIT_TRUST_SHARED_CACHE``: with ``1``, accept caches that others can write.
        runtime_dir: ``XDG_RUNTIME_DIR``: the user's own directory for locks, if there is one.
        ci: ``CI``: whether continuous integration runs this; ``0``, ``false`` and ``no`` mean that it does not.
    """

    cache_dir: Path | None
    cache_bytes: int | None
    cuda_arch: str | None
    cuda_arch_source: str
    plugins: frozenset[str] | None
    nvcc: str | None
    cxx: str | None
    cxx_source: str
    path: str
    search: tuple[str, ...]
    prebuilt: tuple[Path, ...]
    jit: Mode
    jobs: int | None
    engines: Engines
    trust_shared_cache: bool
    runtime_dir: Path | None
    ci: bool


_VARIABLES = (
    "CI",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CXX",
    "HOME",  # the meaning of "~"
    "PATH",
    "SGLJIT_CACHE_DIR",
    "SGLJIT_CACHE_MEGABYTES",
    "SGLJIT_CUDA_ARCH",
    "SGLJIT_ENGINES",
    "SGLJIT_JIT",
    "SGLJIT_JOBS",
    "SGLJIT_NVCC",
    "SGLJIT_CXX",
    "SGLJIT_PLUGINS",
    "SGLJIT_PREBUILT_PATH",
    "SGLJIT_TRUST_SHARED_CACHE",
    "TVM_FFI_CUDA_ARCH_LIST",
    "XDG_RUNTIME_DIR",
)
_CACHE_MEGABYTES = 4096
_MOST_MEGABYTES = 1e12
_JIT: tuple[Mode, ...] = ("on", "warn", "error")


def settings() -> Settings:
    """Read the environment. Raises ConfigError for an invalid variable."""
    return _interpret(tuple(os.environ.get(name) for name in _VARIABLES))


def inherited_environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: this one's, with some variables changed."""
    return {**os.environ, **changes}


def leave_out(name: str) -> None:
    """Remove a variable from the environment of this process and of those that it starts."""
    del os.environ[name]


@functools.lru_cache(maxsize=4)
def _interpret(values: tuple[str | None, ...]) -> Settings:
    raw = {name: value for name, value in zip(_VARIABLES, values, strict=True) if value is not None}
    # Unset, empty and blank are the same, except for the variables whose empty value has a meaning.
    given = {name: value.strip() for name, value in raw.items() if value.strip()}
    cache_dir = given.get("SGLJIT_CACHE_DIR")
    arch_source = "SGLJIT_CUDA_ARCH" if "SGLJIT_CUDA_ARCH" in given else "TVM_FFI_CUDA_ARCH_LIST"
    cxx_source = "SGLJIT_CXX" if "SGLJIT_CXX" in given else "CXX"
    allowed = raw.get("SGLJIT_PLUGINS")
    jobs = _number(given, "SGLJIT_JOBS", 1)
    return Settings(
        cache_dir=None if cache_dir is None else _absolute("SGLJIT_CACHE_DIR must be an absolute path", cache_dir),
        cache_bytes=_cache_bytes(given),
        cuda_arch=given.get(arch_source),
        cuda_arch_source=arch_source,
        plugins=None if allowed is None else frozenset(n.strip() for n in allowed.split(",") if n.strip()),
        nvcc=given.get("SGLJIT_NVCC"),
        cxx=given.get(cxx_source),
        cxx_source=cxx_source,
        path=raw.get("PATH", os.defpath),
        search=tuple(raw.get(name, "") for name in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")),
        prebuilt=_prebuilt(given),
        jit=_one_of(given, "SGLJIT_JIT", _JIT),
        jobs=None if jobs is None else int(jobs),
        engines=_engines(given),
        trust_shared_cache=_one_of(given, "SGLJIT_TRUST_SHARED_CACHE", ("0", "1")) == "1",
        runtime_dir=Path(given["XDG_RUNTIME_DIR"]) if "XDG_RUNTIME_DIR" in given else None,
        ci=given.get("CI", "no").lower() not in ("0", "false", "no"),
    )


def _cache_bytes(given: Mapping[str, str]) -> int | None:
    if given.get("SGLJIT_CACHE_MEGABYTES", "").lower() == "unlimited":
        return None
    megabytes = _number(given, "SGLJIT_CACHE_MEGABYTES", 0)
    return int(min(_CACHE_MEGABYTES if megabytes is None else megabytes, _MOST_MEGABYTES) * 1e6) or None


def _engines(given: Mapping[str, str]) -> Engines:
    value = given.get("SGLJIT_ENGINES", "on").lower()
    words = [word.strip() for word in value.split(",")]
    if value in ("on", "off"):
        return Engines(on=value == "on", strict=False, ops=None)
    if {"on", "off"} & {*words} or not all(word.isidentifier() for word in words):
        raise ConfigError(
            f"SGLJIT_ENGINES must be on, off, strict, or names of ops separated by commas, with or without strict; "
            f"got {value!r}"
        )
    return Engines(on=True, strict="strict" in words, ops=frozenset(words) - {"strict"} or None)


def _prebuilt(given: Mapping[str, str]) -> tuple[Path, ...]:
    listed = given.get("SGLJIT_PREBUILT_PATH", "").split(os.pathsep)
    return tuple(_absolute("SGLJIT_PREBUILT_PATH must list absolute paths", name) for name in listed if name)


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
    for known in values:
        if value == known:
            return known
    raise ConfigError(f"{name} must be one of {', '.join(values)}; got {value!r}")


def _number(given: Mapping[str, str], name: str, least: float) -> float | None:
    if name not in given:
        return None
    try:
        value = float(given[name])
    except ValueError:
        value = -1.0
    if not least <= value < float("inf"):
        raise ConfigError(f"{name} must be a number of at least {least:g}, got {given[name]!r}")
    return value
