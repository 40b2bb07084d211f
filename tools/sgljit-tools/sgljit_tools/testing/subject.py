"""An op on a device, with its samples: how is it called and judged by its reference?"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sgljit_core import Op
from sgljit_core.errors import InvalidBuildError, InvalidFamilyError
from sgljit_engines.agreement import difference, map_tensors, same_bits
from sgljit_tools.recording.process import note_call

from .memory import Guarded, leading_to_copies, memory_of, tensors_of

Arguments = dict[str, Any]

LARGEST = 1 << 20  # elements of a sample that is checked


class Fault(AssertionError):  # noqa: N818 - what a check finds is a fault
    """A check has found that an op does not do what it declares. The text says with which arguments."""


class NotApplicable(Exception):  # noqa: N818 - an answer, not an error
    """A check has nothing to look at, for the reason that the text gives."""


@contextlib.contextmanager
def conditions() -> Iterator[None]:
    """The conditions of checks: no gradients, the same random numbers, fresh tensors of NaN or the largest integer."""
    before = torch.get_deterministic_debug_mode()
    every_gpu = range(torch.cuda.device_count())  # named, as PyTorch warns of more than one otherwise
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(every_gpu):
        warnings.filterwarnings("ignore", message=".*deterministic", category=UserWarning)
        torch.manual_seed(0)
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import all of torch.compile
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)


@dataclass(frozen=True)
class Subject:
    """An op on a device, where its samples are."""

    op: Op
    device: torch.device

    def __str__(self) -> str:
        return f"{self.op.family}.{self.op.name}"

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.op.function)

    @functools.cached_property
    def takes_tensors(self) -> bool:
        return any("Tensor" in str(parameter.annotation) for parameter in self.signature.parameters.values())

    @functools.cached_property
    def reference(self) -> Callable[..., Any]:
        return self._declared("reference")  # type: ignore[no-any-return]

    @functools.cached_property
    def as_sampled(self) -> Mapping[str, str]:
        """The arguments that have no other values than the samples', and why: the reference says it."""
        said: Any = getattr(self.reference, "as_sampled", {})
        reasons = said.items() if isinstance(said, Mapping) else [("", "")]
        if not all(x in self.signature.parameters and isinstance(why, str) and why.strip() for x, why in reasons):
            raise Fault(f"{self.reference.__name__}.as_sampled is {said}: it must name arguments, each with a reason")
        return dict(said)

    @functools.cached_property
    def samples(self) -> list[Arguments]:
        """The op's samples on the device. Raises Fault where there are none, NotApplicable where none could be."""
        make = self._declared("samples")
        torch.manual_seed(0)
        made = make(self.device)
        if not isinstance(made, Iterable):
            raise Fault(f"samples returns {made!r}, and must yield the arguments of calls")
        found = list(made)
        if not found:
            raise NotApplicable(f"samples yields nothing on {self.device.type}")
        for number, sample in enumerate(found):
            try:
                self.signature.bind(**sample)
            except TypeError as error:  # noqa: PERF203 - the first ends it
                raise Fault(f"sample {number} is no call of {self}{self.signature}: {error}") from error
        return found

    def _declared(self, kind: str) -> Any:
        """The op's function of a kind, "reference" or "samples"."""
        if (found := getattr(self.op, kind)) is not None:
            return found
        if self.takes_tensors:
            raise Fault(
                f"the op has no {kind}: write a function {self.op.name} in the package's module {kind!r}, or name one "
                f'with @FAMILY.op({kind}="package.module:function")'
            )
        raise NotApplicable(f"it takes no tensor and has no {kind}")

    @functools.cached_property
    def checked(self) -> list[Arguments]:
        """The samples that the reference can judge."""
        found = [sample for sample in self.samples if _size(sample) <= LARGEST]
        if not found:
            raise NotApplicable(f"every sample has more than {LARGEST} elements")
        return found

    @functools.cached_property
    def picked(self) -> list[Arguments]:
        """One sample of each kind: of each combination of dtypes, dimensions and options."""
        kinds: dict[Any, list[Arguments]] = {}
        for sample in self.checked:
            kinds.setdefault(_kind(sample), []).append(sample)
        return [_of_moderate_size(samples) for samples in kinds.values()]

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the op, and wait for the device."""
        note_call(lambda: f"{self}: {described(arguments)}")
        result = self.op.function(**arguments)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return result

    def expected(self, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The reference's result, and the arguments as it leaves them; on copies, in float64 where it can.

        Raises:
            Fault: it writes what ``mutates`` does not name.
        """
        try:
            return self._expected(arguments, widen=True)
        except Fault:
            raise
        except Exception:  # noqa: BLE001 - a reference may insist on dtypes
            return self._expected(arguments, widen=False)

    def _expected(self, arguments: Mapping[str, Any], widen: bool) -> tuple[Any, dict[str, Any]]:
        led_to = any(memory_of(tensor) is not tensor for _, tensor in tensors_of(arguments))
        copies = {name: _copied(value, widen and not led_to) for name, value in leading_to_copies(arguments).items()}
        found = [(name, memory_of(tensor)) for name, tensor in tensors_of(copies)]
        written = {memory.untyped_storage().data_ptr() for name, memory in found if name in self.op.mutates}
        # Addresses may lead twice into one storage.
        others = [(name, memory) for name, memory in found if memory.untyped_storage().data_ptr() not in written]
        before = [memory.clone() for _, memory in others]
        result = self.reference(**copies)
        for (name, memory), earlier in zip(others, before, strict=True):
            if not same_bits(memory, earlier):
                raise Fault(f"the reference writes {name}, and mutates does not name it")
        return result, {
            name: map_tensors(lambda one: memory_of(one).clone(), copies.get(name)) for name in self.op.mutates
        }

    def judge(
        self, arguments: Mapping[str, Any], what: str = "", *, poison: bool = False, may_refuse: bool = False
    ) -> bool:
        """Call the op in guarded memory and compare with the reference. Returns whether both took the call.

        Args:
            what: how the arguments differ from a sample, for the fault.
            poison: make what it writes to NaN before.
            may_refuse: a ValueError is fine, and so is whatever the reference does not take.

        Raises:
            Fault: it gives another result, writes elsewhere, or raises.
        """
        guarded = Guarded(arguments)
        if poison:
            guarded.poison(self.op.mutates)
            guarded.start()
        told = f"{what}{': ' if what else ''}{described(guarded.arguments)}"
        try:
            wanted = self.expected(guarded.arguments)
        except Exception as error:
            if isinstance(error, Fault):
                raise Fault(f"{told}: {error}") from error
            if may_refuse:
                return False
            raise Fault(f"{told}: the reference raises {type(error).__name__}: {error}") from error
        try:
            result = self.call(guarded.arguments)
        except Exception as error:
            if may_refuse and is_refusal(error):
                if damage := guarded.damage(()):
                    raise Fault(f"{told}: refused, and yet {damage}") from error
                return False
            raise Fault(f"{told}: the op raises {type(error).__name__}: {error}") from error
        self.compare(guarded, result, wanted, told)
        return True

    def compare(self, guarded: Guarded, result: Any, wanted: tuple[Any, dict[str, Any]], told: str) -> None:
        """Raise Fault where a call's results are not the reference's, or it wrote elsewhere."""
        if text := differing(guarded.arguments, result, wanted):
            raise Fault(f"{told}: {text}")
        if damage := guarded.damage(self.op.mutates):
            raise Fault(f"{told}: {damage}")


