"""Which ops does an adapter put into its engine, and what happens when one of them cannot be built?

An adapter never breaks its engine. So it does nothing beside an engine that it was not tested with, and the engine's
own code runs for an op that cannot be built. ``SGLJIT_ENGINES=strict`` makes an error of either.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import importlib_metadata
from packaging.specifiers import SpecifierSet

from sgljit_core import log
from sgljit_core.errors import CaptureError, ConfigError, InferenceOnlyError, SgljitError, TensorMatchError

from .errors import UnsupportedEngineError

GROUP = "sgljit.engines"  # of the entry points that name adapters


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter, and the ops that it lost in this process. It is made once, as a constant of the adapter.

    Attributes:
        distribution: the adapter's distribution, such as "sgljit-vllm".
        engine: the distributions that are the engine, with the versions that the adapter was tested with, such as
            ``{"vllm": ">=0.32,<0.34"}``. The first that is installed counts.
        ops: the ops that the adapter can use, each with the name of what it replaces there:
            ``{"rmsnorm": "RMSNorm"}``. ``SGLJIT_ENGINES`` chooses among them.
        beside: distributions that must be there as well, all of them, with their tested versions.
        logger: the logger of its messages. One below the engine's own is printed as the engine's messages are.
    """

    distribution: str
    engine: Mapping[str, str]
    ops: Mapping[str, str]
    beside: Mapping[str, str] = field(default_factory=dict)
    logger: str = "sgljit"
    _lost: set[str] = field(default_factory=set, init=False, repr=False)
    _said: set[str] = field(default_factory=set, init=False, repr=False)

    def start(self, device: str = "", *, announce: bool = True) -> frozenset[str]:
        """Decide which ops are used, and log one line that says so.

        Args:
            device: where they run, such as "cuda", for the line.
            announce: whether to log the line; an engine that sets up its logging later calls ``announce`` then.

        Returns:
            The ops to use, of ``ops``. Empty with ``SGLJIT_ENGINES=off``, and, after a warning, where the engine is
            not installed or its version is not among those tested.

        Raises:
            ConfigError: ``SGLJIT_ENGINES`` cannot be read.
            UnsupportedEngineError: ``SGLJIT_ENGINES=strict``, and the engine is not one that the adapter supports.
        """
        allowed, strict = _permissions()
        if allowed == frozenset():
            self.say(logging.INFO, "engine_off", "does nothing: SGLJIT_ENGINES=off")
            return frozenset()
        if reason := self._unsupported():
            if strict:
                raise UnsupportedEngineError(f"{self._name()}: {reason}")
            self.say(logging.WARNING, "engine_unsupported", f"does nothing: {reason}")
            return frozenset()
        used = frozenset(self.ops) if allowed is None else allowed & self.ops.keys()
        if announce:
            self.announce(used, device)
        return used

    def announce(self, used: frozenset[str], device: str = "") -> None:
        """Log the line of ``start``: the versions, which part of the engine runs on which op, what is left out."""
        versions = ", ".join(f"{name} {found}" for name in (*self.engine, *self.beside) if (found := _installed(name)))
        runs = "; ".join(f"{part} runs on {op}" for op, part in self.ops.items() if op in used)
        parts = [runs + (f" on {device}" if device else "") if runs else "no op is used"]
        if left := [op for op in self.ops if op not in used]:
            parts.append(f"switched off by SGLJIT_ENGINES: {', '.join(left)}")
        if unknown := sorted((_permissions()[0] or frozenset()) - self.ops.keys()):
            parts.append(f"SGLJIT_ENGINES names {', '.join(unknown)}, which this adapter does not have")
        self.say(logging.INFO, "engine_start", f"with {versions}: {'. '.join(parts)}", ops=sorted(used))

    def attempt(self, op: str, call: Callable[[], object]) -> bool:
        """Call an op where it may have to be built; whether it ran.

        False means that the engine's own code must run. Where the op cannot be built, one warning says why, and from
        then on nothing is called for it. A tensor that the op does not take, and a build that a capture of a CUDA graph
        forbids, leave this call alone to the engine. An error of the engine's data, such as an index outside of a
        cache, passes.

        Args:
            op: the op, one of ``ops``.
            call: the call, which must not have written anything if it raises.

        Raises:
            SgljitError, OSError: the failure itself, with ``SGLJIT_ENGINES=strict``.
        """
        return self._works(op, call) is True

    def attempt_once(
        self, op: str, call: Callable[[], object], answers: MutableMapping[Any, bool], key: Hashable
    ) -> bool:
        """``attempt``, once for each kind of call; whether the op works for it.

        After a build that the capture of a CUDA graph forbids, the next question tries again.

        Args:
            answers: where the answers are kept.
            key: the kind of call.
        """
        if key not in answers:
            works = self._works(op, call)
            if works is None:
                return False
            answers[key] = works
        return answers[key]

    def _works(self, op: str, call: Callable[[], object]) -> bool | None:
        """Whether a call of an op ran; None if the capture of a CUDA graph forbids the build that decides it."""
        if op in self._lost:
            return False
        try:
            call()
        except (SgljitError, OSError) as error:
            if self.strict:
                raise
            if isinstance(error, CaptureError):
                return None
            if isinstance(error, InferenceOnlyError | TensorMatchError):
                return False
            self._lost.add(op)
            text = (
                f"{op} failed, and {self.ops[op]} runs on the engine's own code until the process ends "
                f"(SGLJIT_ENGINES=strict raises instead): {type(error).__name__}: {error}"
            )
            self.say(logging.WARNING, "engine_fallback", text, op=op, error=error)
            return False
        return True

    @property
    def strict(self) -> bool:
        """Whether ``SGLJIT_ENGINES`` asks for errors in place of the engine's own code."""
        return _permissions()[1]

    def say(self, level: int, event: str, text: str, **data: object) -> None:
        """Log a text behind the adapter's name, where the engine's messages go; ``data`` is the record's."""
        log.log(level, event, f"{self._name()} {text}", self.logger, adapter=self.distribution, **data)

    def warn_once(self, event: str, text: str) -> None:
        """Log a warning, if this process has not given it yet."""
        if text not in self._said:
            self._said.add(text)
            self.say(logging.WARNING, event, text)

    def _name(self) -> str:
        return f"{self.distribution} {_installed(self.distribution) or '(not installed)'}"

    def _unsupported(self) -> str:
        """Why nothing can be done; empty if it can."""
        engine = next((name for name in self.engine if _installed(name)), next(iter(self.engine)))
        for name, tested in {engine: self.engine[engine], **self.beside}.items():
            version = _installed(name)
            if version is None:
                return f"{name} is not installed. Install a version {tested}"
            if not SpecifierSet(tested).contains(version, prereleases=True):
                return (
                    f"{name} {version} is installed, and it was tested with {name}{tested}. Install such a version of "
                    f"{name}, or a release of {self.distribution} for {name} {version}"
                )
        return ""


