"""How does a device file become a cubin, with no nvcc and no host compiler?

A thin binding of NVRTC, which PyTorch's CUDA wheels bring and cuda-pathfinder finds. It needs no GPU. Its path and
version are remembered, so that a warm start does not load 100 MB of compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sgljit_core.errors import ToolchainNotFoundError
from sgljit_core.machine import private
from sgljit_core.machine.forks import ForkLock

from .toolchain import remembered_search

REMEDY = 'Install NVIDIA\'s wheels of it: pip install "sgljit-core[nvrtc]".'
_RESOURCES = {
    "registers": r"Used (\d+) registers",
    "shared_bytes": r"(\d+) bytes smem",
    "spilled_bytes": r"(\d+) bytes spill stores",
}
_OTHER_MEMORY = r"(?![.:\w]*\.(?:param|shared|local|const)\b)"
_ACCESS = re.compile(rf"\b(?:ld|st|red|atom){_OTHER_MEMORY}\.[.:\w]*?(?:v([248])\.)?b?[bfsu](\d+)(?:x2)?\b")
_HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp", "cuda_fp8.h", "cuda_fp8.hpp")


class RejectedSourceError(Exception):
    """NVRTC's log for a source that does not compile; the caller adds the source's name."""


class Nvrtc(NamedTuple):
    """The paths of libnvrtc.so and of the directory of cuda_fp16.h, and their versions.

    NVRTC does not report its patch level. Its size, and the names and sizes of CUDA's headers, stand for it.
    """

    library: str
    version: str
    include: str
    headers: str


def find_nvrtc(needed_for: str) -> Nvrtc:
    """NVRTC and CUDA's headers, as cuda-pathfinder finds them.

    Raises ToolchainNotFoundError: one of the two is missing.
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
            remedy=REMEDY,
        )
    return found


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
    return json.dumps(Nvrtc(path, version, str(include), ", ".join(sizes))._asdict())


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))  # NVRTC opens it by its bare name, which works if it is loaded already
    library = ctypes.CDLL(path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


# Precompiled headers spare a compile a tenth of its time, and take a third of one to make: so the first goes without.
# NVRTC keeps them in the process, for one compile at a time. A second thread does not wait: it compiles without them.
_precompiled = ForkLock()
_asked: set[str] = set()  # the names of their files, from the first compile on
_sizes: dict[Path, int] = {}  # of files of precompiled headers: one that is cut off makes NVRTC 13.0 crash


def precompiled_directory() -> Path:
    """This process's directory of precompiled headers. Raises OSError."""
    directory = private.process_directory() / "precompiled"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def compile_kernel(
    nvrtc: Nvrtc, source: str, expressions: Sequence[str], options: Sequence[str], headers: str
) -> tuple[bytes, list[str], str]:
    """Compile ``source`` and instantiate the kernels and variables that ``expressions`` name. Thread-safe.

    The second call with the same source, options and ``headers`` precompiles the files that ``source`` includes; so
    does a call without expressions. ``headers`` is a key of their content, as NVRTC does not check whether one has
    changed since. Returns the cubin, the symbol of each expression in it, and the log with the PTX. Raises
    RejectedSourceError, with NVRTC's log.
    """
    library = _library(nvrtc.library)
    file = None
    name = hashlib.sha256("\0".join((source, headers, *options)).encode()).hexdigest()
    is_first = name not in _asked
    _asked.add(name)
    lock = _precompiled.here()
    if not (is_first and expressions) and lock.acquire(blocking=False):
        try:
            # Named, as with ``-pch`` NVRTC 13.0 looks for a file itself, and crashes if it cannot list the directory.
            file = precompiled_directory() / f"{name}.pch"
            use = "use" if _size(file) == _sizes.get(file, 0) > 0 else "create"
            made = _compile(library, source, expressions, (*options, f"-{use}-pch={file}"))
            _sizes[file] = _size(file)
            return made
        except (RejectedSourceError, OSError):  # is the source at fault, or the file?
            pass
        finally:
            lock.release()
    made = _compile(library, source, expressions, options)
    if file is not None:
        with contextlib.suppress(OSError):
            file.unlink()
    return made


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _compile(
    library: ctypes.CDLL, source: str, expressions: Sequence[str], options: Sequence[str]
) -> tuple[bytes, list[str], str]:
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status != 0:
            raise RejectedSourceError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")

    def get(what: str) -> bytes:
        size = ctypes.c_size_t()
        check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        check(getattr(library, f"nvrtcGet{what}")(program, content))
        return content.raw

    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"variant.cu", 0, None, None))
    try:
        for expression in expressions:
            check(library.nvrtcAddNameExpression(program, expression.encode()))
        # Without textures and CUDA's runtime, which few kernels name, the same code takes up to a tenth less time.
        for some in ((*options, "-minimal"), options):
            encoded = (ctypes.c_char_p * len(some))(*[option.encode() for option in some])
            if (status := library.nvrtcCompileProgram(program, len(some), encoded)) == 0:
                break
        lines = get("ProgramLog").rstrip(b"\0").decode(errors="replace").splitlines()
        # Lines about precompiled headers say nothing about the source.
        log = "\n".join(line for line in lines if not line.startswith('"variant.cu": ')).strip()
        if status != 0:
            raise RejectedSourceError(log or library.nvrtcGetErrorString(status).decode())
        symbols = []
        for expression in expressions:
            symbol = ctypes.c_char_p()
            check(library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(symbol)))
            symbols.append((symbol.value or b"").decode())
        return get("CUBIN"), symbols, log + get("PTX").rstrip(b"\0").decode(errors="replace")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def resources(log: str, symbol: str) -> dict[str, int]:
    """The resources of a kernel, from the log of ``-Xptxas=-v`` and the PTX; empty if the log does not have them.

    These are the registers of a thread, the bytes of static shared memory of a block, the bytes that a thread stores
    in memory for lack of registers, and the bytes of the narrowest access to global memory, 0 if there is none.
    """
    said = log.partition(f"Compiling entry function '{symbol}'")[2].partition("Compiling entry function")[0]
    found = {name: re.search(pattern, said) for name, pattern in _RESOURCES.items()}
    if found["registers"] is None:
        return {}
    widths = [int(count or 1) * int(bits) // 8 for count, bits in _ACCESS.findall(log)]
    told = {name: int(match[1]) if match else 0 for name, match in found.items()}
    return {**told, "access_bytes": min(widths, default=0)}
