"""Which ops may be in a compiled graph? vLLM asks for it when it looks for a graph that was compiled before.

vLLM makes the key of its cache from its configuration and from all variables that it knows, whose table is open. So
the ops are a variable there, which no environment sets.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from vllm import envs

from . import ADAPTER, __version__
from .kernels import working

VARIABLE = "VLLM_SGLJIT"


def cover(names: Iterable[str]) -> None:
    """Put ops into the key, as far as they work in this process.

    Args:
        names: the ops that may be in a graph.
    """
    ops = sorted(names)
    envs.environment_variables[VARIABLE] = lambda: f"{ADAPTER.distribution} {__version__}: {', '.join(_working(ops))}"


def _working(names: Iterable[str]) -> list[str]:
    """The kinds that ops work for, with the names of their overloads, which change with what a graph relies on."""
    return sorted(" ".join(map(str, (*_overloads(name), *kind))) for name, *kind in working(names))


def _overloads(name: str) -> list[str]:
    family = next(family for family, names in ADAPTER.ops.items() if name in names)
    packet = getattr(getattr(torch.ops, f"sgljit_{family}"), name)
    return [str(getattr(packet, overload)) for overload in packet.overloads()]
