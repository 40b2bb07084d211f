"""What does an editor need to know? The ``.clangd`` file: a JIT has no static compile_commands.json."""

from __future__ import annotations

from pathlib import Path

from . import paths, plugins
from .errors import SgljitError, ToolchainNotFoundError
from .spec import Target
from .toolchain import find_nvcc

__all__ = ["configuration"]


def configuration(target: Target) -> str:
    """The text of a ``.clangd`` for CUDA kernels of ``target``, with every include path that a build has.

    Include paths: the core headers, tvm-ffi with dlpack, the CUDA toolkit if there is one, and the csrc directory
    of each installed plugin.
    """
    assert target.cuda_arch is not None
    major, minor = target.cuda_arch
    flags = [
        "-xcuda",
        f"--cuda-gpu-arch={target.name}",
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Wno-unknown-cuda-version",
        f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}",
        f"-I{paths.core_include()}",
        f"-isystem{paths.tvm_ffi_include()}",
        *_cuda_flags(),
        *(f"-I{directory}" for directory in _sources()),
    ]
    lines = "".join(f"    - {_quoted(flag)}\n" for flag in flags)
    return f"CompileFlags:\n  Compiler: clang++\n  Add:\n{lines}"


def _cuda_flags() -> list[str]:
    try:
        toolkit = find_nvcc("the editor's CUDA headers").path.parent.parent
    except ToolchainNotFoundError:
        return []
    return [f"--cuda-path={toolkit}", f"-isystem{toolkit / 'include'}"]


def _sources() -> list[Path]:
    """Csrc of every installed plugin, found without importing one: the package of its entry point."""
    found = [_csrc(plugin) for claims in plugins.installed().values() for plugin in claims]
    return [directory for directory in found if directory is not None and directory.is_dir()]


def _csrc(plugin: plugins.Plugin) -> Path | None:
    try:
        return paths.package_directory(plugin.module.split(".")[0]) / "csrc"
    except SgljitError:
        return None  # a broken installation has no sources to offer; ops[...] reports it


def _quoted(text: str) -> str:
    """A double-quoted YAML scalar."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