def compared(
    arguments: Mapping[str, Any], result: Any, wanted: tuple[Any, dict[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """The results of a call beside the reference's, tensor by tensor, each with its name."""
    written = [(name, map_tensors(memory_of, arguments.get(name)), value) for name, value in wanted[1].items()]
    for name, one, other in [*written, ("the result", result, wanted[0])]:
        yield from ((name, got, right) for got, right in pairs(one, other))


def differing(arguments: Mapping[str, Any], result: Any, wanted: tuple[Any, dict[str, Any]]) -> str | None:
    """Where the results of a call are not the reference's, in words; None where they are."""
    narrow = [t.dtype for _, t in tensors_of(arguments) if t.is_floating_point() and t.itemsize == 2]
    for name, got, right in compared(arguments, result, wanted):
        # A reference that takes only the op's dtypes may round to that of its input, and the op to the other neighbour.
        is_rounded = bool(narrow) and name in arguments and getattr(right, "dtype", None) == torch.float32
        if text := difference(got, right, narrow[0] if is_rounded else None):
            return f"{name} {text}"
    return None


def is_refusal(error: Exception) -> bool:
    """Whether an exception says that the arguments are not taken."""
    return isinstance(error, ValueError) and not isinstance(error, InvalidFamilyError | InvalidBuildError)


def described(arguments: Mapping[str, Any]) -> str:
    """Arguments in a few words."""
    return ", ".join(f"{name} {_describe(value)}" for name, value in arguments.items())


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = list(value.stride()) if value.layout is torch.strided else value.layout
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} strides {strides}"
    return f"[{', '.join(map(_describe, value))}]" if isinstance(value, list | tuple) else repr(value)


def pairs(got: Any, wanted: Any) -> list[tuple[Any, Any]]:
    """The values of a result beside those of the reference's, those in lists one by one."""
    if isinstance(got, list | tuple) and isinstance(wanted, list | tuple) and len(got) == len(wanted):
        return [pair for one, other in zip(got, wanted, strict=True) for pair in pairs(one, other)]
    return [(got, wanted)]


def _copied(value: Any, widen: bool) -> Any:
    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if memory_of(tensor) is not tensor:
            return tensor
        copy: torch.Tensor = tensor.clone(memory_format=torch.contiguous_format)
        return copy.double() if widen and tensor.is_floating_point() else copy

    return map_tensors(copied, value)


def _size(sample: Arguments) -> int:
    return sum(int(memory_of(tensor).numel()) for _, tensor in tensors_of(sample))


def _kind(sample: Arguments) -> tuple[Any, ...]:
    def kind(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.dim(), value.is_contiguous(), value.device.type
        return value if isinstance(value, bool | str) else type(value)

    return tuple((name, kind(value)) for name, value in sample.items())


def _of_moderate_size(samples: list[Arguments]) -> Arguments:
    """One whose tensors are not empty, and not the smallest, where there is one."""
    full = [one for one in samples if all(tensor.numel() > 0 for _, tensor in tensors_of(one))] or samples
    return sorted(full, key=_size)[len(full) // 3]
