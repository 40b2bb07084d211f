"""What is a build, and what is it for? Frozen data that checks itself, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sgljit_core.errors import InvalidBuildError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")  # it names a directory
_FILE = re.compile(r'[^"\\\x00-\x1f]+')  # it stands in an #include line

# Flags that make a build depend on what no key covers, and why. A flag of another program inside one of the
# compiler's (-Wl,... and -Xcompiler=...) is checked as if it stood alone.
_REFUSED = (
    (re.compile(r"@"), "a response file is not part of the key; pass its flags themselves"),
    (
        re.compile(r"--?(f(pass-)?plugin|iplugindir|plugin|load)\b"),
        "code loaded into a compiler is not part of the key",
    ),
    (re.compile(r"--?(wrapper|run\b|ld-path)"), "it runs a program that is not part of the key"),
    (
        re.compile(r"--?specs\b|-B(?!symbolic|static|dynamic|group)"),
        "it changes which programs the compiler runs, outside the key",
    ),
    (re.compile(r"-optf|--options-file"), "a response file is not part of the key; pass its flags themselves"),
    (re.compile(r"-ccbin|--compiler-bindir"), "the host compiler is chosen with SGLJIT_CXX, which the key covers"),
)
_OUTPUT = re.compile(r"-(o|c|E|S|M|MD|MM|MMD|MF|MT|MQ)$|-(MF|MT|MQ)")
_NESTED = re.compile(r"(?:-W[lpa],|--?X[\w-]+=|--[\w-]*options=)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Target:
    """What an artifact is compiled for.

    Attributes:
        name: the name in paths and messages: "sm_90a" or "cpu-x86_64".
        cuda_arch: (major, minor) of the CUDA architecture; None for a CPU target.
    """

    name: str
    cuda_arch: tuple[int, int] | None = None

    @property
    def is_cuda(self) -> bool:
        return self.cuda_arch is not None

    @property
    def option(self) -> str:
        """What asks for it on the command line, such as " --cuda-arch 9.0a"; "" of a CPU target."""
        if self.cuda_arch is None:
            return ""
        major, minor = self.cuda_arch
        return f" --cuda-arch {major}.{minor}{self.name.removeprefix(f'sm_{major}{minor}')}"


@dataclass(frozen=True)
class BuildSpec:
    """Everything that decides what one ``load_jit`` call builds.

    Attributes:
        family: the family that asked, or "" for a direct ``load_jit`` call.
        plugin: its distribution and version for messages, "sgljit-norm 0.1.0".
        markers: the name of the module and its template arguments; they name the build, the key is computed from
            what is compiled.
        csrc: the directory that file names are relative to.
        header_only: files are included by a generated source that exports ``*_wrappers``; else each file is a
            translation unit of its own and exports itself.
        host_part: the C++ files are the host part of a family, see ``KernelFamily.load_host``.
        kernel: for an instant variant, the C++ expression that names the device kernel in the one CUDA file.
        carried: the directory of artifacts inside the plugin's own wheel, if it has one.
    """

    markers: tuple[str, ...]
    csrc: Path
    target: Target
    family: str = ""
    plugin: str = ""
    cpp_files: tuple[str, ...] = ()
    cuda_files: tuple[str, ...] = ()
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
    carried: Path | None = None

    def __post_init__(self) -> None:
        if not self.markers:
            raise InvalidBuildError("load_jit needs at least one marker, the name of the module")
        if not _MODULE.fullmatch(self.module):
            raise InvalidBuildError(
                f"module name {self.module!r} must be of letters, digits and _ . + -, and not start with . + -: "
                f"it names a directory of the cache. Template arguments follow it as markers of their own"
            )
        if self.family and not self.family.isidentifier():
            raise InvalidBuildError(f"{self.label}: family {self.family!r} is not an identifier")
        if not self.cpp_files and not self.cuda_files:
            raise InvalidBuildError(f"{self.label}: no source; pass cpp_files or cuda_files")
        for file in (*self.cpp_files, *self.cuda_files):
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts:
                raise InvalidBuildError(
                    f"{self.label}: file {file!r} must be relative to csrc ({self.csrc}) and stay inside it"
                )
            if not _FILE.fullmatch(file):
                raise InvalidBuildError(f"{self.label}: file {file!r} cannot stand in an #include line")
        wrappers = (*self.cpp_wrappers, *self.cuda_wrappers)
        for export, _ in wrappers:
            if not _IDENTIFIER.fullmatch(export):
                raise InvalidBuildError(f"{self.label}: export name {export!r} is not a C identifier")
        exports = [export for export, _ in wrappers]
        for export in exports:
            if exports.count(export) > 1:
                raise InvalidBuildError(f"{self.label}: export name {export!r} is given twice")
        if self.header_only and not wrappers and not self.kernel:
            raise InvalidBuildError(
                f"{self.label}: nothing is exported; pass cpp_wrappers or cuda_wrappers, or header_only=False where "
                f"the files export themselves (SGL_EXPORT)"
            )
        if not self.header_only and wrappers:
            raise InvalidBuildError(
                f"{self.label}: with header_only=False the files export themselves (SGL_EXPORT); "
                f"drop cpp_wrappers and cuda_wrappers"
            )
        if (self.cpp_wrappers and not self.cpp_files) or (self.cuda_wrappers and not self.cuda_files):
            raise InvalidBuildError(f"{self.label}: wrappers of a language need files of the same language")
        for flag in (*self.cflags, *self.cuda_cflags, *self.ldflags):
            reason = _refusal(flag)
            if reason is not None:
                raise InvalidBuildError(f"{self.label}: flag {flag!r} is refused: {reason}")

    @property
    def module(self) -> str:
        """The name of the module."""
        return self.markers[0]

    @property
    def label(self) -> str:
        """How messages name this build: family, variant, target and plugin."""
        name = f"{self.family}." if self.family else ""
        arguments = f"<{', '.join(self.markers[1:])}>" if len(self.markers) > 1 else ""
        module = self.markers[0] if self.markers else "?"
        plugin = f" of {self.plugin}" if self.plugin else ""
        return f"{name}{module}{arguments} for {self.target.name}{plugin}"


def _refusal(flag: str) -> str | None:
    """Why a flag is refused; None where it is not."""
    nested = _NESTED.fullmatch(flag)
    parts = re.split(r"[,\s]+", nested[1]) if nested else [flag]
    for part in parts:
        for pattern, reason in _REFUSED:
            if pattern.match(part.strip("'\" ")):
                return reason
    if _OUTPUT.match(flag):
        return "load_jit itself says what is made, and where"
    return "it holds a character that ends a text" if "\0" in flag else None
