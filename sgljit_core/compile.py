"""How is a build turned into a shared library?

The compilers run directly, translation units side by side, in an environment that holds nothing but what is set
here: variables such as ``CPATH`` or ``NVCC_APPEND_FLAGS`` change what a compiler makes and are in no key.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .errors import CompileError
from .includes import Root
from .paths import tvm_ffi_include, tvm_ffi_library
from .spec import BuildSpec, Target
from .toolchain import Toolchain

__all__ = ["compile_library", "flags", "generated_sources"]

_COMMON = ("-std=c++20", "-O3")
# Without -fno-gnu-unique the statics of templates and inline functions are shared by every library of the process,
# so that a second module's one-time initialiser is skipped.
_HOST = ("-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")
_ERROR = re.compile(r"\berror\b|fatal|undefined reference|undefined symbol", re.IGNORECASE)


def generated_sources(spec: BuildSpec) -> dict[str, str]:
    """The generated sources by file name: they include the author's files and export the wrappers."""
    if not spec.header_only:
        return {}
    sources = {
        "generated.cpp": _generate(spec.cpp_files, spec.cpp_wrappers),
        "generated.cu": _generate(spec.cuda_files, spec.cuda_wrappers),
    }
    return {name: text for name, text in sources.items() if text}


def _generate(files: Sequence[str], wrappers: Sequence[tuple[str, str]]) -> str:
    if not files:
        return ""
    lines = [f'#include "{file}"' for file in files]
    # The export header comes last, so that it can see which of tvm-ffi's own headers the files include.
    lines += ["#include <sgl_kernel/export.h>"]
    lines += [f"SGL_EXPORT({export}, ({symbol}))" for export, symbol in wrappers]
    return "\n".join(lines) + "\n"


def flags(spec: BuildSpec, roots: Sequence[Root]) -> dict[str, tuple[str, ...]]:
    """The flags of each step, with directories written as the labels of ``roots``: what goes into the key."""
    includes = tuple(f"-I{root.label}" for root in roots)
    steps = {"cxx": (*_COMMON, *_HOST, *spec.cflags, *includes), "link": spec.ldflags}
    if spec.target.is_cuda:
        steps["nvcc"] = (*_nvcc_flags(spec.target), *spec.cuda_cflags, *includes)
    return steps


def _nvcc_flags(target: Target) -> tuple[str, ...]:
    assert target.cuda_arch is not None
    major, minor = target.cuda_arch
    compute = target.name.replace("sm_", "compute_")
    return (
        *_COMMON,
        "--expt-relaxed-constexpr",
        f"-gencode=arch={compute},code={target.name}",
        f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}",
        *(f"-Xcompiler={flag}" for flag in _HOST),
    )


def compile_library(
    spec: BuildSpec,
    toolchain: Toolchain,
    generated: Mapping[str, str],
    roots: Sequence[Root],
    directory: Path,
) -> tuple[Path, str]:
    """Compile and link in ``directory``.

    Returns:
        The library and the commands that made it.

    Raises:
        CompileError: a compiler failed; ``directory`` is kept.
    """
    for name, text in generated.items():
        (directory / name).write_text(text)
    units = [directory / name for name in generated] or [spec.csrc / f for f in (*spec.cpp_files, *spec.cuda_files)]
    objects = [directory / f"{index}_{unit.name}.o" for index, unit in enumerate(units)]
    is_cuda = [unit.suffix in (".cu", ".cuh") for unit in units]
    commands = [
        _compile_command(spec, toolchain, unit, output, roots, cuda)
        for unit, output, cuda in zip(units, objects, is_cuda, strict=True)
    ]
    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(lambda command: _run(spec, command, toolchain, directory), commands))
    library = directory / "module.so"
    link = _link_command(spec, toolchain, objects, library)
    _run(spec, link, toolchain, directory)
    return library, "\n".join(shlex.join(command) for command in (*commands, link))


def _compile_command(
    spec: BuildSpec, toolchain: Toolchain, unit: Path, output: Path, roots: Sequence[Root], cuda: bool
) -> list[str]:
    includes = [f"-I{root.directory}" for root in roots]
    includes += ["-isystem", str(tvm_ffi_include())]
    # Messages of a kernel name its files by label, so that an artifact is the same wherever the tree lies.
    maps = [f"-fmacro-prefix-map={root.directory}/={_shown(root)}" for root in roots]
    if not cuda:
        own = [*_COMMON, *_HOST, *spec.cflags, *maps, *includes]
        return [str(toolchain.cxx.path), "-c", str(unit), "-o", str(output), *own]
    assert toolchain.nvcc is not None
    own = [*_nvcc_flags(spec.target), *spec.cuda_cflags, *(f"-Xcompiler={flag}" for flag in maps), *includes]
    nvcc = [str(toolchain.nvcc.path), f"-ccbin={toolchain.cxx.path}", "-x", "cu"]
    return [*nvcc, "-c", str(unit), "-o", str(output), *own]


def _shown(root: Root) -> str:
    return f"{root.label}/" if root.own else ""


def _link_command(spec: BuildSpec, toolchain: Toolchain, objects: Sequence[Path], library: Path) -> list[str]:
    command = [str(toolchain.cxx.path), "-shared", "-o", str(library), *map(str, objects), str(tvm_ffi_library())]
    if spec.target.is_cuda:
        command += [str(toolchain.cudart), "-ldl", "-lrt", "-lpthread"]
    return [*command, *spec.ldflags]


def _run(spec: BuildSpec, command: Sequence[str], toolchain: Toolchain, directory: Path) -> None:
    result = subprocess.run(
        command,
        cwd=directory,
        env=_environment(toolchain, directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode != 0:
        log = result.stdout.strip() or f"no output; exit status {result.returncode}"
        lines = log.splitlines()
        first = next((line.strip() for line in lines if _ERROR.search(line)), lines[-1].strip())
        raise CompileError(
            build=spec.label, first_error=first, command=shlex.join(command), log=log, build_directory=directory
        )


def _environment(toolchain: Toolchain, directory: Path) -> dict[str, str]:
    """A compiler finds its own programs beside itself, and the assembler and linker in the system's directories."""
    programs = [toolchain.cxx.path.parent] + ([toolchain.nvcc.path.parent] if toolchain.nvcc else [])
    system = ["/usr/local/bin", "/usr/bin", "/bin"] if sys.platform != "win32" else []
    return {"PATH": os.pathsep.join([*map(str, programs), *system]), "TMPDIR": str(directory), "LC_ALL": "C"}
