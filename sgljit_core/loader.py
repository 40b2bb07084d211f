"""``load_jit``: find an artifact or build it, and load it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import arch, cache, errors, includes, keys, paths, plugins, toolchain
from .compile import compile_library, flags, generated_sources
from .errors import InvalidBuildError, SourceNotFoundError, ToolchainNotFoundError
from .spec import BuildSpec

if TYPE_CHECKING:
    from tvm_ffi import Module

__all__ = ["load_jit"]

_log = logging.getLogger("sgljit")


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
    """
    if csrc is None:
        raise InvalidBuildError("load_jit needs csrc, the directory of the sources; FAMILY.load_jit passes its own")
    plugin = plugins.plugin_of(family) if family else None
    spec = BuildSpec(
        markers=tuple(map(str, args)),
        family=family,
        plugin=str(plugin) if plugin else "",
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
    )
    return _module(spec, paths.cache_root() if build_directory is None else Path(build_directory).resolve())


_modules: dict[tuple[str, ...], Module] = {}
_locks: dict[tuple[str, ...], threading.Lock] = {}
_guard = threading.Lock()


def _module(spec: BuildSpec, root: Path) -> Module:
    """The module of a build, from the cache below ``root`` or compiled now."""
    roots = _roots(spec)
    generated = generated_sources(spec)
    scan = includes.scan((*spec.cpp_files, *spec.cuda_files), roots, "".join(generated.values()))
    source = keys.source_ingredients(spec, generated, scan, flags(spec, roots), _tvm_ffi_version())
    slot = cache.Slot(root, spec.target.name, spec.family, spec.module, keys.key(source))
    identity = (str(slot.root), slot.target, slot.family, slot.module, slot.source_key)
    with _guard:
        lock = _locks.setdefault(identity, threading.Lock())
    with lock:
        if identity not in _modules:
            _modules[identity] = _load(_find_or_build(spec, roots, generated, source, slot).library)
        return _modules[identity]


def _roots(spec: BuildSpec) -> list[includes.Root]:
    """The include directories in the order they are searched."""
    roots = [includes.Root(spec.family or "csrc", spec.csrc)]
    roots += [includes.Root(f"include{i}", path) for i, path in enumerate(spec.include_paths)]
    for name in spec.dependencies:
        roots += [includes.Root(f"{name}{i}", path) for i, path in enumerate(plugins.header_dependency(name))]
    for root in roots:
        if not root.directory.is_dir():
            raise SourceNotFoundError(f"{spec.label}: directory {root.directory} does not exist")
    return [*roots, includes.Root("core", paths.core_include(), own=False)]


def _find_or_build(
    spec: BuildSpec,
    roots: Sequence[includes.Root],
    generated: dict[str, str],
    source: dict[str, str],
    slot: cache.Slot,
) -> cache.Artifact:
    try:
        tools = toolchain.find_toolchain(cuda=spec.target.is_cuda, needed_for=spec.label)
    except ToolchainNotFoundError:
        artifact = cache.find(slot, None)
        if artifact is None:
            raise
        return artifact
    made_with = keys.toolchain_ingredients(tools)
    toolchain_key = keys.key(made_with)
    artifact = cache.find(slot, toolchain_key)
    if artifact is not None:
        return artifact
    start = time.perf_counter()
    staging = cache.staging_directory(slot.root, spec.module)
    with _announced(spec):
        library, command = compile_library(spec, tools, generated, roots, staging)
    seconds = time.perf_counter() - start
    return cache.publish(
        library,
        slot,
        toolchain_key,
        build=spec.label,
        command=command,
        seconds=seconds,
        source=source,
        toolchain=made_with,
    )


@contextmanager
def _announced(spec: BuildSpec) -> Iterator[None]:
    """Tell plugins and the user that a compiler runs: a silent compile looks like a hang."""
    hooks = plugins.hooks()
    hooks.sgljit_build_started(build=spec)
    start = time.perf_counter()
    error: Exception | None = None
    try:
        if sys.stderr.isatty():
            from rich.console import Console

            with Console(stderr=True).status(f"compiling {spec.label}"):
                yield
        else:
            _log.info("compiling %s", spec.label)
            yield
    except Exception as raised:
        error = raised
        raise
    finally:
        seconds = time.perf_counter() - start
        _log.info("%s %s in %.2f s", "failed" if error else "compiled", spec.label, seconds)
        hooks.sgljit_build_finished(build=spec, seconds=seconds, error=error)


def _tvm_ffi() -> Any:
    """tvm-ffi, which knows our exceptions from the first import on."""
    import tvm_ffi

    if not _registered:
        tvm_ffi.register_error("TensorMatchError", errors.TensorMatchError)
        _registered.append(True)
    return tvm_ffi


_registered: list[bool] = []


def _tvm_ffi_version() -> str:
    return str(_tvm_ffi().__version__)


def _load(library: Path) -> Module:
    module: Module = _tvm_ffi().load_module(str(library))
    return module
