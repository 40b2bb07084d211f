"""The code of a compiled graph imports this module: it has the functions of ops by their names, and their trials."""

from __future__ import annotations

import contextlib
from typing import Any

from sgljit_core import ops

from .adapter import FAMILIES
from .graphs import Refused
from .inductor import unset_fake_temporarily
from .ops import FAILED, Trial, passes


def check(*literal: Any) -> None:
    """Make the trial of an op when a graph is loaded; the backend compiles anew without an op that fails."""
    trial = Trial.from_literal(*literal)
    with unset_fake_temporarily(), contextlib.suppress(Refused):  # no memory was left to try it
        if not passes(trial):
            FAILED.add(trial.op)


def __getattr__(name: str) -> Any:
    if name not in FAMILIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(ops[FAMILIES[name]], name)
