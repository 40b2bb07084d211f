"""Which compilers are there, and which versions?

nvcc is found with cuda-pathfinder (environment wheels, conda, CUDA_HOME, system). The host compiler is one and
the same for C++ files, as nvcc's ``-ccbin`` and for linking, so that what is asked for its version is what runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .config import settings
from .errors import ToolchainNotFoundError

__all__ = ["Compiler", "Toolchain", "find_cxx", "find_nvcc", "find_toolchain"]

_HOST_COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True)
class Compiler:
    """One compiler: the program, and the line it identifies itself with."""

    path: Path
    version: str


@dataclass(frozen=True)
class Toolchain:
    """What turns a build into a library. ``nvcc`` is None where the build has no CUDA code."""

    cxx: Compiler
    nvcc: Compiler | None

    @property
    def cuda_home(self) -> Path:
        """The CUDA toolkit that nvcc belongs to."""
        assert self.nvcc is not None
        return self.nvcc.path.parent.parent

    @property
    def cudart(self) -> Path:
        """The static CUDA runtime: an artifact then needs nothing but the driver at run time.

        Raises:
            ToolchainNotFoundError: the toolkit has no ``libcudart_static.a``.
        """
        candidates = [self.cuda_home / d / "libcudart_static.a" for d in ("lib64", "lib", "targets/x86_64-linux/lib")]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
        raise ToolchainNotFoundError(
            "libcudart_static.a",
            needed_for="CUDA kernels",
            searched=[str(c) for c in candidates],
            remedy=_CUDA_REMEDY,
        )


_CUDA_REMEDY = 'Install NVIDIA\'s compiler wheels: pip install "sgljit-core[cuda]". Or set SGLJIT_NVCC to an nvcc.'
_CXX_REMEDY = (
    "Install a C++20 compiler (Debian, Ubuntu: apt install g++; conda: conda install gxx), or set SGLJIT_CXX to one."
)


def find_toolchain(*, cuda: bool, needed_for: str) -> Toolchain:
    """The compilers for a build.

    Args:
        cuda: whether the build has CUDA code.
        needed_for: the build, for the error's text.

    Raises:
        ToolchainNotFoundError: with every place that was searched and the command that installs what is missing.
    """
    return Toolchain(cxx=find_cxx(needed_for), nvcc=find_nvcc(needed_for) if cuda else None)


def find_cxx(needed_for: str) -> Compiler:
    """The host C++ compiler: ``SGLJIT_CXX``, ``CXX``, else the first of g++, clang++, c++ on ``PATH``."""
    config = settings()
    names = (config.cxx,) if config.cxx else _HOST_COMPILERS
    for name in names:
        found = shutil.which(name, path=config.path)
        if found:
            return _identify(Path(found))
    raise ToolchainNotFoundError(
        "a C++ compiler",
        needed_for=needed_for,
        searched=[f"{name} on PATH={config.path}" for name in names],
        remedy=_CXX_REMEDY,
    )


def find_nvcc(needed_for: str) -> Compiler:
    """NVIDIA's compiler: ``SGLJIT_NVCC``, else what cuda-pathfinder finds."""
    configured = settings().nvcc
    if configured is not None:
        found = shutil.which(configured)
        searched = [f"SGLJIT_NVCC={configured}"]
    else:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("nvcc")
        searched = [
            "the nvidia-cuda-nvcc wheel of this environment",
            "the conda environment (CONDA_PREFIX)",
            "CUDA_HOME and CUDA_PATH",
            f"PATH={settings().path}",
            "/usr/local/cuda",
        ]
    if not found:
        raise ToolchainNotFoundError("nvcc", needed_for=needed_for, searched=searched, remedy=_CUDA_REMEDY)
    return _identify(Path(found).resolve())


_versions: dict[tuple[str, int, int], str] = {}


def _identify(path: Path) -> Compiler:
    """Ask a compiler for its version, once for each state of the file."""
    status = path.stat()
    memo = (str(path), status.st_size, status.st_mtime_ns)
    if memo not in _versions:
        environment = {"PATH": os.pathsep.join((str(path.parent), os.defpath)), "LC_ALL": "C"}
        result = subprocess.run(
            [path, "--version"], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False
        )
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        if result.returncode != 0 or not lines:
            raise ToolchainNotFoundError(
                f"a working {path.name}",
                needed_for="kernels",
                searched=[f"{path} (--version failed with {result.returncode}: {result.stderr.strip()})"],
                remedy=_CUDA_REMEDY if path.name == "nvcc" else _CXX_REMEDY,
            )
        # nvcc names its release on the fourth line, others identify themselves on the first.
        _versions[memo] = next((line for line in lines if "release" in line), lines[0])
    return Compiler(path, _versions[memo])
