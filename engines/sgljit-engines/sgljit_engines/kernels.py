"""Does an op work for a kind of call? Its family is imported, and its kernels built, when that is first asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sgljit_core import ops
from sgljit_core.errors import CompileForbiddenError, SgljitError

from .adapter import Adapter
from .uses import Use

Op = Callable[..., Any]
Kind = tuple[Any, ...]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # those of most ops

MOST_ELEMENTS = 1 << 24  # no chip has room for so many at a time
_PREPARED_ROWS = 1 << 14  # tokens that `sgljit prepare` builds for


def try_rows(call: Callable[[int], object], size: int, device: str) -> None:
    """Call an op with 1, 2, 3, 4, 5, 7, ... rows of a size: on a GPU their number chooses the kernel.

    The next number is a quarter larger, and a kernel serves a wider range. Two sorts are left to their first calls:
    kernels for more rows than there is memory for, and those that nobody prepared where nothing may be compiled.
    """
    rows, depends = 1, device == "cuda" and not torch.cuda.is_current_stream_capturing()  # a graph would keep the calls
    with contextlib.suppress(torch.OutOfMemoryError):
        while rows == 1 or (depends and rows * size <= MOST_ELEMENTS):
            is_prepared = rows <= _PREPARED_ROWS
            with contextlib.nullcontext() if is_prepared else contextlib.suppress(CompileForbiddenError):
                call(rows)
            rows += (rows + 3) // 4


class Kernels:
    """The ops of an adapter that asks before calls whether they work; ``found`` has those that were asked for."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.found: dict[str, Op] = {}
        self._tried: dict[Kind, bool] = {}
        self._uses: dict[Kind, Use] = {}
        self._asked: dict[str, Use] = {}  # by op, what was last asked for: the next call is of that kind

    def works(self, name: str, kind: Kind, trial: Callable[[Op], object]) -> bool:
        """Whether an op may be used for a kind of call; the first question imports its family and builds its kernels.

        It may not after it was lost, and graphs that are compiled from then on are without it.

        Args:
            kind: what the op's kernels depend on.
            trial: calls the op that it is given, on tensors of its own.
        """
        key = (name, *kind)
        if key not in self._tried:
            if torch.compiler.is_compiling():
                return False  # nothing is built inside of a graph
            self.adapter.attempt_once(name, lambda: trial(self.op(name)), self._tried, key)
            if key not in self._tried:
                return False  # a capture forbids the build that decides it
            self._uses[key] = self.adapter.use(name, key)
        if not (answer := self.worked(name, kind)) and not torch.compiler.is_compiling():
            self._uses[key].own_calls += 1
        return answer

    def worked(self, name: str, kind: Kind) -> bool:
        """Whether ``works`` said yes, and the op was not lost since. Nothing is imported or built."""
        if not self._tried.get(key := (name, *kind)) or name in self.adapter.lost:
            return False
        self._asked[name] = self._uses[key]
        return True

    def working(self, names: Iterable[str]) -> list[Kind]:
        """All for which ``worked`` is true of some ops, each behind its op."""
        return [(name, *kind) for name, *kind in self._tried if name in names and self.worked(name, tuple(kind))]

    def ran(self, name: str, *args: Any, **kwargs: Any) -> bool:
        """Call an op; whether it ran. If not, it has written nothing, and the engine's own code must run."""
        if torch.compiler.is_compiling():  # a graph has the op alone, for whose kind ``works`` said yes before
            if name in self.adapter.lost:
                return False
            self.found[name](*args, **kwargs)
            return True
        if (use := self._asked.get(name)) is None or name in self.adapter.lost:
            ran = self.adapter.attempt(name, lambda: self.op(name)(*args, **kwargs))
            use = use or self.adapter.use(name, ())
        else:  # most calls, which `attempt` would slow down
            try:
                self.found[name](*args, **kwargs)
                ran = True
            except (SgljitError, OSError) as error:  # a kernel also depends on strides and the number of tokens
                self.adapter.lose(name, error)
                ran = False
        use.calls += ran
        use.own_calls += not ran
        return ran

    def left(self, name: str) -> None:
        """Count a call that the engine's own code takes without a question, for ``report``."""
        if torch.compiler.is_compiling():
            return
        key = (name, "other calls")
        if key not in self._uses:
            self._uses[key] = self.adapter.use(name, key)
            self._uses[key].why = "the op does not take their options or tensors"
        self._uses[key].own_calls += 1

    def op(self, name: str) -> Op:
        """The function of an op, whose family is imported."""
        if name not in self.found:
            family = next(family for family, names in self.adapter.ops.items() if name in names)
            self.found[name] = getattr(ops[family], name)
        return self.found[name]
