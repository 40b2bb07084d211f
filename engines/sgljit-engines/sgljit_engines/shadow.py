"""Do ops give what the engine's own code gives, on the numbers that a model really computes?

``SGLJIT_SHADOW=0.001`` compares a share of the calls. Such a call runs three times: by the op and by the engine's own
code on copies of its arguments, as either may write in place, and then as ever. An op whose results differ by more than
its bound is taken out of use before that last time.

Which calls are compared is counted, not drawn: the random numbers of a model stay what they are. The distances between
them change, so that a model whose layers repeat does not meet the same layer each time. Nothing is compared while
torch.compile traces, while a CUDA graph is captured, or with gradients.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .agreement import difference, same_bits, share
from .errors import DisagreementError

if TYPE_CHECKING:
    from .adapter import Adapter

Seam = Callable[..., Any]
Run = Callable[..., Any]

_is_compiling = torch.compiler.is_compiling
_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST = 1 << 28  # bytes that are copied at a time: the engine has filled the memory with its cache


class Shadow:
    """A function in the place of the one at a seam, which compares some of its calls.

    Attributes:
        adapter: whose ops they are.
        op: the op's name, or what gives it for the arguments of a call.
        seam: calls the op, or else its first argument, the engine's own code, with the other arguments.
        one_of: the number of calls of which one is compared.
        outcome: what of a call is compared, for a function that runs it, and the arguments: for those whose tensors are
            too many to copy, or whose results are equally right where they differ. By default what is returned, or else
            all arguments.
        lose: takes an op out of use for an error.
        turns: for each call whether it is one to compare.
        calls: the number of the call that is compared next, or now.
        lost: the ops that were taken out of use.
    """

    def __init__(
        self,
        adapter: Adapter,
        op: str | Callable[..., str],
        seam: Seam,
        one_of: float,
        outcome: Callable[..., Any] | None = None,
        lose: Callable[[str, DisagreementError], object] | None = None,
    ) -> None:
        self.adapter, self.op, self.seam, self.one_of = adapter, op, seam, one_of
        self.outcome = outcome or (lambda run, *args, **kwargs: run(*args, **kwargs))
        self.lose = lose or self._lose
        self.calls = 0
        self.lost: set[str] = set()
        self.turns: Iterator[bool] = itertools.chain.from_iterable(
            self._turns()
        )  # asked in each call, so it takes no Python code

    def __call__(self, theirs: Seam, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or not (len(self.lost) or next(self.turns)):
            return self.seam(theirs, *args, **kwargs)
        return self.compared(theirs, *args, **kwargs)

    def compared(self, theirs: Seam, *args: Any, **kwargs: Any) -> Any:
        """A call whose turn it is, and any after an op was lost."""
        name = self._name(args, kwargs)
        if name not in self.lost and (not self.lost or next(self.turns)):
            self._compare(theirs, args, kwargs)
        if name in self.lost:
            return theirs(*args, **kwargs)
        return self.seam(theirs, *args, **kwargs)

    def _turns(self) -> Iterator[Iterable[bool]]:
        """For each call whether it is one to compare: the first, and then one in each stretch."""
        for number in itertools.count():
            distance = max(1, round(self.one_of * (0.5 + number * _GOLDEN % 1))) if number else 1
            self.calls += distance
            yield itertools.chain(itertools.repeat(False, distance - 1), (True,))

    def _name(self, args: Any, kwargs: Any) -> str:
        return self.op if isinstance(self.op, str) else self.op(*args, **kwargs)

    def _compare(self, theirs: Seam, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() or not _are_plain([*tensors_of([args, kwargs])]):
            return
        runs: list[bool] = []  # of the engine's own code, which the seam calls for what the op does not take

        def noted(*args: Any, **kwargs: Any) -> Any:
            runs.append(True)
            return theirs(*args, **kwargs)

        name = self._name(args, kwargs)
        try:
            got = self.outcome(functools.partial(_run, functools.partial(self.seam, noted)), *args, **kwargs)
            if runs:
                return
            wanted = self.outcome(functools.partial(_run, theirs), *args, **kwargs)
            pairs = list(zip(tensors_of(got), tensors_of(wanted), strict=True))
            bits = self.adapter.exact
            worst = max((_of_bound(*pair, bits) for pair in pairs), default=0.0)
        except Exception as error:  # noqa: BLE001 - the call itself comes after this, and raises what it raises
            text = f"cannot compare a call of {name} with the engine's own code: {type(error).__name__}: {error}"
            self.adapter.say_once(logging.WARNING, "engine_shadow", text)
            return
        use = self.adapter.use(name, (name, f"SGLJIT_SHADOW={1 / self.one_of:g}"))
        use.compared += 1
        if worst > 2 * use.worst:
            text = f"{name} differs from the engine's own code by {worst:.2g} of its bound in call {self.calls}"
            self.adapter.say(logging.INFO, "engine_shadow", text, op=name, worst=worst)
        use.worst = max(use.worst, worst)
        if worst > 1:
            words = next(filter(None, (_words(*pair, bits) for pair in pairs)), f"differs by {worst:.2g} of its bound")
            found = {"ours": list(tensors_of(got)), "theirs": list(tensors_of(wanted)), "difference": words}
            self.lost.add(name)
            self.lose(name, DisagreementError(name, self.calls, words, self._keep(name, found, args, kwargs)))

    def _keep(self, name: str, found: dict[str, Any], args: Any, kwargs: Any) -> Path | str:
        """Write a call to a file that only this user can read; its path, or why there is none."""
        family = next(family for family, ops in self.adapter.ops.items() if name in ops)
        distributions = [self.adapter.distribution, *self.adapter.engine, "sgljit-core", f"sgljit-{family}", "torch"]
        call = {"op": f"{family}.{name}", "versions": dict(_versions(distributions)), "args": args, "kwargs": kwargs}
        try:
            path = Path(tempfile.mkdtemp(prefix="sgljit-shadow-")) / f"{name}.pt"
            torch.save(_plain({**call, **found}), path)
        except (OSError, RuntimeError) as error:
            return f"nowhere, as no file could be written ({error})"
        return path

    def _lose(self, name: str, error: DisagreementError) -> None:
        def fail() -> None:
            raise error

        self.adapter.attempt(name, fail)


def _run(function: Seam, *args: Any, **kwargs: Any) -> Any:
    """What a function returns for copies of its arguments, or else these arguments, which it has written to."""
    copies: dict[Any, torch.Tensor] = {}
    args, kwargs = _mapped(functools.partial(_copy, copies), (args, kwargs))
    result = function(*args, **kwargs)
    return (args, kwargs) if result is None else result


def _copy(copies: dict[Any, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """A copy, the same for arguments that are one tensor."""
    key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    if key not in copies:
        if tensor.nbytes + sum(copy.nbytes for copy in copies.values()) > _MOST:
            raise MemoryError(f"it has more than {_MOST >> 20} MiB of tensors")
        copies[key] = tensor.clone()
    return copies[key]


def _are_plain(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors have values that may be read now."""
    if any(type(one) not in (torch.Tensor, torch.nn.Parameter) for one in tensors):
        return False
    return not any(one.is_cuda for one in tensors) or not torch.cuda.is_current_stream_capturing()


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(one)


