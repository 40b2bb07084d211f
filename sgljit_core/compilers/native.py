"""How does a build become a shared library? With nvcc, the host compiler and the linker.

The compilers run directly, translation units side by side, in an environment that is set here alone: variables such
as ``CPATH`` or ``NVCC_APPEND_FLAGS`` change a compiler's output and are in no key. Each compiler counts against the
limit of this process, and ends with it; a link counts as none.

The compilers and the linker report the files that they read. A file that no key covers (a header reached by a macro
or a flag, a linked static library) is returned with its hash, for the look-up to check.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import as_completed
from pathlib import Path

from sgljit_core.errors import CompileError
from sgljit_core.machine import jobs, supervisor, threads
from sgljit_core.paths import tvm_ffi_include
from sgljit_core.specs.build import BuildSpec, Product

from .includes import Root
from .recipe import Recipe, cxx_flags, hipcc_flags, nvcc_flags
from .toolchain import HIP_ENVIRONMENT, Toolchain

# Files of the compiler, the C library and the kernel's interface: the toolchain's version stands for them. A name that
# is missing here costs one more hash to check, nothing else.
_PLATFORM = re.compile(
    r"/lib(?:32|64|exec)?/(?:gcc(?:-cross)?|clang|llvm-\d+|linux/uapi)/|^/usr/\w+-linux-gnu\w*/lib/|"
    r"/include/(?:[\w.-]*linux-gnu\w*/)?(?:(?:c\+\+|bits|sys|gnu|asm|asm-generic|linux|hip|hsa)/|(?:alloca|assert|"
    r"byteswap|ctype|dlfcn|elf|endian|errno|features|features-time64|fenv|inttypes|libintl|limits|link|locale|malloc|"
    r"math|memory|pthread|sched|semaphore|setjmp|signal|stdc-predef|stdint|stdio|stdlib|string|strings|syscall|time|"
    r"unistd|wchar|wctype)\.h$)"
)
_NO_MEMORY = re.compile(
    r"out of memory|memory exhausted|(?:instance of|what\(\):) *'?std::bad_alloc|cannot allocate memory", re.IGNORECASE
)
_ERROR = re.compile(r"\berror\b|fatal|undefined reference|undefined symbol|multiple definition", re.IGNORECASE)
_CONTEXT = re.compile(r"In file included from |\s+from |\s*\d*\s*\|")  # where an error is, and lines of the source
_REMEDIES = {  # by what the first error says
    "'address_of' is not a member of 'host'": "The file of a deferred function must include <sgl_kernel/deferred.h>",
    r"multiple definition of `__tvm_ffi_(\w+)'": r"Two files export \1 with SGL_EXPORT",
    "multiple definition of (?!`__tvm_ffi_)": "Put file-local definitions in an anonymous namespace",
    r"\bnames? (?:was |were )?provided": "SGL_FIELDS names every field of the struct",
    "undefined reference": "Add the file that defines it to cpp_files, or its library to extra_ldflags",
    "unsupported (?:GNU|clang) version": "Set SGLJIT_CXX to a compiler that this nvcc supports",
    r"/bits/.* exception specification is": "This nvcc is too old for the C library: set SGLJIT_NVCC to a newer one",
}


def compile_library(
    spec: BuildSpec,
    toolchain: Toolchain,
    tvm_ffi: Path,
    recipe: Recipe,
    directory: Path,
    meanwhile: Callable[[], None],
) -> Product:
    """Compile and link in ``directory``. After a CompileError it holds the sources, and what was compiled.

    Args:
        tvm_ffi: the library of tvm-ffi to link against.
        meanwhile: runs in this thread while the compilers run.
    """
    for name, text in recipe.generated.items():
        (directory / name).write_text(text, encoding="utf-8")
    files = () if spec.header_only else (*spec.cuda_files, *spec.cpp_files)
    unit_flags = recipe.steps.get("unit", ())  # of the author's own units, besides those of all
    units = [*(spec.csrc / file for file in files), *(directory / name for name in recipe.generated)]
    objects = [directory / f"{index}_{unit.name}.o" for index, unit in enumerate(units)]
    commands = [
        [*_compile_command(spec, toolchain, unit, output, recipe.roots), *(unit_flags if index < len(files) else ())]
        for index, (unit, output) in enumerate(zip(units, objects, strict=True))
    ]
    library = directory / "module.so"
    link = _link_command(spec, toolchain, [*objects, tvm_ffi], library)
    run = _Runner(spec, toolchain, directory)
    with contextlib.closing(run.supervisor):
        run.side_by_side([(command, _is_cuda(unit)) for command, unit in zip(commands, units, strict=True)], meanwhile)
        trace = run(link, cuda=False)
    made = [*(output.with_suffix(".d") for output in objects), library]
    for command, file in zip([*commands, link], made, strict=True):
        if not file.is_file() and directory.is_dir():
            raise run.error(command, f"the compiler reported success, and wrote no {file.name}", "")
    read = [path for output in objects for path in _dependencies(output.with_suffix(".d"))]
    own = (directory, tvm_ffi_include(), *([toolchain.cuda_home] if toolchain.nvcc else []))
    observed = _observed((*read, *_archives(trace)), own, recipe.scan.stamps)
    return Product(library, "\n".join(shlex.join(command) for command in (*commands, link)), observed, {})


def _is_cuda(unit: Path) -> bool:
    return unit.suffix in (".cu", ".cuh")


def _compile_command(
    spec: BuildSpec, toolchain: Toolchain, unit: Path, output: Path, roots: Sequence[Root]
) -> list[str]:
    # Messages of a kernel name its files by label, so that an artifact does not depend on the place of the tree.
    maps = [f"-fmacro-prefix-map={root.directory}/={f'{root.label}/' if root.own else ''}" for root in roots]
    if _is_cuda(unit) and toolchain.hipcc is not None:
        compiler, flags = [str(toolchain.hipcc.path), "-x", "hip"], [*hipcc_flags(spec), *maps]
    elif _is_cuda(unit):
        assert toolchain.nvcc is not None
        compiler = [str(toolchain.nvcc.path), f"-ccbin={toolchain.cxx.path}", "-x", "cu"]
        flags = [*nvcc_flags(spec), *(f"-Xcompiler={flag}" for flag in maps)]
    else:
        compiler = [str(toolchain.cxx.path)]
        flags = [*cxx_flags(spec), *maps]
    if "clang" in toolchain.cxx.version:  # it makes no symbols that libraries share, and does not know the flag
        flags = [flag for flag in flags if "-fno-gnu-unique" not in flag]
    files = ["-c", str(unit), "-o", str(output), "-MD", "-MF", str(output.with_suffix(".d"))]
    includes = [*(f"-I{root.directory}" for root in roots), "-isystem", str(tvm_ffi_include())]
    return [*compiler, *files, *flags, *includes]


def _link_command(spec: BuildSpec, toolchain: Toolchain, objects: Sequence[Path], library: Path) -> list[str]:
    command = [str(toolchain.cxx.path), "-shared", "-o", str(library), *map(str, objects)]
    if spec.target.cuda_arch:
        command += [str(toolchain.cudart), "-lrt", "-lpthread"]
    if toolchain.hipcc is not None:  # HIP's runtime is PyTorch's own, by its name: two would not know each other
        command += [f"-L{toolchain.hipcc.path.parent.parent}/lib", "-lamdhip64"]
    # -z defs: the first call of an undefined function would end the process. The trace lists the linked files.
    return [*command, "-ldl", "-Wl,-z,defs", *spec.ldflags, "-Wl,--trace"]


class _Runner:
    """Runs the commands of one build; the first that fails ends the others."""

    def __init__(self, spec: BuildSpec, toolchain: Toolchain, directory: Path) -> None:
        self.supervisor = supervisor.Supervisor()
        self._spec = spec
        self._directory = directory
        self._environment = _environment(toolchain, directory)
        self._started = threading.Semaphore(0)

    def side_by_side(self, commands: Sequence[tuple[Sequence[str], bool]], meanwhile: Callable[[], None]) -> None:
        calls = [functools.partial(self._in_turn, *command) for command in commands]
        with threads.running(calls, len(calls), self.supervisor.close) as futures:
            # Python code in this thread would delay the start of the compilers. Some of them may wait for a core.
            deadline = time.monotonic() + 0.1
            for _ in commands:
                self._started.acquire(timeout=max(0.0, deadline - time.monotonic()))
            meanwhile()
            for future in as_completed(futures):
                if not future.cancelled():  # then another was interrupted
                    future.result()

    def _in_turn(self, command: Sequence[str], cuda: bool) -> None:
        with jobs.running(cuda=cuda, is_cancelled=lambda: self.supervisor.closed):
            self(command, cuda=cuda)

    def __call__(self, command: Sequence[str], *, cuda: bool) -> str:
        finished = self.supervisor.run(
            command,
            cwd=self._directory,
            env=self._environment,
            seconds=supervisor.SECONDS,
            started=self._started.release,
            memory=jobs.available_memory(),
        )
        if finished.status == 0:
            return finished.output
        log = finished.output.strip() or f"no output; exit status {finished.status}"
        lines = [line for line in log.splitlines() if not _CONTEXT.match(line)] or log.splitlines()
        first = next((line.strip() for line in lines if _ERROR.search(line)), lines[-1].strip())
        if finished.late:
            first = f"the compiler did not end within {supervisor.SECONDS / 60:g} minutes and was ended"
        elif finished.status == 128 + 9:
            first = "the compiler was killed, most likely for lack of memory; SGLJIT_JOBS=1 runs one compiler at a time"
        elif finished.memory is not None and any(map(_NO_MEMORY.search, lines)):
            gigabytes = finished.memory / (1 << 30)
            first = (
                f"the compiler ran out of memory: it could take {gigabytes:.1f} GiB, which the machine had left; "
                f"SGLJIT_JOBS=1 runs one compiler at a time. It says: {first}"
            )
        raise self.error(command, first.removesuffix(".") + _hint(first, log, self._directory, cuda=cuda), log)

    def error(self, command: Sequence[str], first: str, log: str) -> CompileError:
        """The error for a command that failed."""
        text, directory = shlex.join(command), self._directory
        return CompileError(build=self._spec.label, first_error=first, command=text, log=log, build_directory=directory)


def _hint(first: str, log: str, directory: Path, *, cuda: bool) -> str:
    """Additions to a compiler's first error: the wrapper and the type that it concerns, and the remedy."""
    hints = []
    before = log.partition(first)[0]
    place = re.match(r"\S*?(generated\.\w+):(\d+)", first)
    place = place or re.search(r"(generated\.\w+):(\d+):\d+:\s+required from here(?:\n *\d* *\|.*)*\s*\Z", before)
    if place is not None:
        written = (directory / place[1]).read_text(encoding="utf-8").splitlines()
        # An author's #line may name a line that is not there.
        hints += [f"The error is in the wrapper {line}" for line in written[int(place[2]) - 1 : int(place[2])]]
    elif "/sgl_kernel/" in first.partition(" error: ")[0]:  # of a header of the core, about what an author wrote
        at = re.findall(r"(?m)^(?!\S*/sgl_kernel/)(\S+:\d+):\d+:\s+required ", before.rpartition(" instantiation ")[2])
        hints += [f"It comes from {line}" for line in at[:1]]
    types = re.findall(r"read_argument\([^)]*\) \[with T = ([^\]]+)\]", before) if "SGL_EXPORT: " in first else []
    hints += [f"The type is {name}" for name in types[-1:]]
    if not cuda and re.search(r"(cuda_\w+\.h|\.cuh): No such file", first):
        hints += ["A C++ file cannot include a device header: put the kernel into a .cuh file, which NVRTC reads"]
    hints += [found.expand(remedy) for error, remedy in _REMEDIES.items() if (found := re.search(error, first))]
    return "".join(f". {hint}" for hint in hints)


