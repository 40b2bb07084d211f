"""How does sgljit log? Records carry their data, and a process gives a warning once."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from .config import is_observed
from .errors import ConfigError

LOGGER = logging.getLogger("sgljit")


def log(level: int, event: str, text: str, logger: str = LOGGER.name, /, **data: Any) -> None:
    """Log a text with its data: ``record.sgljit`` is a mapping with the event's name and ``data``."""
    logging.getLogger(logger).log(level, "%s", text, extra={"sgljit": {"event": event, **data}})


_said: set[tuple[str, str]] = set()


def once(event: str, about: str, text: str, **data: Any) -> None:
    """Log a warning, once in a process for each event and subject."""
    if (event, about) not in _said:
        _said.add((event, about))
        log(logging.WARNING, event, text, **data)


def was_said(event: str) -> bool:
    """Whether a warning of this event was given in this process."""
    return any(said == event for said, _ in _said)


observer: Any = None  # the module of sgljit-tools that prints records and calls, where a variable asks for it
if is_observed():
    try:
        observer = importlib.import_module("sgljit_tools.observing")
    except ModuleNotFoundError as error:
        raise ConfigError('SGLJIT_LOG, _NVTX, _SYNC and _TRACE_CALLS need: pip install "sgljit-core[tools]"') from error
