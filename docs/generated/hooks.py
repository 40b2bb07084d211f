"""Which hooks may a plugin implement? The hooks of ``sgljit_core.plugins.hookspecs``."""

from __future__ import annotations

import inspect

from sgljit_core.plugins import hookspecs

from . import python


def names() -> list[str]:
    """The hooks in the order of the module."""
    found = vars(hookspecs).items()
    return [name for name, value in found if name.startswith("sgljit_") and inspect.isfunction(value)]


def markdown() -> str:
    """Each hook with its parameters."""
    return python.markdown(hookspecs.__name__, *names())
