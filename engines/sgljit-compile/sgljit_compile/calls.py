"""The functions of ops, under the names by which the code of a compiled graph imports them."""

from __future__ import annotations

from typing import Any

from sgljit_core import ops

from .adapter import FAMILIES


def __getattr__(name: str) -> Any:
    if name not in FAMILIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(ops[FAMILIES[name]], name)
