"""What does code ask to be built? While a recorder is active, that is noted, and only host parts are made.

A host part chooses its kernels in C++. A call of it on tensors without memory, with a driver without a device, thus
finds out what to build ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sgljit_core.specs.build import BuildSpec


class Wanted(NamedTuple):
    """Something that was asked for; ``kernels.build`` builds it.

    Attributes:
        root: the root of the cache; None for the one of the process that builds it.
        signature: the type that the host part calls it with; "" if it is no kernel and no deferred function.
    """

    spec: BuildSpec
    root: Path | None
    signature: str = ""


@dataclass
class Recorder:
    """The requests of a recording, in their order.

    Deferred functions are answered with the address ``nothing``, of a C function that changes nothing; kernels with
    the number of their request, from 1 on.
    """

    nothing: int
    wanted: dict[Wanted, None] = field(default_factory=dict)


class StandIn:
    """In place of a module that is not made: each of its functions does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args: None


active: list[Recorder] = []  # for all threads, as C++ may ask on any


@contextmanager
def recording(nothing: int) -> Iterator[Recorder]:
    """Note what is asked for inside the block. A process that has recorded launches nothing from then on."""
    recorder = Recorder(nothing)
    active.append(recorder)
    try:
        yield recorder
    finally:
        active.remove(recorder)


def note(spec: BuildSpec, root: Path, signature: str = "") -> Recorder:
    """Note a request with the last of the ``active`` recorders, and return that."""
    active[-1].wanted[Wanted(spec, root, signature)] = None
    return active[-1]
