"""What are a target and a build? Frozen data that checks itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sgljit_core.errors import InvalidBuildError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")  # a directory is named after it
_FILE = re.compile(r'[^"\\\x00-\x1f]+')  # fits into an #include line

# Flags that make a build depend on inputs outside its key, each with the reason. A flag that is passed through to
# another program (-Wl,... and -Xcompiler=...) is checked as if it stood alone.
_REFUSED = (
    (r"@|-optf|--options-file", "a response file is not part of the key; pass its flags themselves"),
    (r"--?(f(pass-)?plugin|iplugindir|plugin|load)\b", "code loaded into a compiler is not part of the key"),
    (r"--?(wrapper|run\b|ld-path)", "it runs a program that is not part of the key"),
    (r"--?specs\b|-B(?!symbolic|static|dynamic|group)", "it changes which programs the compiler runs, outside the key"),
    (r"-ccbin|--compiler-bindir", "the host compiler is chosen with SGLJIT_CXX, which the key covers"),
)
_OUTPUT = r"-(o|c|E|S|M|MD|MM|MMD|MF|MT|MQ)$|-(MF|MT|MQ)"
_NESTED = r"(?s:(?:-W[lpa],|--?X[\w-]+=|--[\w-]*options=)(.*))"


class Target(NamedTuple):
    """The architecture that an artifact is compiled for: "sm_90a", which is CUDA's (9, 0), "gfx90a" or "cpu-x86_64"."""

    name: str
    cuda_arch: tuple[int, int] | None = None
    is_rocm: bool = False

    @property
    def macro(self) -> str:
        """The flag by which CUDA code knows its architecture."""
        major, minor = self.cuda_arch or (0, 0)
        return f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}"


@dataclass(frozen=True)
class BuildSpec:
    """Everything that decides what one ``load_jit`` call builds.

    Attributes:
        family: the family that asked, or "" for a direct ``load_jit`` call.
        plugin: its distribution and version for messages, "sgljit-norm 0.1.0".
        markers: the name of the module and its template arguments. They only name the build: its key is computed
            from the compiled code.
        csrc: the directory that file names are relative to; one outside of it is absolute.
        cpp_sources, cuda_sources: the text of sources that are no files.
        header_only: a generated source includes the files and exports ``*_wrappers``; otherwise each file is a
            translation unit of its own and exports its functions itself.
        host_part: the C++ files are the host part of a family, see ``KernelFamily.load_host``.
        kernel: for an instant variant, the C++ expression that names the device kernel in the only CUDA file.
        module: the name of the module, the first marker.
        label: how messages name this build: family, variant, target and plugin.
    """

    markers: tuple[str, ...]
    csrc: Path
    target: Target
    family: str = ""
    plugin: str = ""
    cpp_files: tuple[str, ...] = ()
    cuda_files: tuple[str, ...] = ()
    cpp_sources: tuple[str, ...] = ()
    cuda_sources: tuple[str, ...] = ()
    cpp_wrappers: tuple[tuple[str, str], ...] = ()
    cuda_wrappers: tuple[tuple[str, str], ...] = ()
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    include_paths: tuple[Path, ...] = ()
    dependencies: tuple[str, ...] = ()
    header_only: bool = True
    host_part: bool = False
    kernel: str = ""
    module: str = field(init=False, repr=False, compare=False)
    label: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.markers:
            raise InvalidBuildError("load_jit needs at least one marker, the name of the module")
        object.__setattr__(self, "module", self.markers[0])
        name = f"{self.family}." * bool(self.family) + str(self.module)
        arguments = f"<{', '.join(map(str, self.markers[1:]))}>" if len(self.markers) > 1 else ""
        plugin = f" of {self.plugin}" if self.plugin else ""
        object.__setattr__(self, "label", f"{name}{arguments} for {self.target.name}{plugin}")
        if not _MODULE.fullmatch(self.module):
            raise InvalidBuildError(
                f"module name {self.module!r} must consist of letters, digits and _ . + -, and not start with . + -, "
                f"because it names a directory of the cache; pass template arguments as separate markers"
            )
        for problem in self._problems():
            raise InvalidBuildError(f"{self.label}: {problem}")

    def _problems(self) -> Iterator[str]:
        if self.family and not self.family.isidentifier():
            yield f"family {self.family!r} is not an identifier"
        if not any((self.cpp_files, self.cuda_files, self.cpp_sources, self.cuda_sources)):
            yield "no source; pass cpp_files, cuda_files, cpp_sources or cuda_sources"
        if not self.header_only and (self.cpp_sources or self.cuda_sources):
            yield "with header_only=False there is no generated source for cpp_sources and cuda_sources; write files"
        for file in (*self.cpp_files, *self.cuda_files):
            path = PurePosixPath(file)
            if (self.family and path.is_absolute()) or ".." in path.parts:
                yield f"file {file!r} must be relative to csrc ({self.csrc}) and stay inside it"
            if not _FILE.fullmatch(file):
                yield f"file {file!r} cannot stand in an #include line"
        exports = [export for export, _ in (*self.cpp_wrappers, *self.cuda_wrappers)]
        for export in exports:
            if not _IDENTIFIER.fullmatch(export):
                yield f"export name {export!r} is not a C identifier"
            if exports.count(export) > 1:
                yield f"export name {export!r} is given twice"
        if self.header_only and not exports and not self.kernel:
            yield (
                "nothing is exported; pass cpp_wrappers or cuda_wrappers, or header_only=False if the files export "
                "their functions themselves (SGL_EXPORT)"
            )
        if not self.header_only and exports:
            yield (
                "with header_only=False the files export their functions themselves (SGL_EXPORT); "
                "drop cpp_wrappers and cuda_wrappers"
            )
        has_cpp, has_cuda = self.cpp_files or self.cpp_sources, self.cuda_files or self.cuda_sources
        if (self.cpp_wrappers and not has_cpp) or (self.cuda_wrappers and not has_cuda):
            yield "wrappers of a language need files of the same language"
        for flag in (*self.cflags, *self.cuda_cflags, *self.ldflags):
            reason = _refusal(flag)
            if reason is not None:
                yield f"flag {flag!r} is refused: {reason}"


class Product(NamedTuple):
    """The result of a build: the file that it made, its commands, and what the manifest says of it.

    ``observed``: the sha256 by path of each file that a compiler read and no key covers. ``resources``: of a kernel.
    """

    payload: Path
    command: str
    observed: Mapping[str, str]
    resources: Mapping[str, int]


def _refusal(flag: str) -> str | None:
    """The reason why a flag is refused; None if it is accepted."""
    nested = re.fullmatch(_NESTED, flag)
    for part in re.split(r"[,\s]+", nested[1]) if nested else [flag]:
        for pattern, reason in _REFUSED:
            if re.match(pattern, part.strip("'\" ")):
                return reason
    if re.match(_OUTPUT, flag):
        return "load_jit itself chooses the output files"
    return "it contains a NUL character" if "\0" in flag else None
