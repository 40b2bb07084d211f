"""``sgljit clangd``: the ``.clangd`` file for an editor, as a JIT has no static compile_commands.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sgljit_core import paths
from sgljit_core.compilers import arch
from sgljit_core.compilers.toolchain import find_nvcc
from sgljit_core.errors import ConfigError, SgljitError, ToolchainNotFoundError
from sgljit_core.families import discovery
from sgljit_core.model.build import Target


def write_clangd(
    cuda_target: Annotated[
        str | None,
        typer.Option("--cuda-arch", "--cuda-target", help="The architecture, such as 9.0; by default the device's."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing .clangd.")] = False,
) -> None:
    """Write .clangd for the current directory, so that clangd understands the kernels."""
    target = arch.parse_cuda_target(cuda_target, "--cuda-target") if cuda_target else _device_target()
    text = configuration(target)
    file = Path(".clangd")
    if file.exists() and not overwrite:
        typer.echo(f"{file.absolute()} exists and is kept; --overwrite replaces it. It would read:", err=True)
        typer.echo(text, nl=False)
        raise typer.Exit(1)
    file.write_text(text)
    typer.echo(f"wrote {file.absolute()} for {target.name}")


def _device_target() -> Target:
    try:
        return arch.cuda_target()
    except ConfigError as error:
        raise ConfigError("no CUDA device to write the configuration for; name one: --cuda-target 9.0") from error


def configuration(target: Target) -> str:
    """The text of a ``.clangd`` for kernels of ``target``, with every include path that a build has.

    Include paths: the core headers, tvm-ffi with dlpack, the CUDA toolkit if there is one, and the csrc directory
    of each installed plugin. ``.cpp`` files are C++, everything else is CUDA, as in a build.
    """
    assert target.cuda_arch is not None
    major, minor = target.cuda_arch
    common = [
        "-std=c++20",
        "-Wall",
        "-Wextra",
        f"-I{paths.core_include()}",
        f"-isystem{paths.tvm_ffi_include()}",
        *(f"-I{directory}" for directory in _sources()),
    ]
    cuda = [
        "-xcuda",
        f"--cuda-gpu-arch={target.name}",
        f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}",
        "-Wno-unknown-cuda-version",
        "-nocudalib",
        *_toolkit_flags(),
        f"-idirafter{Path(__file__).resolve().parent / 'clangd_include'}",
    ]
    return "---\n".join(
        (
            _fragment(common, compiler="clang++"),
            _fragment(cuda, only=r".*\.(cu|cuh|h)"),
            _fragment(["-xc++"], only=r".*\.(cpp|cc|cxx)"),
        )
    )


def _fragment(flags: Sequence[str], *, compiler: str = "", only: str = "") -> str:
    """One document of the file. A JSON string is a YAML scalar too."""
    condition = f"If:\n  PathMatch: {json.dumps(only)}\n" if only else ""
    driver = f"  Compiler: {compiler}\n" if compiler else ""
    listed = "".join(f"    - {json.dumps(flag)}\n" for flag in flags)
    return f"{condition}CompileFlags:\n{driver}  Add:\n{listed}"


def _toolkit_flags() -> list[str]:
    try:
        toolkit = find_nvcc("the editor's CUDA headers").path.parent.parent
    except ToolchainNotFoundError:
        return ["-nocudainc"]
    return [f"--cuda-path={toolkit}", f"-isystem{toolkit / 'include'}"]


def _sources() -> list[Path]:
    """Csrc of every installed plugin, found without importing one: the package of its entry point."""
    found = [_csrc(plugin) for claims in discovery.installed().values() for plugin in claims]
    return [directory for directory in found if directory is not None and directory.is_dir()]


def _csrc(plugin: discovery.Plugin) -> Path | None:
    try:
        return paths.package_directory(plugin.module.split(".")[0]) / "csrc"
    except SgljitError:
        return None  # a broken installation has no sources to offer; ops[...] reports it
