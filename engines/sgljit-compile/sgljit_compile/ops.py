"""Which op of ours stands for a chain, and does it work for tensors of some kind?"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from sgljit_core import ops as families
from sgljit_core.errors import SgljitError, TensorMatchError
from sgljit_engines.kernels import MOST_ELEMENTS, try_rows

from .adapter import ADAPTER, FAMILIES
from .graphs import Refused, is_known

__all__ = [
    "ADD_NORM",
    "BY_ROWS",
    "FAILED",
    "HEADS",
    "MATVEC",
    "ROUTING",
    "SORTING",
    "TRIALS",
    "WINDOW",
    "Trial",
    "functions",
    "identity",
    "lines",
    "loads",
    "overload",
    "passes",
    "works",
]

# By whether another norm is before the addition, and whether the norms multiply by 1 + weight.
ADD_NORM: Mapping[tuple[bool, bool], str] = {
    (False, False): "fused_add_rmsnorm",
    (False, True): "gemma_fused_add_rmsnorm",
    (True, False): "fused_rmsnorm_add_rmsnorm",
    (True, True): "gemma_fused_rmsnorm_add_rmsnorm",
}

# By whether the heads are normalised, and whether they are stored.
HEADS: Mapping[tuple[bool, bool], str] = {
    (True, True): "fused_qk_norm_rope_with_kvcache",
    (True, False): "fused_qk_norm_rope",
    (False, True): "apply_rope_inplace_with_kvcache",
    (False, False): "apply_rope_inplace",
}

ROUTING = "topk_softmax"
SORTING = "sort_by_expert"
MATVEC = "expert_matvec"
WINDOW = "append_to_window"

# By family, an op and the tensors of a call without tokens: the shape of each, or of positions and ids in a list.
_EMPTY: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "norm": ("fused_add_rmsnorm", ((0, 8), (0, 8), (8,))),
    "rope": ("apply_rope_inplace", ((0, 1, 8), (0, 1, 8), (1, 8), [0])),
    "kvcache": (WINDOW, ((0, 1, 1, 8), (0, 1, 1, 8), (0, 1, 1, 8), (0, 1, 1, 8))),
    "moe": (ROUTING, ((0, 2), [0, 2], (0, 8))),
}

_ROWS = 64  # of the tensors that an op is tried on
BY_ROWS = {"cuda"}  # devices where the number of rows chooses the kernel

_answers: dict[tuple[Any, ...], dict[Any, bool]] = {}

TRIALS: list[Trial] = []  # of the ops that were put into the graphs of a compilation
FAILED: set[str] = set()  # ops whose trial failed when a graph was loaded


def overload(op: str) -> Any:
    """The ``torch.library`` op of an op's function, which is its one overload."""
    family = FAMILIES[op]
    getattr(families[family], op)  # registers it
    packet = getattr(getattr(torch.ops, f"sgljit_{family}"), op)
    return getattr(packet, packet.overloads()[0])


def functions(ops: Iterable[str]) -> dict[Any, str]:
    """By overload, the name of an op's Python function in ``sgljit_compile.calls``."""
    return {overload(op): f"{__package__}.calls.{op}" for op in ops}


def lines() -> list[str]:
    """The lines with which the code of a graph makes the trials of its ops when it is loaded.

    Torch's caches may have a graph whose kernels are lost, and it cannot do without them later.
    """
    trials = dict.fromkeys(trial.literal() for trial in TRIALS)
    return [f"from {__package__}.calls import check as sgljit_check", *(f"sgljit_check{text}" for text in trials)]


