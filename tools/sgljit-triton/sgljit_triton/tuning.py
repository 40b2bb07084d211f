"""Which configuration of an autotuned kernel runs? The fastest on this chip for this shape, as ``sgljit tune`` found.

The measurements are data of the package: a file ``tuned/CHIP.json`` for each chip. A launch takes the configuration of
its own shape, or else of the nearest one that was measured with the same dtypes and constants. Without data the first
configuration runs, and a warning says so once. Results are the same with each, so damaged data is a warning, too.
Rejected: to measure at run time, as Triton does. It stalls serving, and another process may choose otherwise.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sgljit_core import log
from sgljit_core.errors import SgljitError

from .configurations import Configuration

FORMAT = 1


class TunedDataError(SgljitError, ValueError):
    """A file of measured configurations cannot be read."""


class Case(NamedTuple):
    """A kind of launches that take the same configuration on a chip.

    Attributes:
        kernel: "FILE:NAME".
        dtypes: of the arguments, "" for those that are no tensors.
        constants: the texts of those that the caller gives, by name.
        shape: the values of the key's parameters, by name.
    """

    kernel: str
    dtypes: tuple[str, ...]
    constants: Mapping[str, str]
    shape: Mapping[str, Any]


class Measured(NamedTuple):
    """A case, its fastest configuration, and the microseconds of that and of the first configuration.

    The latter is infinite where the first one did not run.
    """

    case: Case
    configuration: Configuration
    microseconds: float
    first: float


class Tuned(NamedTuple):
    """The content of a file: the chip, the name of its target, and what was measured."""

    chip: str
    target: str
    measured: tuple[Measured, ...]


def chip(device_id: int) -> str:
    """The name of a device's chip."""
    import torch

    return torch.cuda.get_device_name(device_id)


def file_of(directory: Path, name: str) -> Path:
    """The file of a chip."""
    return directory / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}.json"


