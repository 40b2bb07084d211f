"""``sgljit clangd``: the ``.clangd`` file for an editor, because a JIT has no static compile_commands.json."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sgljit_core import paths
from sgljit_core.compilers import arch
from sgljit_core.compilers.toolchain import find_nvcc
from sgljit_core.errors import SgljitError, ToolchainNotFoundError
from sgljit_core.plugins import discovery
from sgljit_core.specs.build import Target

from .prepare import target_of


def write_clangd(
    cuda_target: Annotated[
        str | None,
        typer.Option("--cuda-arch", "--cuda-target", help="The architecture, such as 9.0; by default the device's."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing .clangd.")] = False,
) -> None:
    """Write .clangd for the current directory, so that clangd understands the kernels."""
    with target_of(cuda_target):
        target = arch.cuda_target()
    text = configuration(target)
    file = Path(".clangd")
    if file.exists() and not overwrite:
        typer.echo(f"{file.absolute()} exists and is kept; --overwrite replaces it with this text:", err=True)
        typer.echo(text, nl=False)
        raise typer.Exit(1)
    file.write_text(text)
    typer.echo(f"wrote {file.absolute()} for {target.name}")


def configuration(target: Target) -> str:
    """The text of a ``.clangd`` for kernels of ``target``, with every include path of a build.

    Include paths: the core headers, tvm-ffi with dlpack, the CUDA toolkit if there is one, and the csrc directory
    of each installed plugin. ``.cpp`` files are C++, everything else is CUDA, as in a build.
    """
    include = [f"-I{paths.core_include()}", f"-isystem{paths.tvm_ffi_include()}", *(f"-I{d}" for d in _sources())]
    gpu = ["-xcuda", f"--cuda-gpu-arch={target.name}", target.macro, "-Wno-unknown-cuda-version", "-nocudalib"]
    toolkit_flags = ["-nocudainc"]
    with contextlib.suppress(ToolchainNotFoundError):
        toolkit = find_nvcc("the editor's CUDA headers").path.parent.parent
        toolkit_flags = [f"--cuda-path={toolkit}", f"-isystem{toolkit / 'include'}"]
    last = f"-idirafter{Path(__file__).resolve().parent / 'clangd_include'}"
    fragments = (
        ("CompileFlags:\n  Compiler: clang++\n", ["-std=c++20", "-Wall", "-Wextra", *include]),
        (_only(r".*\.(cu|cuh|h)"), [*gpu, *toolkit_flags, last]),
        (_only(r".*\.(cpp|cc|cxx)"), ["-xc++"]),
    )
    # A JSON string is a YAML scalar too.
    return "---\n".join(
        f"{head}  Add:\n" + "".join(f"    - {json.dumps(flag)}\n" for flag in flags) for head, flags in fragments
    )


def _only(pattern: str) -> str:
    return f"If:\n  PathMatch: {json.dumps(pattern)}\nCompileFlags:\n"


def _sources() -> Iterator[Path]:
    """The csrc of every installed plugin, in the package of its entry point. Imports none of them."""
    for plugin in (plugin for claims in discovery.installed().values() for plugin in claims):
        with contextlib.suppress(SgljitError):  # ops[...] reports a broken installation
            directory = paths.package_directory(plugin.module.split(".")[0]) / "csrc"
            if directory.is_dir():
                yield directory
