"""Log records that carry their data, and warnings that a process gives once."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("sgljit")


def log(level: int, event: str, text: str, **data: Any) -> None:
    """A log record with its data: ``record.sgljit`` is a mapping with the event's name and ``data``."""
    _log.log(level, "%s", text, extra={"sgljit": {"event": event, **data}})


def is_wanted(level: int) -> bool:
    """Whether anybody reads records of this level, for a text that takes time to find."""
    return _log.isEnabledFor(level)


_said: set[tuple[str, str]] = set()


def once(event: str, about: str, text: str, **data: Any) -> None:
    """A warning that is given once in a process for each event and what it is about."""
    if (event, about) not in _said:
        _said.add((event, about))
        log(logging.WARNING, event, text, **data)


def was_said(event: str) -> bool:
    """Whether a warning of that kind was given in this process."""
    return any(said == event for said, _ in _said)
