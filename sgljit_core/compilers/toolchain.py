"""Which compilers are installed, and which versions?

One host compiler serves for C++ files, as nvcc's ``-ccbin`` and for linking, so that the program that is asked for its
version is the one that runs. A warm start runs no compiler: the path of nvcc and the version of each compiler are
remembered until a file that decides them changes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sgljit_core.config import settings
from sgljit_core.errors import ToolchainNotFoundError
from sgljit_core.machine.answers import recall, remember

if TYPE_CHECKING:
    from sgljit_core.machine.supervisor import Finished

_HOST_COMPILERS = ("g++", "clang++", "c++")
HIP_ENVIRONMENT = {"HIP_PLATFORM": "amd"}  # or hipcc is a front for nvcc where it finds one
_SECONDS = 60.0  # for a compiler to say what it is
_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")
_CUDA_REMEDY = 'Install NVIDIA\'s compiler wheels: pip install "sgljit-core[cuda]". Or set SGLJIT_NVCC to an nvcc.'
_HIP_REMEDY = "Install ROCm's compiler (Debian, Ubuntu: apt install hipcc), or set SGLJIT_HIPCC to a hipcc."
_CXX_REMEDY = (
    "Install a C++20 compiler (Debian, Ubuntu: apt install g++; conda: conda install gxx), or set SGLJIT_CXX to one."
)


class Compiler(NamedTuple):
    """One compiler: the program, and the line that it identifies itself with."""

    path: Path
    version: str


class Toolchain(NamedTuple):
    """The compilers of a build. ``nvcc`` is None if it has no CUDA code, ``hipcc`` if it has none for AMD."""

    cxx: Compiler
    nvcc: Compiler | None
    hipcc: Compiler | None = None

    @property
    def cuda_home(self) -> Path:
        """The CUDA toolkit that nvcc belongs to."""
        assert self.nvcc is not None
        if _is_script(self.nvcc.path):  # a wrapper may be anywhere, but nvcc itself reports its directory
            asked = _ask(self.nvcc.path, "--dryrun", "-x", "cu", "-c", os.devnull)
            if (match := re.search(r"^#\$ TOP=(.+)$", asked.output, re.MULTILINE)) is not None:
                return Path(match[1]).resolve()
        return self.nvcc.path.parent.parent

    @property
    def cudart(self) -> Path:
        """The static CUDA runtime: with it an artifact needs only the driver at run time."""
        candidates = [self.cuda_home / d / "libcudart_static.a" for d in ("lib64", "lib", "targets/x86_64-linux/lib")]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
        raise ToolchainNotFoundError(
            "libcudart_static.a", needed_for="CUDA kernels", searched=[*map(str, candidates)], remedy=_CUDA_REMEDY
        )


def find_toolchain(*, cuda: bool, needed_for: str, rocm: bool = False) -> Toolchain:
    """The compilers for a build, with nvcc if it has CUDA code, with hipcc if it has such code for AMD.

    Raises ToolchainNotFoundError, with every place that was searched and the command that installs the compiler.
    """
    nvcc = find_nvcc(needed_for) if cuda else None
    return Toolchain(find_cxx(needed_for), nvcc, find_hipcc(needed_for) if rocm else None)


def find_cxx(needed_for: str) -> Compiler:
    """The host C++ compiler: ``SGLJIT_CXX``, ``CXX``, else the first of g++, clang++, c++ on ``PATH``.

    From a launcher with a compiler, such as "ccache g++", it takes the compiler: results are cached here already.
    """
    config = settings()
    for name in _HOST_COMPILERS if config.cxx is None else (config.cxx, _compiler_of(config.cxx)):
        if found := shutil.which(name, path=config.path):
            return _identify(Path(found))
    if config.cxx is None:
        searched = [f"{name} on PATH={config.path}" for name in _HOST_COMPILERS]
        remedy = _CXX_REMEDY
    else:
        searched = [f"{config.cxx_source}={config.cxx!r} on PATH={config.path}"]
        remedy = (
            f"Set {config.cxx_source} to one program, a C++20 compiler, without flags (pass a build's flags as "
            f"load_jit's extra_cflags); or unset it to search for {', '.join(_HOST_COMPILERS)}."
        )
    raise ToolchainNotFoundError("a C++ compiler", needed_for=needed_for, searched=searched, remedy=remedy)


def _compiler_of(command: str) -> str:
    """The compiler in "launcher compiler"; any other command as it is."""
    import shlex  # a warm start names no launcher, nor does it run a compiler

    try:
        launcher, compiler = shlex.split(command)
    except ValueError:
        return command
    return compiler if Path(launcher).name in _LAUNCHERS else command


def find_nvcc(needed_for: str) -> Compiler:
    """NVIDIA's compiler: ``SGLJIT_NVCC``, else the one that cuda-pathfinder finds, or that is on ``PATH``."""
    if (configured := settings().nvcc) is not None:
        found = shutil.which(configured)
        searched = [f"SGLJIT_NVCC={configured}"]
    else:
        found = remembered_search("nvcc", _search_nvcc)
        if found and not Path(found).is_file():
            found = _search_nvcc()
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


