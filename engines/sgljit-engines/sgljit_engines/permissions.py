"""What may adapters do? ``SGLJIT_ENGINES`` says it: ``on`` (the default), ``off``, or ``strict`` and names of ops."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sgljit_core.errors import ConfigError


@dataclass(frozen=True)
class Engines:
    """The permissions of adapters in their engines.

    Attributes:
        on: whether they do anything.
        strict: whether they raise where they would otherwise leave the work to the engine.
        ops: the ops that they may use; None for all.
    """

    on: bool
    strict: bool
    ops: frozenset[str] | None


def permissions() -> Engines:
    """Read the environment. Raises ConfigError for an invalid value."""
    value = os.environ.get("SGLJIT_ENGINES", "").strip().lower() or "on"
    words = [word.strip() for word in value.split(",")]
    if value in ("on", "off"):
        return Engines(on=value == "on", strict=False, ops=None)
    if {"on", "off"} & {*words} or not all(word.isidentifier() for word in words):
        raise ConfigError(
            f"SGLJIT_ENGINES must be on, off, strict, or names of ops separated by commas, with or without strict; "
            f"got {value!r}"
        )
    return Engines(on=True, strict="strict" in words, ops=frozenset(words) - {"strict"} or None)