def read(file: Path) -> Tuned:
    """Read a file. Raises TunedDataError, also where it is not there."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise TunedDataError(f"{file} has the format {data['format']!r}, expected {FORMAT}; tune anew")
        measured = [
            Measured(
                Case(kernel, tuple(map(_text, one["dtypes"])), dict(one["constants"]), dict(one["shape"])),
                dict(one["configuration"]),
                float(one["microseconds"]),
                float(one["first"]),
            )
            for kernel, cases in data["kernels"].items()
            for one in cases
        ]
        return Tuned(_text(data["chip"]), _text(data["target"]), tuple(measured))
    except OSError as error:
        raise TunedDataError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, TunedDataError):
            raise
        raise TunedDataError(f"{file} is damaged: {type(error).__name__}: {error}; remove it, and tune anew") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


def write(file: Path, tuned: Tuned) -> None:
    """Write a file, whole or not at all."""
    kernels: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(tuned.measured, key=lambda one: json.dumps(one.case)):
        entry = {
            "dtypes": list(one.case.dtypes),
            "constants": dict(one.case.constants),
            "shape": dict(one.case.shape),
            "configuration": dict(one.configuration),
            "microseconds": round(one.microseconds, 3),
            "first": round(one.first, 3),
        }
        kernels.setdefault(one.case.kernel, []).append(entry)
    data = {"format": FORMAT, "chip": tuned.chip, "target": tuned.target, "kernels": kernels}
    file.parent.mkdir(exist_ok=True)
    staged = file.with_suffix(".new")
    staged.write_text(f"{json.dumps(data, indent=1)}\n", encoding="utf-8")
    staged.replace(file)


@functools.cache
def _all(directory: Path) -> tuple[tuple[Tuned, ...], tuple[str, ...]]:
    """The content of the files of a package, and what is wrong with the others."""
    found, problems = [], []
    for file in sorted(directory.glob("*.json")):
        try:
            found.append(read(file))
        except TunedDataError as error:  # noqa: PERF203
            problems.append(str(error))
    return tuple(found), tuple(problems)


def forget() -> None:
    """Read the files anew when they are asked for again."""
    _all.cache_clear()


def choose(
    directory: Path, label: str, name: str, case: Case, configurations: Sequence[Configuration]
) -> Configuration:
    """The configuration for a launch on the chip ``name``; ``label`` names the kernel in a warning."""
    files, problems = _all(directory)
    found = [one for one in files if one.chip == name]
    chosen, reason = _nearest(found[0], case, configurations) if found else (None, _unmeasured(name, files, problems))
    if chosen is None:
        chosen = configurations[0]
        _say_first(label, name, reason, chosen)
    return chosen


def ahead(
    directory: Path, label: str, target: str, case: Case, configurations: Sequence[Configuration]
) -> list[Configuration]:
    """The configurations to build ahead for a target: what its chips in the data take, and the first for others."""
    files, problems = _all(directory)
    wanted = [configurations[0]]
    found = [one for one in files if one.target == target]
    chosen = [_nearest(one, case, configurations)[0] for one in found]
    if not found:
        _say_first(label, target, _unmeasured(f"a chip of {target}", files, problems), wanted[0])
    for one in chosen:
        if one is not None and one not in wanted:
            wanted.append(one)
    return wanted


def _nearest(tuned: Tuned, case: Case, configurations: Sequence[Configuration]) -> tuple[Configuration | None, str]:
    """The configuration of the case nearest to this one; or None, and why there is none."""
    similar = [one for one in tuned.measured if one.case[:3] == case[:3] and _distance(one.case, case) < math.inf]
    if not similar:
        return None, f"nothing was measured on {tuned.chip} for {_described(case)}"
    best = min(similar, key=lambda one: _distance(one.case, case)).configuration
    if best not in configurations:
        return None, f"what was measured on {tuned.chip}, {shown(best)}, is no configuration of it any more"
    return best, ""


def _distance(one: Case, other: Case) -> float:
    """How far two shapes are apart: by the ratios of their numbers; infinite where something else differs."""
    if one.shape.keys() != other.shape.keys():
        return math.inf
    total = 0.0
    for name, value in one.shape.items():
        pair = value, other.shape[name]
        if all(type(number) is int and number >= 0 for number in pair):
            total += abs(math.log2((1 + pair[0]) / (1 + pair[1])))
        elif pair[0] != pair[1]:
            return math.inf
    return total


def _unmeasured(name: str, files: Sequence[Tuned], problems: Sequence[str]) -> str:
    chips = ", ".join(one.chip for one in files) or "no chip"
    return "; ".join([f"nothing was measured on {name}, but on {chips}", *problems])


def _described(case: Case) -> str:
    constants = [f"{name}={value}" for name, value in case.constants.items()]
    return ", ".join([*filter(None, case.dtypes), *constants]) or "it"


def _say_first(label: str, name: str, reason: str, first: Configuration) -> None:
    text = f"{label}: {reason}; the first configuration serves, {shown(first)}. `sgljit tune` measures them on a GPU"
    log.once("not_tuned", f"{label} {name}", text, kernel=label, chip=name, reason=reason)


def shown(configuration: Configuration) -> str:
    """A configuration as text."""
    return ", ".join(f"{name}={value}" for name, value in configuration.items())


# Returns the microseconds of a launch, which is a function of the arguments.
Measure = Callable[[Callable[..., None], Sequence[Any]], float]


class Measuring:
    """A measurement under way.

    Attributes:
        measured: what it found.
        failed: the configurations that did not run, in words.
    """

    def __init__(self, measure: Measure) -> None:
        self.measured: list[Measured] = []
        self.failed: list[str] = []
        self._measure = measure

    def fastest(
        self, label: str, case: Case, launches: Sequence[tuple[Configuration, Callable[..., None]]], args: Sequence[Any]
    ) -> int:
        """Measure each configuration, and return the index of the fastest. Raises the last error if none runs."""
        times: list[float] = []
        for configuration, launch in launches:
            try:
                times.append(self._measure(launch, args))
            except (SgljitError, RuntimeError) as error:  # noqa: PERF203 - such as too much memory for the chip
                times.append(math.inf)
                if times == [math.inf] * len(launches):
                    raise
                first_line = str(error).partition("\n")[0]
                self.failed.append(f"{label}, {shown(configuration)}: {first_line}")
        best = min(range(len(times)), key=times.__getitem__)
        self.measured.append(Measured(case, launches[best][0], times[best], times[0]))
        return best


_active: list[Measuring] = []


def active() -> Measuring | None:
    """The measurement under way."""
    return _active[-1] if _active else None


@contextmanager
def measuring(measure: Measure) -> Iterator[Measuring]:
    """Measure, inside the block, the configurations of each autotuned kernel for each new case."""
    _active.append(Measuring(measure))
    try:
        yield _active[-1]
    finally:
        _active.pop()
