"""Waiting for flags in memory, for sgljit: ``from sgljit_wait_value import stream_wait_value``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "Event",
    "__version__",
    "check_timeouts",
    "stream_wait_value",
    "stream_write_value",
]

if TYPE_CHECKING:
    from .event import Event
    from .ops import (
        check_timeouts,
        stream_wait_value,
        stream_write_value,
    )
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"event": ("Event",), "ops": __all__})
