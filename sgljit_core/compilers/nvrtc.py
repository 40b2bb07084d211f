"""How does a device file become a cubin, with no nvcc and no host compiler?

A thin binding of NVRTC, which PyTorch's CUDA wheels bring and cuda-pathfinder finds. It needs no GPU. Where it is and
which version it has are remembered, so that a warm start does not load 100 MB of compiler.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sgljit_core.errors import ToolchainNotFoundError
from sgljit_core.machine.forks import ForkLock

from .toolchain import remembered_search

_REMEDY = 'Install NVIDIA\'s compiler wheels: pip install "sgljit-core[cuda]".'
_HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp", "cuda_fp8.h", "cuda_fp8.hpp")


class RejectedSourceError(Exception):
    """NVRTC's log for a source that does not compile; the caller knows whose source it is."""


@dataclass(frozen=True)
class Nvrtc:
    """Where NVRTC is, and what identifies it.

    Attributes:
        library: libnvrtc.so.
        version: "13.0", and the library's size, since NVRTC does not tell its patch level.
        include: the directory of cuda_fp16.h and its kind.
        headers: what identifies those headers.
    """

    library: str
    version: str
    include: str
    headers: str


def find_nvrtc(needed_for: str) -> Nvrtc:
    """NVRTC and CUDA's headers, wherever cuda-pathfinder finds them.

    Raises:
        ToolchainNotFoundError: one of the two is missing.
    """
    answer = remembered_search("nvrtc", _search)
    found = Nvrtc(**json.loads(answer)) if answer else None
    if found is None or not Path(found.library).is_file() or not Path(found.include).is_dir():
        raise ToolchainNotFoundError(
            "NVRTC (libnvrtc.so) with CUDA's headers (cuda_fp16.h)",
            needed_for=needed_for,
            searched=[
                "the nvidia-cuda-nvrtc and nvidia-cuda-runtime wheels of this environment",
                "the conda environment (CONDA_PREFIX)",
                "CUDA_HOME and CUDA_PATH",
                "the system's library directories and /usr/local/cuda",
            ],
            remedy=_REMEDY,
        )
    return found


def unknown_target(nvrtc: Nvrtc, target: str, needed_for: str) -> ToolchainNotFoundError:
    """The error of a target that this NVRTC does not compile for, with those that it does."""
    library = _library(nvrtc.library)
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    known = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(known)
    listed = ", ".join(f"sm_{number}" for number in known)
    return ToolchainNotFoundError(
        f"an NVRTC for {target} (NVRTC {nvrtc.version.partition(' ')[0]} compiles for {listed})",
        needed_for=needed_for,
        searched=[nvrtc.library],
        remedy=f"Name one of these architectures, or install a later compiler. {_REMEDY}",
    )


def _search() -> str | None:
    from cuda.pathfinder import DynamicLibNotFoundError, find_nvidia_header_directory, load_nvidia_dynamic_lib

    try:
        path = str(load_nvidia_dynamic_lib("nvrtc").abs_path)
    except DynamicLibNotFoundError:
        return None
    include = find_nvidia_header_directory("cudart")
    if include is None:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    version = f"{major.value}.{minor.value} ({Path(path).stat().st_size} bytes)"
    sizes = [f"{name} {Path(include, name).stat().st_size}" for name in _HEADERS if Path(include, name).is_file()]
    return json.dumps(asdict(Nvrtc(path, version, str(include), ", ".join(sizes))))


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))  # NVRTC opens it by its bare name, which is found where it is loaded already
    library = ctypes.CDLL(path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


# One compile at a time uses precompiled headers, which halve its time: NVRTC keeps them in the process, and a second
# thread is better off compiling without than waiting.
_precompiled = ForkLock()


@functools.lru_cache(maxsize=1)
def precompiled_directory(process: int) -> Path:
    """A directory of a process's own, which that process removes at its end, and no child of it."""
    directory = Path(tempfile.mkdtemp(prefix="sgljit-pch-"))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def compile_kernel(
    nvrtc: Nvrtc, source: str, expression: str, options: Sequence[str], headers: str
) -> tuple[bytes, str]:
    """Compile ``source`` and instantiate the kernel that ``expression`` names. Thread-safe.

    Args:
        headers: what identifies the content of everything that ``source`` includes. NVRTC does not look whether a
            header has changed since it was precompiled, so each content has precompiled headers of its own.

    Returns:
        The cubin, and the kernel's symbol in it.

    Raises:
        RejectedSourceError: with NVRTC's log.
    """
    with _precompiling(headers) as precompile:
        return _Program(_library(nvrtc.library), source).compile(expression, (*options, *precompile))


def precompile_headers(nvrtc: Nvrtc, source: str, options: Sequence[str], headers: str) -> None:
    """What the first ``compile_kernel`` of these headers does beside compiling: load NVRTC and precompile them.

    Raises:
        RejectedSourceError: with NVRTC's log.
    """
    with _precompiling(headers) as precompile:
        _Program(_library(nvrtc.library), source).compile(None, (*options, *precompile))


@contextlib.contextmanager
def _precompiling(headers: str) -> Iterator[tuple[str, ...]]:
    """The options with which NVRTC takes or makes precompiled headers.

    None while another thread does, and none where there is no room for them: they only save time.
    """
    lock = _precompiled.here()
    if not lock.acquire(blocking=False):
        yield ()
        return
    try:
        try:
            directory = precompiled_directory(os.getpid()) / headers
            directory.mkdir(parents=True, exist_ok=True)
            options: tuple[str, ...] = ("-pch", f"-pch-dir={directory}")
        except OSError:
            options = ()
        yield options
    finally:
        lock.release()


class _Program:
    """One NVRTC program, for one compile."""

    def __init__(self, library: ctypes.CDLL, source: str) -> None:
        self.library = library
        self.handle = ctypes.c_void_p()
        self._check(
            library.nvrtcCreateProgram(ctypes.byref(self.handle), source.encode(), b"variant.cu", 0, None, None)
        )

    def compile(self, expression: str | None, options: Sequence[str]) -> tuple[bytes, str]:
        try:
            name = b"" if expression is None else expression.encode()
            if name:
                self._check(self.library.nvrtcAddNameExpression(self.handle, name))
            encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            status = self.library.nvrtcCompileProgram(self.handle, len(options), encoded)
            if status != 0:
                raise RejectedSourceError(self._log() or self._error(status))
            return self._cubin(), self._symbol(name) if name else ""
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(self.handle))

    def _symbol(self, name: bytes) -> str:
        symbol = ctypes.c_char_p()
        self._check(self.library.nvrtcGetLoweredName(self.handle, name, ctypes.byref(symbol)))
        assert symbol.value is not None
        return symbol.value.decode()

    def _cubin(self) -> bytes:
        size = ctypes.c_size_t()
        self._check(self.library.nvrtcGetCUBINSize(self.handle, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        self._check(self.library.nvrtcGetCUBIN(self.handle, cubin))
        return cubin.raw

    def _log(self) -> str:
        size = ctypes.c_size_t()
        self.library.nvrtcGetProgramLogSize(self.handle, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(size.value, 1))
        self.library.nvrtcGetProgramLog(self.handle, log)
        text = log.value.decode(errors="replace")
        # What it says of precompiled headers is no news of the source.
        lines = [line for line in text.splitlines() if not line.startswith('"variant.cu": ')]
        return "\n".join(lines).strip()

    def _error(self, status: int) -> str:
        return str(self.library.nvrtcGetErrorString(status).decode())

    def _check(self, status: int) -> None:
        if status != 0:
            raise RejectedSourceError(f"NVRTC: {self._error(status)}")
