"""Does an op work for a kind of call? Its family is imported, and its kernel built, when that is first asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgljit_core import ops

from . import ADAPTER

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

Op = Callable[..., Any]
Kind = tuple[object, ...]

_tried: dict[Kind, bool] = {}
_found: dict[str, Op] = {}


def works(name: str, kind: Kind, trial: Callable[[Op], object]) -> bool:
    """Whether an op may be used for a kind of call; the first question imports its family and builds its kernel.

    Args:
        name: the op.
        kind: what its kernels depend on.
        trial: calls the op that it is given, on small tensors of its own.
    """
    key = (name, *kind)
    if key not in _tried:
        if torch.compiler.is_compiling():
            return False  # nothing is built inside of a graph
        return ADAPTER.attempt_once(name, lambda: trial(_op(name)), _tried, key)
    return _tried[key]


def ran(name: str, *args: Any, **kwargs: Any) -> bool:
    """Call an op; whether it ran. If not, it has written nothing, and SGLang's own code must run.

    A kernel also depends on what ``works`` does not ask for, such as the number of tokens.
    """
    if torch.compiler.is_compiling():  # a graph has the op alone, for whose kind ``works`` said yes before
        _found[name](*args, **kwargs)
        return True
    return ADAPTER.attempt(name, lambda: _op(name)(*args, **kwargs))


def _op(name: str) -> Op:
    if name not in _found:
        family = next(family for family, names in ADAPTER.ops.items() if name in names)
        _found[name] = getattr(ops[family], name)
    return _found[name]