def _mapped(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Arguments with another value in the place of each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _mapped(function, one) for key, one in value.items()}
    return tuple(_mapped(function, one) for one in value) if type(value) in (list, tuple) else value


def _plain(value: Any) -> Any:
    """A value that ``torch.load`` reads without code of others: a layer as its class, numbers and parameters."""
    if isinstance(value, torch.nn.Module):
        numbers = {name: one for name, one in vars(value).items() if isinstance(one, int | float | str)}
        return {"layer": type(value).__qualname__, **numbers, **_plain(value.state_dict())}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return value if isinstance(value, int | float | str | torch.dtype | None) else repr(value)


def _of_bound(got: torch.Tensor, wanted: torch.Tensor, bits: bool) -> float:
    if bits:
        return 0.0 if same_bits(got, wanted) else math.inf
    return share(got, wanted)


def _words(got: torch.Tensor, wanted: torch.Tensor, bits: bool) -> str | None:
    if bits and got.shape == wanted.shape and not same_bits(got, wanted):
        return f"has other bits: {int((got != wanted).sum())} of {got.numel()} elements differ"
    return difference(got, wanted)


def _versions(distributions: list[str]) -> Iterator[tuple[str, str]]:
    for name in distributions:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # noqa: PERF203 - an engine of two names
            continue
