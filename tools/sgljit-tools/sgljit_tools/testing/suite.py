"""Which functions do tests call? The checks of an op or of a family, and one device kernel by its name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgljit_core import KernelFamily, Op, make_cpp_args, ops, paths
from sgljit_core.families import loading
from sgljit_core.jit import kernels
from sgljit_core.load.cubin import Cubin
from sgljit_tools.errors import NoDeviceError

from .checks import CHECKS, LOOK_AT, ON_CUDA
from .family_checks import FAMILY_CHECKS, causes
from .subject import Fault, NotApplicable, Subject, conditions


class Check(NamedTuple):
    """A check of one thing.

    Attributes:
        name: its name in ``CHECKS``, or in ``FAMILY_CHECKS``.
        about: the op, such as ``norm.rmsnorm``, or the family.
        device: "cpu" or "cuda"; empty for a family.
        place: the op's file and line.
    """

    name: str
    about: str
    device: str
    place: str
    body: Callable[[], str | None]

    @property
    def id(self) -> str:
        """The name of this check alone, such as ``norm.rmsnorm::results::cpu``."""
        return "::".join(filter(None, (self.about, self.name, self.device)))

    def run(self) -> str | None:
        """Check, and maybe return what was found out. Raises Fault, or NotApplicable."""
        __tracebackhide__ = True
        with conditions():
            try:
                return self.body()
            except NotApplicable:
                raise
            except Exception as error:
                if isinstance(error, Fault):  # its text says all
                    raise Fault(self.told(str(error))) from None
                raise Fault(self.told(causes(error))) from error

    def told(self, fault: str) -> str:
        """A fault with the op, the check and the place to look at."""
        where = f"\nLook at {LOOK_AT[self.name]}" if self.name in LOOK_AT else ""
        place = f"\n{self.place}: here the op is declared" if self.place else ""
        return f"{self.about}, {self.name}: {fault}{where}{place}"


def check_op(op: Op | str, device: str | torch.device = "cpu", checks: Collection[str] = tuple(CHECKS)) -> None:
    """Check one op.

    >>> check_op("norm.rmsnorm")

    Args:
        op: the declared op, or "family.op".
        device: where its samples are made.
        checks: the names of the checks to run; by default all.

    Raises:
        Fault: the first thing that is wrong.
        NoDeviceError: there is no such device.
        UnknownFamilyError, UnknownOpError: there is no such op.
    """
    __tracebackhide__ = True  # pytest shows the author's line, and the text
    if isinstance(op, str):
        family, _, name = op.partition(".")
        getattr(ops[family], name)  # raises the error that names the ops there are
        op = _family(family).declared()[name]
    _run(check for check in _checks_of(op, torch.device(device)) if check.name in checks)


def check_family(family: str, device: str | torch.device = "cpu") -> None:
    """Check every op of an installed family, and the family.

    Raises:
        Fault: the first thing that is wrong.
        NoDeviceError: there is no such device.
        UnknownFamilyError: there is no such family.
    """
    _run(checks_of_family(family, [torch.device(device)]))


def checks_of_family(name: str, devices: Collection[torch.device]) -> Iterator[Check]:
    """All checks of an installed family. Imports it, and raises what that raises; NoDeviceError without a device."""
    family = _family(name)
    for op in family.declared().values():
        for device in devices:
            yield from _checks_of(op, device)
    for check, function in FAMILY_CHECKS.items():
        yield Check(check, family.name, "", "", functools.partial(function, family))


@functools.lru_cache(maxsize=8)
def _checks(family: str, device: str) -> dict[str, Check]:
    return {check.id: check for check in checks_of_family(family, [torch.device(device)] if device else [])}


def run_by_id(family: str, device: str, check: str) -> str | None:
    """Run the check with an ``id``; "" is the device of a check of the family as a whole."""
    return _checks(family, device)[check].run()


def _family(name: str) -> KernelFamily:
    return loading.load(ops[name].__name__)


def _checks_of(op: Op, device: torch.device) -> Iterator[Check]:
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        built = "" if torch.backends.cuda.is_built() else f": torch {torch.__version__} is built without CUDA"
        remedy = "run it where there is a GPU, or name cpu instead"  # one that was asked for by name is not skipped
        raise NoDeviceError(f"there is no device {device} to test on{built}; {remedy}")
    subject = Subject(op, device)  # its samples are made once for all checks
    has_calls = subject.takes_tensors or op.samples is not None
    for name, check in CHECKS.items():
        if (device.type == "cpu" and name in ON_CUDA) or (not has_calls and name != "signatures"):
            continue
        yield Check(name, str(subject), device.type, op.place, functools.partial(check, subject))


def _run(checks: Iterable[Check]) -> None:
    __tracebackhide__ = True
    for check in checks:
        with contextlib.suppress(NotApplicable):
            check.run()


def build_variant(
    family: KernelFamily, file: str, kernel: str, *args: Any, build_directory: str | Path | None = None
) -> Cubin:
    """A device kernel for the current target, from the cache or made now. Needs no GPU. Raises as ``load_jit`` does.

    >>> with override_cuda_arch(9, 0):
    ...     build_variant(FAMILY, "rmsnorm.cuh", "rmsnorm::kernel", 4096, True, torch.bfloat16)

    Args:
        file: the device file, relative to the family's ``csrc``.
        kernel: the kernel's name, with its namespace.
        args: its template arguments, as the host part passes them; ``make_cpp_args`` lists their types.
        build_directory: the root of the cache, as in ``load_jit``.
    """
    sources = kernels.Sources(family.name, family.csrc, paths.build_root(build_directory))
    return kernels.build_kernel(sources, file, f"{kernel}<{make_cpp_args(*args)}>" if args else kernel)