def loads(ops: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The ops among these whose family's host part loads. A graph from torch's caches calls them without a question.

    A call without tokens needs the host part alone.
    """
    lost = {family for family in _EMPTY if not _loads(family, ops)}
    return {op: devices for op, devices in ops.items() if FAMILIES[op] not in lost}


def _loads(family: str, ops: Mapping[str, frozenset[str]]) -> bool:
    if not any(FAMILIES[op] == family for op in ops):
        return True
    op, shapes = _EMPTY[family]
    arguments = [torch.zeros(x, dtype=torch.int64 if isinstance(x, list) else torch.float32) for x in shapes]
    try:
        getattr(families[family], op)(*arguments)
    except (SgljitError, OSError) as error:
        return ADAPTER.attempt(op, functools.partial(_fail, error))
    return True


def _fail(error: Exception) -> None:
    raise error


def identity(ops: Mapping[str, frozenset[str]]) -> str:
    """The ops as a part of the keys of torch's caches. Their names hold a digest of what a graph relies on."""
    return " ".join(f"{overload(op)} {sorted(devices)}" for op, devices in sorted(ops.items()))


class Like(NamedTuple):
    """A tensor before a graph runs; a size or a stride is None if the graph does not know it."""

    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    dtype: str
    device: str

    def with_rows(self, most: int) -> tuple[list[int], list[int]]:
        """Sizes and strides with so many rows at most, and with as many for each size that is not known."""
        first, *rest = (most if size is None else size for size in self.sizes)
        is_weight = len(self.sizes) == 1 and "float" in self.dtype
        sizes = [first if is_weight else min(first, most), *rest]
        dense = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        return sizes, dense if None in self.strides else [stride or 0 for stride in self.strides]

    def extent(self, most: int) -> int:
        """Elements from the first to the last; what lies between rows is memory, too."""
        return max(0, 1 + sum((size - 1) * stride for size, stride in zip(*self.with_rows(most), strict=True)))


class Trial(NamedTuple):
    """A call that says whether an op may be in a graph: ``arguments`` has a ``Like`` for each tensor."""

    op: str
    kind: tuple[str, ...]
    arguments: dict[str, Any]
    most: int | None

    @property
    def likes(self) -> list[Like]:
        return [x for x in self.arguments.values() if isinstance(x, Like)]

    def literal(self) -> str:
        """Python's literal of it, which ``from_literal`` takes."""
        arguments = {name: tuple(x) if isinstance(x, Like) else x for name, x in self.arguments.items()}
        return repr((*self[:2], arguments, self.most))

    @classmethod
    def from_literal(cls, op: str, kind: tuple[str, ...], arguments: dict[str, Any], most: int | None) -> Trial:
        return cls(op, kind, {name: Like(*x) if isinstance(x, tuple) else x for name, x in arguments.items()}, most)


def works(op: str, kind: tuple[Any, ...], arguments: Mapping[str, Any], most: int | None = None) -> bool:
    """Whether an op takes tensors of the strides and dtypes of these fake ones; what must be built for it is built.

    Args:
        op: the op.
        kind: what ``report`` calls such tensors.
        arguments: of the op. The tensors it is called with are new and hold zeros.
        most: the rows of a tensor that has more, or whose number is not known. By default a GPU gets as many rows as
            the graph has, or few and many where their number is not known: a graph cannot do without the op later.
    """
    likes = {name: _like(x) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    trial = Trial(op, tuple(str(part).removeprefix("torch.") for part in kind), likes, most)
    if ran := passes(trial):
        TRIALS.append(trial)
    return ran


def passes(trial: Trial) -> bool:
    """Whether the call of a trial runs; it is made once in a process."""
    op, likes = trial.op, trial.likes
    rows = trial.arguments.get("q", likes[0])
    if trial.most is None and torch.device(rows.device).type in BY_ROWS:
        signature: tuple[Any, ...] = tuple(trial.arguments.items())
        call = functools.partial(_try_all, op, trial.arguments, rows)
    else:
        limit = _ROWS if trial.most is None else trial.most
        signature = tuple((n, _of_rows(x, limit) if isinstance(x, Like) else x) for n, x in trial.arguments.items())
        call = functools.partial(_try, op, trial.arguments, limit)
    return ADAPTER.attempt_once(op, call, _answers.setdefault(signature, {}), (op, *trial.kind))


def _like(x: torch.Tensor) -> Like:
    sizes, strides = (tuple(n if is_known(n) else None for n in some) for some in (x.shape, x.stride()))
    return Like(sizes, strides, str(x.dtype).removeprefix("torch."), str(x.device))


def _of_rows(like: Like, most: int) -> tuple[Any, ...]:
    return (*map(tuple, like.with_rows(most)), *like[2:])


def _try_all(op: str, arguments: Mapping[str, Any], rows: Like) -> None:
    """``_try`` with as many rows as a tensor has, or with few and many."""
    likes = [x for x in arguments.values() if isinstance(x, Like)]

    def elements(number: int) -> int:
        return max(like.extent(number) for like in likes)

    def call(number: int) -> None:
        if number == 1:
            _try(op, arguments, number)
        elif elements(number) <= MOST_ELEMENTS:
            with contextlib.suppress(Refused):  # no memory is left for so many
                _try(op, arguments, number)

    if any(None in like.sizes for like in likes):
        try_rows(call, 1, torch.device(rows.device).type)
    else:
        row = max(1, elements(2) - elements(1))
        _try(op, arguments, max(1, min(rows.with_rows(MOST_ELEMENTS)[0][0], MOST_ELEMENTS // row)))


def _try(op: str, arguments: Mapping[str, Any], most: int) -> None:
    """Call an op on real tensors like some fake ones. Indices are zeros; so no more than their first row is read."""
    try:
        samples = {name: _sample(x, most) if isinstance(x, Like) else x for name, x in arguments.items()}
        getattr(families[FAMILIES[op]], op)(**samples)
    except ValueError as error:  # rows that share memory
        raise TensorMatchError(str(error)) from error
    except torch.OutOfMemoryError as error:  # tensors as far apart as caches are; another time there may be room
        raise Refused("no memory was left to try it") from error


def _sample(like: Like, most: int) -> torch.Tensor:
    memory = torch.zeros(like.extent(most), dtype=getattr(torch, like.dtype), device=like.device)
    return memory.as_strided(*like.with_rows(most))