def find_hipcc(needed_for: str, *, asks: bool = True) -> Compiler:
    """AMD's compiler: ``SGLJIT_HIPCC``, else the one on ``PATH`` or in /opt/rocm; it may be left unasked."""
    config = settings()
    places = [config.hipcc] if config.hipcc else ["hipcc", "/opt/rocm/bin/hipcc"]
    for place in places:
        if found := shutil.which(place, path=config.path):
            return _identify(Path(found)) if asks else Compiler(Path(found), "not asked for its version")
    searched = [f"SGLJIT_HIPCC={config.hipcc}"] if config.hipcc else [f"PATH={config.path}", places[1]]
    raise ToolchainNotFoundError("hipcc", needed_for=needed_for, searched=searched, remedy=_HIP_REMEDY)


def _search_nvcc() -> str | None:
    from cuda.pathfinder import find_nvidia_binary_utility

    found: str | None = find_nvidia_binary_utility("nvcc")
    return found or shutil.which("nvcc", path=f"{settings().path}{os.pathsep}/usr/local/cuda/bin")


def remembered_search(what: str, search: Callable[[], str | None]) -> str | None:
    """The result of ``search``, remembered until one of the places changes where cuda-pathfinder looks.

    A search takes 70 ms, most of a warm start.
    """
    config = settings()
    prefixes = [*(Path(value) for value in config.search if value), Path("/usr/local/cuda")]
    places = [*prefixes, *(prefix / "bin" / "nvcc" for prefix in prefixes)]
    places += [Path(shutil.which("nvcc", path=config.path) or os.devnull)]
    places += [Path(entry, name) for entry in sys.path if entry.endswith("-packages") for name in ("", "nvidia")]
    question = [what, sys.prefix, config.path, *config.search, *map(_state, places)]
    answer = recall(question)
    if answer is None:
        answer = search()
        if answer:
            remember(question, answer)
    return answer


def _state(path: Path) -> str:
    """The state of a file or directory: its real path and its stamp."""
    try:
        status = path.stat()
    except OSError:
        return f"no {path}"
    return f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns} {status.st_ino}"


_versions: dict[str, str] = {}


def _identify(path: Path) -> Compiler:
    """The compiler with its version. It is asked for that once, and again when its file has changed."""
    state = f"{path} {_state(path)}"
    if state not in _versions:
        # A script may run another compiler tomorrow without a change of its own: its answer is not remembered.
        lasting = not _is_script(path)
        version = recall(["version", state]) if lasting else None
        if version is None:
            version = _ask_version(path)
            if lasting:
                remember(["version", state], version)
        _versions[state] = version
    return Compiler(path, _versions[state])


def _is_script(path: Path) -> bool:
    """Whether a program runs another one: a script, or a launcher such as ccache under g++'s name."""
    try:
        if path.resolve().name in _LAUNCHERS:
            return True
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:  # it can be run, and not read
        return True


def _ask(path: Path, *arguments: str) -> Finished:
    from sgljit_core.machine.supervisor import Supervisor

    environment = {"PATH": os.pathsep.join((str(path.parent), os.defpath)), "LC_ALL": "C", **HIP_ENVIRONMENT}
    return Supervisor().run([str(path), *arguments], cwd=Path("/"), env=environment, seconds=_SECONDS)


def _ask_version(path: Path) -> str:
    result = _ask(path, "--version")
    lines = [line for line in result.output.splitlines() if line.strip()]
    if result.status != 0 or not lines:
        failed = f"did not end within {_SECONDS:g} s" if result.late else f"failed with {result.status}"
        raise ToolchainNotFoundError(
            f"a working {path.name}",
            needed_for="kernels",
            searched=[f"{path} (--version {failed}: {result.output.strip()[:1000]})"],
            remedy={"nvcc": _CUDA_REMEDY, "hipcc": _HIP_REMEDY}.get(path.name, _CXX_REMEDY),
        )
    if hip := re.search(r"^HIP version.*(\n.*)?", result.output, re.MULTILINE):  # with clang's; helpers print before
        return hip[0].replace("\n", "; ")
    # nvcc names its release on the fourth line, others identify themselves on the first.
    return next((line for line in lines if "release" in line), lines[0])


def processor() -> str:
    """A hash of the properties of this machine's processor that decide the meaning of ``-march=native``."""
    try:
        return _processor()
    except OSError:  # not kept, as it may pass
        return f"that of {os.uname().nodename}"


@functools.cache
def _processor() -> str:
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    lines = [line for line in first if line.startswith(("vendor_id", "model", "flags", "Features", "CPU "))]
    return hashlib.sha256("\n".join(line for line in lines if "MHz" not in line).encode()).hexdigest()[:16]
