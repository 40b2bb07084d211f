"""How the header tests build: modules through load_jit, and single files by calling a compiler themselves."""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kit import compilers_for_cuda

from sgljit_core import errors, load_jit, paths
from sgljit_core.compilers import toolchain

INCLUDE = paths.core_include()
ROOT = INCLUDE / "sgl_kernel"
ROCM_HEADERS = ["sgl_kernel/impl/hip.cuh"]  # for hipcc alone
HEADERS = sorted(
    {str(path.relative_to(INCLUDE)) for path in ROOT.rglob("*") if path.suffix in (".h", ".cuh")} - {*ROCM_HEADERS}
)
# For kernels that are written to SGLang's headers, under nvcc: they bring in what those expect, the host side too.
FORWARDED = ["sgl_kernel/bits.h", "sgl_kernel/fp8_utils.cuh", "sgl_kernel/mbarrier.cuh"]
LIGHT_PORTS = ["sgl_kernel/impl/norm.cuh", "sgl_kernel/tile.cuh"]  # also lead to compat/, and NVRTC takes them
PORT_HEADERS = [name for name in HEADERS if name.startswith("sgl_kernel/compat/") or name in FORWARDED]
HOST_HEADERS = [name for name in HEADERS if name.endswith(".h")]
# What launches or queries is host code; the rest is device code, and NVRTC must take it.
HOST_CUDA_HEADERS = ["sgl_kernel/launch.cuh", "sgl_kernel/runtime.cuh", "sgl_kernel/utils.cuh"]
DEVICE_HEADERS = [name for name in HEADERS if name.endswith(".cuh") and name not in (*HOST_CUDA_HEADERS, *PORT_HEADERS)]

WARNINGS = ["-Wall", "-Wextra", "-Werror"]


CSRC = Path(__file__).parent / "csrc"


def load(name: str, *, strict: bool = True) -> Any:
    """The module of a source in csrc, which exports by itself; ``strict`` makes warnings errors."""
    cuda = name.endswith(".cu")
    flags = ["-Werror=all-warnings", *(f"-Xcompiler={flag}" for flag in WARNINGS)] if cuda else WARNINGS
    keywords: dict[str, Any] = {"cuda_files" if cuda else "cpp_files": [name]}
    if strict:
        keywords["extra_cuda_cflags" if cuda else "extra_cflags"] = flags
    return load_jit(Path(name).stem, csrc=CSRC, header_only=False, **keywords)


def include_flags() -> list[str]:
    return [f"-I{INCLUDE}", "-isystem", str(paths.tvm_ffi_include())]


@cache
def find(cuda: bool = False) -> toolchain.Toolchain:
    """The compilers, or a skip with the reason."""
    if cuda:
        return compilers_for_cuda()
    try:
        return toolchain.find_toolchain(cuda=False, needed_for="the header tests")
    except errors.ToolchainNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])


def host_compiler(name: str) -> str:
    if name == "g++":
        return str(find().cxx.path)
    path = next((p for p in map(shutil.which, ("clang++", *(f"clang++-{v}" for v in range(30, 13, -1)))) if p), None)
    if path is None:
        pytest.skip("there is no clang++")
    return path


def compile_host(source: str, directory: Path, compiler: str = "g++", *flags: str) -> subprocess.CompletedProcess[str]:
    file = directory / "unit.cpp"
    file.write_text(source)
    command = [host_compiler(compiler), "-std=c++20", "-fsyntax-only", *WARNINGS, *include_flags(), *flags, str(file)]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory)


def nvcc_command(arch: str = "90a") -> list[str]:
    tools = find(cuda=True)
    assert tools.nvcc is not None
    number = "".join(filter(str.isdigit, arch))
    return [
        str(tools.nvcc.path),
        f"-ccbin={tools.cxx.path}",
        "-std=c++20",
        "--expt-relaxed-constexpr",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        f"-DSGL_CUDA_ARCH={number}0",
        "-Werror=all-warnings",
        *(f"-Xcompiler={flag}" for flag in WARNINGS),
        *include_flags(),
    ]


def compile_cuda(source: str, directory: Path, *flags: str, arch: str = "90a") -> subprocess.CompletedProcess[str]:
    file = directory / "unit.cu"
    file.write_text(source)
    command = [*nvcc_command(arch), *flags, "-c", str(file), "-o", str(directory / "unit.o")]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory)


@cache
def _nvrtc() -> ctypes.CDLL:
    # nvidia/cu13/lib in the wheels for CUDA 13, nvidia/cuda_nvrtc/lib in those before; then the system's
    for library in [path for entry in sys.path for path in Path(entry).glob("nvidia/*/lib/libnvrtc.so.1*")]:
        for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))  # NVRTC asks for it by name, and does not look beside itself
        return ctypes.CDLL(str(library))
    name = ctypes.util.find_library("nvrtc")
    if name is None:
        pytest.skip("there is no NVRTC; pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(name)


@cache
def _cuda_include() -> Path:
    """The directory of cuda_fp16.h, in NVIDIA's wheels or beside nvcc."""
    candidates = [path.parent for entry in sys.path for path in Path(entry).glob("nvidia/*/include/cuda_fp16.h")]
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        toolkit = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True).stderr
        candidates += [
            Path(line.removeprefix("#$ TOP=").strip()) / "include"
            for line in toolkit.splitlines()
            if line.startswith("#$ TOP=")
        ]
    for directory in [*candidates, Path("/usr/local/cuda/include")]:
        if (directory / "cuda_fp16.h").is_file():
            return directory
    pytest.skip("there is no cuda_fp16.h; pip install nvidia-cuda-runtime")


def compile_nvrtc(source: str, arch: str = "90a", *flags: str) -> str:
    """Compile device code; the log is returned, empty on success without warnings."""
    nvrtc = _nvrtc()
    number = "".join(filter(str.isdigit, arch))
    options = [
        "--std=c++20",
        f"--gpu-architecture=sm_{arch}",
        f"-DSGL_CUDA_ARCH={number}0",
        f"-I{INCLUDE}",
        f"-I{_cuda_include()}",
        *flags,
    ]
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"unit.cu", 0, None, None) == 0
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    text = log.value.decode().strip()
    return text or ("" if status == 0 else f"NVRTC status {status}")
