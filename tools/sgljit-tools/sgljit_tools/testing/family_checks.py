"""The checks of a family as a whole, by name. Each raises Fault, or NotApplicable where it has nothing to look at."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

from sgljit_core import KernelFamily, ops
from sgljit_core.families import loading

from .dry_run import dry_run
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


def compile_errors(family: KernelFamily) -> None:
    """An op whose code cannot be compiled raises, and gives no result made otherwise."""
    faults, _, loaded = code_of(family.name)
    if faults:
        raise Fault("\n".join(faults))
    if not loaded:
        raise NotApplicable("no op has code that is compiled")


def statics(family: KernelFamily) -> None:
    """Its libraries share no static variables with those of other families."""
    _, shared, loaded = code_of(family.name)
    if shared:
        raise Fault(
            f"every library of a process that has variables of these names shares them: {'; '.join(shared)}. "
            f"Compile with -fno-gnu-unique, as the core does"
        )
    if not loaded:
        raise NotApplicable("no op has code that is compiled")


FAMILY_CHECKS: Mapping[str, Callable[[KernelFamily], str | None]] = {
    "declaration": declaration,
    "compile_errors": compile_errors,
    "statics": statics,
    "dry_run": lambda family: dry_run(family.name),
}


def load_family(name: str) -> KernelFamily:
    """An installed family. Raises UnknownFamilyError."""
    return loading.load(ops[name].__name__)
