"""What did the environment ask for?

The only module that reads ``os.environ``. It is read anew at each question, so that a test or a launcher may
change a variable at any time; nothing here is on the path of a kernel call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

__all__ = ["Settings", "settings"]


@dataclass(frozen=True)
class Settings:
    """One reading of the environment.

    Attributes:
        cache_dir: ``SGLJIT_CACHE_DIR``: the root of the artifact cache; None for the platform's default.
        cuda_arch: ``SGLJIT_CUDA_ARCH``, else ``TVM_FFI_CUDA_ARCH_LIST``: the target, such as "9.0a"; None for the
            current device's. ``cuda_arch_source`` is the name of the variable it came from.
        plugins: ``SGLJIT_PLUGINS``: the distributions that may provide kernels; None for all.
        nvcc: ``SGLJIT_NVCC``: the compiler to use; None to search.
        cxx: ``SGLJIT_CXX``, else ``CXX``: the host compiler; None to search ``path``.
        path: ``PATH``.
    """

    cache_dir: Path | None
    cuda_arch: str | None
    cuda_arch_source: str
    plugins: frozenset[str] | None
    nvcc: str | None
    cxx: str | None
    path: str


def settings() -> Settings:
    """Read the environment. Raises ConfigError where a variable makes no sense."""
    cache_dir = _get("SGLJIT_CACHE_DIR")
    if cache_dir is not None and not Path(cache_dir).expanduser().is_absolute():
        raise ConfigError(f"SGLJIT_CACHE_DIR must be an absolute path, got {cache_dir!r}")
    arch_source = "SGLJIT_CUDA_ARCH" if _get("SGLJIT_CUDA_ARCH") else "TVM_FFI_CUDA_ARCH_LIST"
    allowed = os.environ.get("SGLJIT_PLUGINS")
    return Settings(
        cache_dir=None if cache_dir is None else Path(cache_dir).expanduser(),
        cuda_arch=_get(arch_source),
        cuda_arch_source=arch_source,
        plugins=None if allowed is None else frozenset(n.strip() for n in allowed.split(",") if n.strip()),
        nvcc=_get("SGLJIT_NVCC"),
        cxx=_get("SGLJIT_CXX") or _get("CXX"),
        path=os.environ.get("PATH", os.defpath),
    )


def _get(name: str) -> str | None:
    """A variable's value; None where it is unset or empty."""
    return os.environ.get(name, "").strip() or None
