"""The checks of a family as a whole, by name. Each raises Fault, or NotApplicable where it has nothing to look at."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping

import torch

from sgljit_core import KernelFamily, errors, parallel_compile, why
from sgljit_core.cache import lookup
from sgljit_core.jit.kernels import build
from sgljit_tools.errors import RecordingError
from sgljit_tools.recording.recorder import Recording, record

from .subject import Fault, NotApplicable
from .without_compilers import code_of


def declaration(family: KernelFamily) -> None:
    """All that the declaration names is there: sources, tests, benchmarks."""
    for name in ("tests", "bench"):
        module = getattr(family, name)
        if module != f"{family.package}.{name}" and importlib.util.find_spec(module) is None:
            raise Fault(f"KernelFamily({name}={module!r}): there is no such package")
    if family.sources != "csrc" and not family.csrc.is_dir():
        raise Fault(f"KernelFamily(sources={family.sources!r}): there is no directory {family.csrc}")


_recorded: dict[str, Recording] = {}  # by ``compiles`` for ``dry_run``: a process that imports torch takes a second


def compiles(family: KernelFamily) -> None:
    """All that the samples ask for on the CPU compiles. Each cause is told once, in the compiler's words."""
    try:
        try:
            recording = _recorded[family.name] = record([family.name], cuda_arch="9.0", on_cpu=True, samples=True)
        except errors.SgljitError:  # perhaps of CUDA alone, which is for the dry run to say
            _recorded.pop(family.name, None)
            recording = record([family.name], cuda_arch=None, on_cpu=True, samples=True)
        of_cpu = (one for one in recording.wanted if not (one.spec.kernel or one.spec.cuda_files))
        parallel_compile([functools.partial(build, wanted) for wanted in of_cpu])
    except errors.SgljitError as error:
        if not isinstance(error, RecordingError):  # nothing of the family works
            raise Fault(causes(error)) from error
        raise NotApplicable(f"it is not known what the samples ask for: {error}".partition("\n")[0]) from error


def causes(error: Exception) -> str:
    """An error of builds, each cause once and in a few lines."""
    return "\n".join({getattr(one, "cause", one): _in_a_few_lines(one) for one in reversed(_failures(error))}.values())


def _failures(error: Exception) -> list[Exception]:
    return list(error.failures) if isinstance(error, errors.ParallelCompileError) else [error]


def _in_a_few_lines(error: Exception) -> str:
    """An error with its class, and of a compiler the first error with the lines that it shows."""
    if not isinstance(error, errors.CompileError):
        return str(error) if isinstance(error, errors.SgljitError) else f"{type(error).__name__}: {error}"
    lines = error.log.splitlines()
    at = next((i for i, line in enumerate(lines) if error.first_error in line), len(lines))
    first = f"{error.build} does not compile: {error.first_error}"
    return "\n".join([first, *lines[at + 1 : at + 3], f"in {error.build_directory}"])


def compile_errors(family: KernelFamily) -> None:
    """An op whose code cannot be compiled raises, and gives no result made otherwise."""
    faults, _, loaded = code_of(family.name)
    _raise("\n".join(faults), loaded)


def statics(family: KernelFamily) -> None:
    """Its libraries share no static variables with those of other families."""
    _, shared, loaded = code_of(family.name)
    names = "; ".join(shared)
    told = f"every library of a process that has variables of these names shares them: {names}. Compile with "
    _raise(names and f"{told}-fno-gnu-unique, as the core does", loaded)


def _raise(faults: str, loaded: int) -> None:
    if faults:
        raise Fault(faults)
    if not loaded:
        raise NotApplicable("no op has code that is compiled")


def dry_run(family: KernelFamily) -> str:
    """All that ops ask for on CUDA compiles; kernels do not spill, and take what is passed, on the caller's stream."""
    try:
        kept = _recorded.pop(family.name, None)
        recording = kept or record([family.name], cuda_arch="9.0", on_cpu=False, samples=True)
        kernels = [wanted for wanted in recording.wanted if wanted.spec.kernel or wanted.spec.cuda_files]
        stopped = "; ".join(text for _, text in recording.stopped)
        stopped = stopped and f"; not called to the end: {stopped}"
        if not kernels:
            raise NotApplicable(f"no op asks for a kernel{stopped}")
        parallel_compile([functools.partial(build, wanted) for wanted in kernels])
        if faults := [*recording.launch_faults, *_faults_of_kernels(recording)]:
            raise Fault("; ".join(faults))
    except errors.SgljitError as error:
        for failure in _failures(error):
            if isinstance(failure, errors.ToolchainNotFoundError):
                raise NotApplicable(str(failure)) from error
        raise Fault(causes(error)) from error
    run = "run by the other checks" if torch.cuda.is_available() else "none run"
    what = "kernels" if all(wanted.spec.kernel for wanted in kernels) else "modules"
    return f"CUDA: {len(kernels)} {what} compiled, {run}{stopped}"


def _faults_of_kernels(recording: Recording) -> Iterator[str]:
    """The faults that manifests show: large spills, and accesses that are too wide for a tensor at an odd element."""
    places = [why(functools.partial(build, wanted)).artifact for wanted in recording.wanted]
    takes = {at: lookup.read_manifest(place).resources for at, place in enumerate(places) if place}
    for at, known in takes.items():
        if (count := known.get("spilled_bytes", 0)) > 128:  # fewer may pay for another block of a multiprocessor
            yield f"{recording.wanted[at].spec.kernel} spills {count} bytes of a thread to memory: hold less at a time"
    for (given, size), what in recording.odd:  # not all kernels that are given a tensor use it
        if (count := min(takes.get(at, {}).get("access_bytes", 0) for at in given)) > size:
            yield f"{what} may begin at any element, and its kernels access at least {count} bytes: check the address"


FAMILY_CHECKS: Mapping[str, Callable[[KernelFamily], str | None]] = {
    check.__name__: check for check in (declaration, compiles, compile_errors, statics, dry_run)
}