def _environment(toolchain: Toolchain, directory: Path) -> dict[str, str]:
    """A compiler finds its own programs beside itself, and the assembler and linker in the system's directories."""
    programs = [compiler.path.parent for compiler in (toolchain.cxx, toolchain.nvcc, toolchain.hipcc) if compiler]
    return {
        "PATH": os.pathsep.join([*map(str, programs), "/usr/local/bin", "/usr/bin", "/bin"]),
        "TMPDIR": str(directory),
        "LC_ALL": "C",
        "SOURCE_DATE_EPOCH": "0",  # the value of __DATE__ and __TIME__
        **HIP_ENVIRONMENT,
    }


def _dependencies(file: Path) -> list[str]:
    r"""The files that a compiler read, from the make rule it wrote: "target: file file \" with escaped blanks."""
    _, _, files = file.read_text(errors="surrogateescape").replace("\\\n", " ").partition(": ")
    return [re.sub(r"\\([ #\\])", r"\1", name).replace("$$", "$") for name in re.findall(r"(?:\\.|\S)+", files)]


def _archives(trace: str) -> list[str]:
    """The object files and static libraries in a linker's trace; only the name of a shared library counts."""
    lines = [re.sub(r"\([^)]*\)$", "", re.sub(r"^\(([^)]*)\)", r"\1", line.strip())) for line in trace.splitlines()]
    return [line for line in lines if line.endswith((".a", ".o")) and not re.match(r"/(usr/)?lib(64)?/", line)]


def _observed(read: Iterable[str], own: Sequence[Path], keyed: Collection[str]) -> dict[str, str]:
    """Sha256 of each file that was read, except the toolchain's, those below ``own`` and those in a key."""
    covered = {os.path.realpath(path) for path in keyed}
    below = tuple(f"{os.path.realpath(directory)}/" for directory in own)
    found: dict[str, str] = {}
    for name in dict.fromkeys(read):
        path = os.path.realpath(own[0] / name)  # a relative name is relative to the compiler's working directory
        if path in covered or path in found or path.startswith(below) or _PLATFORM.search(path):
            continue
        with contextlib.suppress(OSError):  # nvcc names files of its own that are gone by now
            found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return dict(sorted(found.items()))
