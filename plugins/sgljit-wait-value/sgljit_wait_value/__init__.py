"""Waiting for flags in memory: ``sgljit_core.ops["wait_value"]``, and ``Event``. Importing it imports nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .event import Event

__all__ = ["Event", "__version__"]


def __getattr__(name: str) -> Any:
    if name != "Event":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .event import Event

    globals()["Event"] = Event  # the next access finds it without coming here
    return Event
