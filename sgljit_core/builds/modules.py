"""``load_jit``: find an artifact or build it, and load it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core import paths
from sgljit_core.cache import keys
from sgljit_core.cache.store import Slot
from sgljit_core.compilers import arch, includes, toolchain
from sgljit_core.compilers.native import compile_library, flags, generated_sources
from sgljit_core.errors import InvalidBuildError, SourceChangedError, SourceNotFoundError
from sgljit_core.families import discovery
from sgljit_core.load import library
from sgljit_core.machine.forks import KeyedLocks
from sgljit_core.model.build import BuildSpec

from . import obtain, policy
from .obtain import Product, Recipe

if TYPE_CHECKING:
    from tvm_ffi import Module

__all__ = ["ATTEMPTS", "include_roots", "load_jit", "meanwhile", "with_plugin"]


def load_jit(
    *args: str,
    cpp_files: Sequence[str] | None = None,
    cuda_files: Sequence[str] | None = None,
    cpp_wrappers: Sequence[tuple[str, str]] | None = None,
    cuda_wrappers: Sequence[tuple[str, str]] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | Path] | None = None,
    extra_dependencies: Sequence[str] | None = None,
    build_directory: str | Path | None = None,
    header_only: bool = True,
    host_part: bool = False,
    csrc: str | Path | None = None,
    family: str = "",
) -> Module:
    """Compile C++ and CUDA sources on first use and load them as a module.

    >>> module = load_jit("scale", "2", cpp_files=["scale.cpp"], cpp_wrappers=[("scale", "scale<2>")], csrc="/src")
    >>> module.scale(tensor)

    Args:
        args: the name of the module, then its template arguments. They name the build in messages and in the
            cache; two builds that differ in anything else never share an artifact.
        cpp_files: C++ sources, compiled by the host compiler; relative to ``csrc``.
        cuda_files: CUDA sources, compiled by nvcc for ``arch.cuda_target()``; relative to ``csrc``.
        cpp_wrappers: (export name, C++ symbol with template arguments) for symbols of ``cpp_files``.
        cuda_wrappers: the same for symbols of ``cuda_files``.
        extra_cflags: more flags for the host compiler on ``cpp_files``.
        extra_cuda_cflags: more flags for nvcc.
        extra_ldflags: more flags for the link.
        extra_include_paths: more include directories, searched after ``csrc`` and before the core headers.
        extra_dependencies: names of header libraries that installed plugins provide ("cutlass").
        build_directory: the root of the cache for this build, instead of the user's.
        header_only: the files are included in a generated source that exports the wrappers. False: each file is a
            translation unit of its own and exports with ``SGL_EXPORT``; there are no wrappers then.
        host_part: the files are the host part of a family; ``FAMILY.load_host`` says so.
        csrc: the directory of the sources.
        family: the family that the module belongs to. ``FAMILY.load_jit`` passes both for its own sources.

    Returns:
        The module; ``module.name(...)`` calls an exported function. The same object for the same build.

    Raises:
        InvalidBuildError: the arguments do not describe a build.
        SourceNotFoundError: a source or a directory does not exist.
        ToolchainNotFoundError: the module must be compiled and a compiler is missing.
        CompileError: a compiler rejected the source.
        ConfigError: there is no CUDA device and no architecture was named.
        CompileForbiddenError: the module must be compiled, and ``freeze()`` or ``SGLJIT_JIT`` forbids it.
        CaptureError: the module must be compiled, and a CUDA stream is capturing a graph.
        UntrustedCacheError: somebody else could have written the cache.
        SourceChangedError: sources were edited each time that they were compiled.
    """
    if csrc is None:
        raise InvalidBuildError("load_jit needs csrc, the directory of the sources; FAMILY.load_jit passes its own")
    spec = BuildSpec(
        markers=tuple(map(str, args)),
        family=family,
        csrc=Path(csrc).resolve(),
        target=arch.cuda_target() if cuda_files else arch.cpu_target(),
        cpp_files=tuple(cpp_files or ()),
        cuda_files=tuple(cuda_files or ()),
        cpp_wrappers=tuple(cpp_wrappers or ()),
        cuda_wrappers=tuple(cuda_wrappers or ()),
        cflags=tuple(extra_cflags or ()),
        cuda_cflags=tuple(extra_cuda_cflags or ()),
        ldflags=tuple(extra_ldflags or ()),
        include_paths=tuple(Path(path).resolve() for path in extra_include_paths or ()),
        dependencies=tuple(extra_dependencies or ()),
        header_only=header_only,
        host_part=host_part,
        carried=paths.carried_artifacts(Path(csrc)) if family else None,
    )
    root = paths.cache_root() if build_directory is None else Path(build_directory).absolute()
    return _module(spec, root)


# What to do beside the compilers, in a thread of its own, when a module of this context must be compiled.
meanwhile: ContextVar[Callable[[], None] | None] = ContextVar("sgljit_meanwhile", default=None)

_modules: dict[tuple[str, Slot], Module] = {}
_locks = KeyedLocks()
ATTEMPTS = 5


def _module(spec: BuildSpec, root: Path) -> Module:
    """The module of a build, from the cache below ``root`` or compiled now."""
    for attempt in range(ATTEMPTS):
        recipe = _recipe(spec)
        identity = (str(root), recipe.slot)
        if policy.is_explaining():
            return obtain.obtain(recipe, root)
        with _locks[identity]:
            try:
                if identity not in _modules:
                    _modules[identity] = obtain.obtain(recipe, root)
                return _modules[identity]
            except SourceChangedError:
                if attempt == ATTEMPTS - 1:
                    raise
    raise AssertionError  # pragma: no cover - the last attempt returns or raises


def _recipe(spec: BuildSpec) -> Recipe[Module]:
    """How a module is identified, compiled and loaded."""
    roots = include_roots(spec)
    generated = generated_sources(spec)
    scan = includes.scan((*spec.cpp_files, *spec.cuda_files), roots, "".join(generated.values()))
    source = keys.source_ingredients(
        spec,
        generated,
        scan,
        flags(spec, roots),
        tvm_ffi=library.tvm_ffi_version() if scan.uses_tvm_cpp else "",
        cpu=toolchain.processor(),
    )

    def tools(needed_for: str) -> toolchain.Toolchain:
        return toolchain.find_toolchain(cuda=spec.target.is_cuda, needed_for=needed_for)

    def make(build: BuildSpec, directory: Path) -> Product:
        beside = meanwhile.get()

        def use_the_time() -> None:
            # Ctrl-C in the middle of an import would leave half a module; a thread does not get it.
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no thread any more
                threading.Thread(target=prepare, name="sgljit-meanwhile").start()

        def prepare() -> None:
            # What goes wrong here will be told when it is needed.
            with contextlib.suppress(Exception):
                library.tvm_ffi_version()  # imports it, which takes a while, and the library cannot be loaded without
                if beside is not None:
                    beside()

        made = compile_library(build, tools(build.label), generated, roots, scan.stamps, directory, use_the_time)
        return Product(made.library, made.command, made.observed)

    return Recipe(
        build=spec,
        source=source,
        payload="module.so",
        named=lambda: with_plugin(spec),
        toolchain=lambda needed_for: keys.toolchain_ingredients(tools(needed_for)),
        make=make,
        is_current=scan.is_current,
        load=lambda payload: library.load_library(payload, spec.module),
    )


def with_plugin(spec: BuildSpec) -> BuildSpec:
    """A build with the name and version of its plugin. Reading them takes longer than a hit, so not before a miss."""
    plugin = discovery.plugin_of(spec.family) if spec.family else None
    return dataclasses.replace(spec, plugin=str(plugin)) if plugin else spec


def include_roots(spec: BuildSpec) -> list[includes.Root]:
    """The include directories in the order they are searched. A label with a colon is no family's name."""
    roots = [includes.Root(spec.family or "csrc", spec.csrc)]
    roots += [includes.Root(f"include:{i}", path) for i, path in enumerate(spec.include_paths)]
    for name in spec.dependencies:
        roots += [includes.Root(f"{name}:{i}", path) for i, path in enumerate(discovery.header_dependency(name))]
    for root in roots:
        if not root.directory.is_dir():
            carries = "; the installed package does not carry it: name it as package data (setuptools: package-data)"
            hint = carries if spec.family and root is roots[0] else ""
            raise SourceNotFoundError(f"{spec.label}: directory {root.directory} does not exist{hint}")
    return [*roots, includes.Root("core:", paths.core_include(), own=False)]