def _permissions() -> tuple[frozenset[str] | None, bool]:
    """The ops that ``SGLJIT_ENGINES`` allows adapters, None for all; and whether they raise in place of falling back.

    Raises:
        ConfigError: its value is none of ``on`` (the default), ``off``, or ``strict`` and names of ops.
    """
    value = os.environ.get("SGLJIT_ENGINES", "").strip().lower() or "on"
    words = [word.strip() for word in value.split(",")]
    if value in ("on", "off"):
        return (None if value == "on" else frozenset()), False
    if {"on", "off"} & {*words} or not all(word.isidentifier() for word in words):
        raise ConfigError(
            f"SGLJIT_ENGINES must be on, off, strict, or names of ops separated by commas, with or without strict; "
            f"got {value!r}"
        )
    return frozenset(words) - {"strict"} or None, "strict" in words


def engine_ops(engine: str | None) -> frozenset[str] | None:
    """The ops that an engine's adapter uses; without an engine, those of all installed adapters.

    None stands for all ops: there is no adapter, so that it is open who calls what.

    Args:
        engine: the name of an entry point in the group ``sgljit.engines``, which names the adapter's ``Adapter``.

    Raises:
        UnsupportedEngineError: no adapter for this engine is installed.
    """
    points = {point.name: point for point in importlib_metadata.entry_points(group=GROUP)}
    if engine is not None and engine not in points:
        raise UnsupportedEngineError(
            f"no installed adapter is for the engine {engine!r} (installed: {', '.join(sorted(points)) or 'none'}). "
            f"The project's own are sgljit-sglang, sgljit-transformers and sgljit-vllm: install that of your engine"
        )
    chosen = list(points.values()) if engine is None else [points[engine]]
    return frozenset(op for point in chosen for op in point.load().ops) if chosen else None


def _installed(distribution: str) -> str | None:
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None
