"""Does an op work for a kind of call? Its family is imported, and its kernels built, when that is first asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from sgljit_core import ops

from . import ADAPTER

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DEVICES = ("cpu", "cuda")

Op = Callable[..., Any]
Kind = tuple[Any, ...]

_tried: dict[Kind, bool] = {}
_found: dict[str, Op] = {}


def works(name: str, kind: Kind, trial: Callable[[Op], object]) -> bool:
    """Whether an op may be used for a kind of call; the first question imports its family and builds its kernels.

    Args:
        name: the op.
        kind: what its kernels depend on.
        trial: calls the op that it is given, on tensors of its own.
    """
    return ADAPTER.attempt_once(name, lambda: trial(_op(name)), _tried, (name, *kind))


def worked(name: str, kind: Kind) -> bool:
    """Whether ``works`` said yes, and the op was not lost since. Nothing is imported or built."""
    return _tried.get((name, *kind), False) and ADAPTER.attempt(name, lambda: None)


def working(names: Iterable[str]) -> list[Kind]:
    """All for which ``worked`` is true of some ops, each behind its op."""
    return [(name, *kind) for name, *kind in _tried if name in names and worked(name, tuple(kind))]


def ran(name: str, *args: Any) -> bool:
    """Call an op; whether it ran. If not, it has written nothing, and vLLM's own code must run.

    A kernel also depends on what ``works`` does not ask for, such as strides.
    """
    if torch.compiler.is_compiling():  # a graph has the op alone, for whose kind ``works`` said yes before
        _found[name](*args)
        return True
    return ADAPTER.attempt(name, lambda: _op(name)(*args))


def _op(name: str) -> Op:
    if name not in _found:
        family = next(family for family, names in ADAPTER.ops.items() if name in names)
        _found[name] = getattr(ops[family], name)
    return _found[name]
