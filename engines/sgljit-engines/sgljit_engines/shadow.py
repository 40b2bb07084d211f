"""Do ops give what the engine's own code gives, on the numbers that a model really computes?

``SGLJIT_SHADOW=0.001`` compares a share of the calls. Such a call runs three times: by the op and by the engine's own
code on copies, as either may write in place, and then as ever. An op that differs by more than its bound is taken out
of use before that. Calls are counted, not drawn: a model's random numbers stay what they are. The distances change, so
that not each time the same layer is met. Nothing is compared in torch.compile, in a CUDA graph, or with gradients.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import importlib_metadata
import torch

from .agreement import difference, map_tensors, same_bits, share, span, tensors_in
from .errors import DisagreementError

if TYPE_CHECKING:
    from .adapter import Adapter

Seam = Callable[..., Any]

_is_compiling = torch.compiler.is_compiling
_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST = 1 << 28  # bytes that are copied at a time: the engine has filled the memory with its cache
_LARGEST = 1 << 26  # bytes of a tensor that is written to a file


@dataclass(eq=False)
class Shadow:
    """A function in the place of the one at a seam, which compares some of its calls.

    Attributes:
        adapter, op, seam: as those of ``Adapter.shadowed``.
        one_of: the number of calls of which one is compared.
        outcome: ``outcome(run, *args, **kwargs)`` gives what is compared of a call, where copies of all arguments would
            be too large: ``run`` copies what it is given. By default the result, or, if that is None, all arguments.
        lose: takes an op out of use for an error.
        numbers: counts the calls. ``next`` takes a number in one step, so that two threads never get the same.
        due, turns: the number of the call that is compared next, and how many were.
        lost: the ops that were taken out of use.
    """

    adapter: Adapter
    op: str | Callable[..., str]
    seam: Seam
    one_of: float
    outcome: Callable[..., Any] | None = None
    lose: Callable[[str, DisagreementError], object] | None = None
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    due: int = 1
    turns: int = 0
    lost: set[str] = field(default_factory=set)

    def __call__(self, theirs: Seam, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or ((number := next(self.numbers)) < self.due and not self.lost):
            return self.seam(theirs, *args, **kwargs)
        return self.compared(number, theirs, *args, **kwargs)

    def compared(self, number: int, theirs: Seam, *args: Any, **kwargs: Any) -> Any:
        """A call that is due, or after an op was lost."""
        name = self.op if isinstance(self.op, str) else self.op(*args, **kwargs)
        if number >= self.due:
            self.turns += 1
            self.due = number + max(1, round(self.one_of * (0.5 + self.turns * _GOLDEN % 1)))
            if name not in self.lost and not torch.is_grad_enabled() and _are_plain([*tensors_in([args, kwargs])]):
                self._compare(name, number, theirs, args, kwargs)
        return theirs(*args, **kwargs) if name in self.lost else self.seam(theirs, *args, **kwargs)

    def _compare(self, name: str, number: int, theirs: Seam, args: Any, kwargs: Any) -> None:
        runs: list[bool] = []  # of the engine's own code, which the seam calls for what the op does not take

        def noted(*args: Any, **kwargs: Any) -> Any:
            runs.append(True)
            return theirs(*args, **kwargs)

        try:
            before = self.adapter.own_runs.total()
            got = self._outcome(functools.partial(self.seam, noted), args, kwargs)
            if runs or self.adapter.own_runs.total() != before:  # two runs of the same code
                return
            wanted = self._outcome(theirs, args, kwargs)
            pairs = zip(tensors_in(got), tensors_in(wanted), strict=True)
            worst, words = max((_judged(*pair, self.adapter.exact) for pair in pairs), default=(0.0, ""))
        except Exception as error:  # noqa: BLE001 - the call itself comes after this, and raises what it raises
            text = f"cannot compare a call of {name} with the engine's own code: {type(error).__name__}: {error}"
            self.adapter.say_once(logging.WARNING, "engine_shadow", text)
            return
        use = self.adapter.use(name, (name, f"SGLJIT_SHADOW={1 / self.one_of:g}"))
        use.compared += 1
        if worst > 2 * use.worst:
            text = f"{name} differs from the engine's own code by {worst:.2g} of its bound in call {number}"
            self.adapter.say(logging.INFO, "engine_shadow", text, op=name, worst=worst)
        use.worst = max(use.worst, worst)
        if worst > 1:
            found = {"ours": list(tensors_in(got)), "theirs": list(tensors_in(wanted)), "difference": words}
            self.lost.add(name)
            path = self._keep(name, found, args, kwargs)
            (self.lose or self.adapter.lose)(name, DisagreementError(name, number, words, path))

    def _outcome(self, function: Seam, args: Any, kwargs: Any) -> Any:
        run = functools.partial(_run, function)
        return self.outcome(run, *args, **kwargs) if self.outcome else run(*args, **kwargs)

    def _keep(self, name: str, found: dict[str, Any], args: Any, kwargs: Any) -> Path | str:
        """Write a call to a file that only this user can read; its path, or why there is none."""
        family = next(family for family, ops in self.adapter.ops.items() if name in ops)
        named = {self.adapter.distribution, *self.adapter.engine, "sgljit-core", f"sgljit-{family}", "torch"}
        found["versions"] = {one.name: one.version for one in importlib_metadata.distributions() if one.name in named}
        try:
            path = Path(tempfile.mkdtemp(prefix="sgljit-shadow-")) / f"{name}.pt"
            torch.save(_plain({"op": f"{family}.{name}", "args": args, "kwargs": kwargs, **found}), path)
        except (OSError, RuntimeError) as error:
            return f"nowhere, as no file could be written ({error})"
        return path


def _run(function: Seam, *args: Any, **kwargs: Any) -> Any:
    """The result of a function for copies of its arguments; if there is none, the copies, which it wrote to."""
    copies: dict[Any, torch.Tensor] = {}
    args, kwargs = map_tensors(functools.partial(_copy, copies), (args, kwargs))
    result = function(*args, **kwargs)
    return (args, kwargs) if result is None else result


def _copy(copies: dict[Any, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """A copy, the same for arguments that are one tensor."""
    key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
    if key not in copies:
        if span(tensor) + sum(map(span, copies.values())) > _MOST:
            raise MemoryError(f"it has more than {_MOST >> 20} MiB of tensors")
        if 0 in tensor.stride():  # elements that share memory cannot be written
            copies[key] = tensor.clone()
        else:  # the strides of the call, such as those of a part of a projection
            copies[key] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            copies[key].copy_(tensor)
    return copies[key]


def _are_plain(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors have values that may be read now."""
    if any(type(one) not in (torch.Tensor, torch.nn.Parameter) for one in tensors):
        return False
    return not any(one.is_cuda for one in tensors) or not torch.cuda.is_current_stream_capturing()


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
        if value.nbytes > _LARGEST:  # such as a cache, which holds what others asked
            return f"a tensor of {tuple(value.shape)}, strides {value.stride()}, {value.dtype} on {value.device}"
        return value.detach().cpu().clone()
    return value if isinstance(value, int | float | str | torch.dtype | None) else repr(value)


def _judged(got: torch.Tensor, wanted: torch.Tensor, bits: bool) -> tuple[float, str]:
    """The share of the bound that two results differ by, and their difference in words; the bound may be their bits."""
    if bits and got.shape == wanted.shape:
        differs = not same_bits(got, wanted)
        return differs and math.inf, f"has other bits: {int((got != wanted).sum())} of {got.numel()} elements differ"
    worst = share(got, wanted)
    return worst, (difference(got, wanted) or "") if worst > 1 else ""
