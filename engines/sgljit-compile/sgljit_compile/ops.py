"""Which op of ours stands for a chain, and does it work for tensors of some kind?"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from sgljit_core import ops as families
from sgljit_core.errors import SgljitError, TensorMatchError
from sgljit_engines.kernels import MOST_ELEMENTS, try_rows

from .adapter import ADAPTER, FAMILIES
from .graphs import Refused, is_known

__all__ = ["ADD_NORM", "HEADS", "ROUTING", "SORTING", "WINDOW", "functions", "identity", "loads", "overload", "works"]

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
WINDOW = "append_to_window"

# By family, an op and the tensors of a call without tokens: the shape of each, or of positions and ids in a list.
_EMPTY: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "norm": ("fused_add_rmsnorm", ((0, 8), (0, 8), (8,))),
    "rope": ("apply_rope_inplace", ((0, 1, 8), (0, 1, 8), (1, 8), [0])),
    "kvcache": (WINDOW, ((0, 1, 1, 8), (0, 1, 1, 8), (0, 1, 1, 8), (0, 1, 1, 8))),
    "moe": (ROUTING, ((0, 2), [0, 2], (0, 8))),
}

_ROWS = 64  # of the tensors that an op is tried on
_BY_ROWS = {"cuda"}  # devices where the number of rows chooses the kernel

_answers: dict[tuple[Any, ...], dict[Any, bool]] = {}


def overload(op: str) -> Any:
    """The ``torch.library`` op of an op's function, which is its one overload."""
    family = FAMILIES[op]
    getattr(families[family], op)  # registers it
    packet = getattr(getattr(torch.ops, f"sgljit_{family}"), op)
    return getattr(packet, packet.overloads()[0])


def functions(ops: Iterable[str]) -> dict[Any, str]:
    """By overload, the name of an op's Python function in ``sgljit_compile.calls``."""
    return {overload(op): f"{__package__}.calls.{op}" for op in ops}


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


def works(op: str, kind: tuple[Any, ...], arguments: Mapping[str, Any], most: int | None = None) -> bool:
    """Whether an op takes tensors of the strides and dtypes of these fake ones; what must be built for it is built.

    Args:
        op: the op.
        kind: what ``report`` calls such tensors.
        arguments: of the op. The tensors it is called with are new and hold zeros.
        most: the rows of a tensor that has more, or whose number is not known. By default a GPU gets as many rows as
            the graph has, or few and many where their number is not known: a graph cannot do without the op later.
    """
    limit = _ROWS if most is None else most
    signature: tuple[Any, ...] = tuple(
        (name, _layout(x, limit) if isinstance(x, torch.Tensor) else x) for name, x in arguments.items()
    )
    call = functools.partial(_try, op, arguments, limit)
    rows = arguments.get("q", next(x for x in arguments.values() if isinstance(x, torch.Tensor)))
    if most is None and rows.device.type in _BY_ROWS:
        call = functools.partial(_try_all, op, arguments, rows)
        signature += (rows.shape[0] if is_known(rows.shape[0]) else None,)
    return ADAPTER.attempt_once(op, call, _answers.setdefault(signature, {}), (op, *kind))


def _layout(x: torch.Tensor, most: int) -> tuple[Any, ...]:
    return (*_sizes(x, most), *_strides(x, most), x.dtype, x.device)


def _sizes(x: torch.Tensor, most: int) -> list[int]:
    first, *rest = (size if is_known(size) else most for size in x.shape)
    is_weight = x.dim() == 1 and x.dtype.is_floating_point
    return [first if is_weight else min(first, most), *rest]


def _strides(x: torch.Tensor, most: int) -> list[int]:
    if all(is_known(stride) for stride in x.stride()):
        return list(x.stride())
    strides, step = list[int](), 1
    for size in reversed(_sizes(x, most)):
        strides.insert(0, step)
        step *= size
    return strides


def _try_all(op: str, arguments: Mapping[str, Any], like: torch.Tensor) -> None:
    """``_try`` with as many rows as a tensor has, or with few and many."""
    tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]

    def elements(rows: int) -> int:
        return max(_extent(x, rows) for x in tensors)

    def call(rows: int) -> None:
        if rows == 1:
            _try(op, arguments, rows)
        elif elements(rows) <= MOST_ELEMENTS:
            with contextlib.suppress(Refused):  # no memory is left for so many
                _try(op, arguments, rows)

    if all(is_known(size) for x in tensors for size in x.shape):
        row = max(1, elements(2) - elements(1))
        _try(op, arguments, max(1, min(like.shape[0], MOST_ELEMENTS // row)))
    else:
        try_rows(call, 1, like.device.type)


def _try(op: str, arguments: Mapping[str, Any], most: int) -> None:
    """Call an op on real tensors like some fake ones. Indices are zeros; so no more than their first row is read."""
    try:
        samples = {name: _sample(x, most) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
        getattr(families[FAMILIES[op]], op)(**samples)
    except ValueError as error:  # rows that share memory
        raise TensorMatchError(str(error)) from error
    except torch.OutOfMemoryError as error:  # tensors as far apart as caches are; another time there may be room
        raise Refused("no memory was left to try it") from error


def _sample(x: torch.Tensor, most: int) -> torch.Tensor:
    memory = torch.zeros(_extent(x, most), dtype=x.dtype, device=x.device)
    return memory.as_strided(_sizes(x, most), _strides(x, most))


def _extent(x: torch.Tensor, most: int) -> int:
    """Elements from the first to the last; what lies between rows is memory, too."""
    pairs = zip(_sizes(x, most), _strides(x, most), strict=True)
    return max(0, 1 + sum((size - 1) * stride for size, stride in pairs))
