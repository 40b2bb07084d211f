"""``load_jit``: C++ and CUDA sources become a loaded module, from the cache or compiled now."""

from __future__ import annotations

import contextlib
import os.path
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core import config, paths
from sgljit_core.builds import recording
from sgljit_core.builds.obtain import obtain
from sgljit_core.builds.request import Request
from sgljit_core.cache import keys
from sgljit_core.cache.keys import Location
from sgljit_core.compilers import arch, includes, toolchain
from sgljit_core.compilers.recipe import recipe
from sgljit_core.errors import InvalidBuildError, SourceNotFoundError
from sgljit_core.load import library
from sgljit_core.machine.forks import OncePerKey
from sgljit_core.plugins import hooks
from sgljit_core.specs.build import BuildSpec, Product

if TYPE_CHECKING:
    from tvm_ffi import Module


def load_jit(
    *args: str,
    cpp_files: Sequence[str | Path] | None = None,
    cuda_files: Sequence[str | Path] | None = None,
    cpp_sources: str | Sequence[str] | None = None,
    cuda_sources: str | Sequence[str] | None = None,
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
        cpp_files: C++ sources, compiled by the host compiler; relative to ``csrc``, or absolute.
        cuda_files: CUDA sources, compiled by nvcc or hipcc for ``cuda_target()``; relative to ``csrc``, or absolute.
        cpp_sources: C++ sources as text, compiled behind ``cpp_files``.
        cuda_sources: CUDA sources as text, compiled behind ``cuda_files``.
        cpp_wrappers: (export name, C++ symbol with template arguments) for symbols of the C++ sources.
        cuda_wrappers: the same for symbols of the CUDA sources.
        extra_cflags: more flags for the host compiler on ``cpp_files``.
        extra_cuda_cflags: more flags for nvcc or hipcc.
        extra_ldflags: more flags for the link.
        extra_include_paths: more include directories, searched after ``csrc`` and before the core headers.
        extra_dependencies: names of header libraries that installed plugins provide ("cutlass").
        build_directory: the root of the cache for this build, instead of the user's.
        header_only: the files are included in a generated source that exports the wrappers. False: each file is a
            translation unit of its own and exports with ``SGL_EXPORT``; there are no wrappers then.
        csrc: the directory of the sources. By default files are relative to the current directory, and ``csrc`` is
            the directory of the first one, or the current one if there is no file.
        family: the family that the module belongs to. ``FAMILY.load_jit`` passes both for its own sources.

    Returns:
        The module; ``module.name(...)`` calls an exported function. The same object for the same build.

    Raises:
        InvalidBuildError: the arguments do not describe a build.
        SourceNotFoundError: a source or a directory does not exist.
        ToolchainNotFoundError: the module must be compiled and a compiler is missing.
        CompileError: a compiler rejected the source.
        StorageError: neither the cache nor the directory for temporary files takes a build.
        ConfigError: there is no CUDA device and no architecture was named.
        CompileForbiddenError: the module must be compiled, and ``freeze()`` or ``SGLJIT_JIT`` forbids it.
        CaptureError: the module must be compiled, and a CUDA stream is capturing a graph.
        UntrustedCacheError: somebody else could have written the cache.
        SourceChangedError: sources were edited each time that they were compiled.
    """
    if family and csrc is None:
        raise InvalidBuildError(f"load_jit(family={family!r}) needs csrc; FAMILY.load_jit passes its own")
    directory, (cpp, cuda) = _place(csrc, (cpp_files or (), cuda_files or ()), is_plugin=bool(family))
    spec = BuildSpec(
        markers=tuple(map(str, args)),
        family=family,
        csrc=directory,
        target=arch.cuda_target() if cuda_files or cuda_sources else arch.CPU,
        cpp_files=cpp,
        cuda_files=cuda,
        cpp_sources=_texts(cpp_sources),
        cuda_sources=_texts(cuda_sources),
        cpp_wrappers=tuple(cpp_wrappers or ()),
        cuda_wrappers=tuple(cuda_wrappers or ()),
        cflags=tuple(extra_cflags or ()),
        cuda_cflags=tuple(extra_cuda_cflags or ()),
        ldflags=tuple(extra_ldflags or ()),
        include_paths=tuple(Path(path).resolve() for path in extra_include_paths or ()),
        dependencies=tuple(extra_dependencies or ()),
        header_only=header_only,
    )
    root = config.build_root(build_directory)
    if recording.active:
        recording.note(spec, root)
        return recording.StandIn()  # type: ignore[return-value]
    return load_module(spec, root)


def _place(
    csrc: str | Path | None, languages: Sequence[Sequence[str | Path]], *, is_plugin: bool
) -> tuple[Path, list[tuple[str, ...]]]:
    """The directory of the sources, and the files of each language: by their names in it, or else absolute."""
    first = next((Path(file) for files in languages for file in files), None)
    base = Path(csrc) if csrc is not None else Path()
    directory = base.resolve() if csrc is not None or first is None else first.parent.resolve()
    if csrc is not None:
        base = directory

    def named(file: str | Path) -> str:
        if is_plugin:
            return str(file)
        path = Path(os.path.abspath(base / file))  # noqa: PTH100 - without ".."; a link to a file keeps its name
        for place in (path, path.parent.resolve() / path.name):  # csrc has no links on its way
            if place.is_relative_to(directory):
                return place.relative_to(directory).as_posix()
        return str(path)

    return directory, [tuple(named(file) for file in files) for files in languages]


def _texts(sources: str | Sequence[str] | None) -> tuple[str, ...]:
    return (sources,) if isinstance(sources, str) else tuple(sources or ())


_modules: OncePerKey[tuple[Path, Location], Module] = OncePerKey()


def load_module(spec: BuildSpec, root: Path, beside: Callable[[], Callable[[], None] | None] = lambda: None) -> Module:
    """The module of a build, from the cache below ``root`` or compiled now.

    If compilers run, ``beside`` is called, and what it returns runs in a thread beside them.
    """
    return obtain(lambda: ModuleRequest(spec, root, beside), _modules)


class ModuleRequest(Request["Module"]):
    """A request for a shared library. For another machine it is linked against that machine's ``tvm_ffi``."""

    payload = "module.so"
    load = staticmethod(library.load_library)
    tvm_ffi: Path | None = None

    def __init__(self, spec: BuildSpec, root: Path, beside: Callable[[], Callable[[], None] | None] = lambda: None):
        self._beside = beside
        self._toolchain: toolchain.Toolchain | None = None
        self._recipe = got = recipe(spec, include_roots(spec))
        versions = {"tvm_ffi": library.tvm_ffi_version, "cpu": toolchain.processor}
        source = keys.source_ingredients(spec, got.generated, got.scan, got.steps, **versions)
        super().__init__(spec, root, source, got.scan)

    def find_tools(self, needed_for: str) -> Mapping[str, str]:
        cuda, rocm = bool(self.build.target.cuda_arch), self.build.target.is_rocm
        self._toolchain = found = toolchain.find_toolchain(cuda=cuda, rocm=rocm, needed_for=needed_for)
        return {kind: compiler.version for kind, compiler in found._asdict().items() if compiler is not None}

    def make(self, directory: Path) -> Product:
        from sgljit_core.compilers.native import compile_library  # a warm start runs no compiler

        assert self._toolchain is not None
        tvm_ffi = self.tvm_ffi or paths.tvm_ffi_library()
        return compile_library(self.named, self._toolchain, tvm_ffi, self._recipe, directory, self._use_the_time)

    def _use_the_time(self) -> None:
        """Start what can be done while compilers run."""
        # Ctrl-C in the middle of an import would leave half a module; a thread does not get it.
        with contextlib.suppress(Exception):  # such as at the interpreter's end, which starts no thread any more
            threading.Thread(target=self._prepare, args=(self._beside(),), name="sgljit-meanwhile").start()

    def _prepare(self, beside: Callable[[], None] | None) -> None:
        # An error here comes again, with its full text, when the result is needed.
        with contextlib.suppress(Exception):
            library.tvm_ffi_version()  # imports it, which takes a while, and the library cannot be loaded without
            if beside is not None:
                beside()


def include_roots(spec: BuildSpec) -> list[includes.Root]:
    """The include directories in the order they are searched. A label with a colon is no family's name."""
    roots = [includes.Root(spec.family or "csrc", spec.csrc)]
    roots += [includes.Root(f"include:{i}", path) for i, path in enumerate(spec.include_paths)]
    for name in spec.dependencies:
        roots += [includes.Root(f"{name}:{i}", path) for i, path in enumerate(hooks.header_directories(name))]
    for root in roots:
        if not root.directory.is_dir():
            carries = "; the installed package does not carry it: name it as package data (setuptools: package-data)"
            hint = carries if spec.family and root is roots[0] else ""
            archive = next((str(parent) for parent in root.directory.parents if parent.is_file()), None)
            if archive is not None:
                hint = f"; {archive} is a file, and compilers read directories: unpack it, or install it with pip"
            raise SourceNotFoundError(f"{spec.label}: directory {root.directory} does not exist{hint}")
    return [*roots, includes.Root(keys.CORE, paths.core_include(), own=False)]
