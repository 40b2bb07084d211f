"""Which ops does an adapter put into its engine, and what happens when one of them cannot be built?

The engine's own code runs then, and beside an untested engine. ``SGLJIT_ENGINES=strict`` makes an error of either, and
of a tensor that an op refuses.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import importlib_metadata
from packaging.specifiers import SpecifierSet

from sgljit_core import log, stats
from sgljit_core.errors import CaptureError, ConfigError, InferenceOnlyError, SgljitError, TensorMatchError

from .errors import InexactError, UnsupportedEngineError
from .uses import USES, Use, summary, variants

QUIET_SECONDS = 10.0
_MODES = {"exact", "strict"}  # words of SGLJIT_ENGINES that are no ops


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter, and the ops that it lost in this process. It is made once, as a constant of the adapter.

    Attributes:
        distribution: the adapter's distribution, such as "sgljit-vllm".
        engine: the distributions that are the engine, with the versions that the adapter was tested with, such as
            ``{"vllm": ">=0.32,<0.34"}``. The first that is installed counts.
        ops: by family the ops that the adapter can use, each with the name of what it replaces there:
            ``{"norm": {"rmsnorm": "RMSNorm"}}``. ``SGLJIT_ENGINES`` chooses among them.
        exact_ops: those that can give the bits of the engine's own code; no others with ``SGLJIT_ENGINES=exact``.
        logger: the logger of its messages. One below the engine's own is printed as the engine's messages are.
        by_name: ops that are used only if ``SGLJIT_ENGINES`` names them or is exact: nobody measured them as faster.
        is_early: the engine sets up its log after it has loaded the adapter.
    """

    distribution: str
    engine: Mapping[str, str]
    ops: Mapping[str, Mapping[str, str]]
    exact_ops: frozenset[str] = frozenset()
    logger: str = "sgljit"
    by_name: frozenset[str] = frozenset()
    is_early: bool = False
    lost: dict[str, str] = field(default_factory=dict, init=False, repr=False)  # by op, why it is out of use
    _inexact: dict[str, str] = field(default_factory=dict, init=False, repr=False)  # by op, why its bits may differ
    _said: set[str] = field(default_factory=set, init=False, repr=False)
    _waiting: list[threading.Timer] = field(default_factory=list, init=False, repr=False)  # for the line after warm-up
    own_runs: Counter[str] = field(default_factory=Counter, init=False, repr=False)  # by op, of the engine's own code

    @functools.cached_property
    def parts(self) -> Mapping[str, str]:
        """By op, what it replaces."""
        return {op: part for ops in self.ops.values() for op, part in ops.items()}

    def start(self, ops: str = "on") -> frozenset[str]:
        """The names of the ops to use; where there is none, a line of the log says why.

        Args:
            ops: a choice as that of ``SGLJIT_ENGINES``, without ``strict``. An op is used if both allow it.

        Raises:
            ConfigError: ``SGLJIT_ENGINES`` or ``ops`` cannot be read, or names what no adapter has.
            UnsupportedEngineError: with ``SGLJIT_ENGINES=strict``, where the engine's version would be a warning.
        """
        if other := os.environ.get("SGLJIT_OPS", "").strip():
            self.say_once(logging.WARNING, "engine_setting", f"reads no SGLJIT_OPS: set SGLJIT_ENGINES={other} instead")
        value, modes = _setting()
        used = self._choose("SGLJIT_ENGINES", value, self._usual(modes))
        used &= self._choose("ops", ops, frozenset(self.parts))
        if "exact" in modes:
            used &= self.exact_ops
            value += ",exact"
        if not used:
            argument = f" and ops={ops!r}" if ops != "on" else ""
            self.say_once(logging.INFO, "engine_off", f"does nothing: SGLJIT_ENGINES={value}{argument}")
            if ops == "on":
                self.leave(self.parts)
        elif reason := self._unsupported():
            if "strict" in modes:
                raise UnsupportedEngineError(f"{self._name()}: {reason}")
            self.say_once(logging.WARNING, "engine_unsupported", f"does nothing: {reason}")
            self.leave(self.parts, reason)
            return frozenset()
        return used

    def versions(self) -> str:
        """The engine's distributions that are installed, with their versions."""
        return ", ".join(f"{name} {found}" for name in self.engine if (found := _installed(name)))

    def attempt(self, op: str, call: Callable[[], object]) -> bool:
        """Call an op where it may have to be built; whether it ran.

        False means that the engine's own code must run. Where the op cannot be built, a warning says why, one for each
        cause, and from then on nothing is called for it. A tensor that the op does not take, and a build that a capture
        of a CUDA graph forbids, leave this call alone to the engine. An error of the engine's data, such as an index
        outside of a cache, passes. A call that raises must not have written anything.

        Raises:
            SgljitError, OSError: the failure itself, with ``SGLJIT_ENGINES=strict``.
        """
        ran = self._works(op, call) is True
        self.own_runs[op] += not ran
        return ran

    def attempt_once(
        self, op: str, call: Callable[[], object], answers: MutableMapping[Any, bool], key: Hashable
    ) -> bool:
        """``attempt``, once for each ``key``, a kind of call; whether the op works for it, which ``answers`` keeps.

        After a build that the capture of a CUDA graph forbids, the next question tries again. ``report`` shows it.
        """
        if key not in answers:
            before = stats()
            if (works := self._works(op, call)) is None:
                return False
            answers[key] = works
            use, now = self.use(op, key), stats()
            use.why = "" if works else self.lost.get(op, self._inexact.pop(op, "the op does not take it"))
            use.seconds += now.seconds - before.seconds
            family = next(family for family, ops in self.ops.items() if op in ops)
            earlier = variants(before.loads, (), family)
            # A call that loads nothing runs on what was there: if that is one variant, its name is known.
            use.variants |= variants(now.loads, earlier, family) or (earlier if works and len(earlier) == 1 else {})
            self._tell_when_quiet()
        return answers[key]

    def use(self, op: str, key: Hashable, part: str = "") -> Use:
        """The entry of ``report`` for a kind of call, of the op's part or of one without an op. It may be changed."""
        parts = (part for part in (key if isinstance(key, tuple) else (key,)) if part != op)
        kind = " ".join(str(part).removeprefix("torch.") for part in parts) or "any"
        return USES.setdefault((self.distribution, op, kind), Use(self.distribution, part or self.parts[op], kind, op))

    def _works(self, op: str, call: Callable[[], object]) -> bool | None:
        """Whether a call of an op ran; None if the capture of a CUDA graph forbids the build that decides it."""
        if op in self.lost:
            return False
        try:
            call()
        except (SgljitError, OSError) as error:
            if self.strict and not isinstance(error, InexactError):
                raise
            if isinstance(error, CaptureError):
                return None
            if isinstance(error, InexactError):
                self._inexact[op] = str(error)
            if isinstance(error, InferenceOnlyError | TensorMatchError):
                return False
            cause = f"{type(error).__name__}: {getattr(error, 'cause', error)}"
            was_said = cause in self.lost.values()  # a broken compiler fails all ops
            self.lost[op] = cause
            for use in (use for use in USES.values() if (use.adapter, use.op) == (self.distribution, op)):
                use.why = cause
            text = (
                f"{op} failed, and {self.parts[op]} runs on the engine's own code until the process ends "
                f"(SGLJIT_ENGINES=strict raises instead): {cause if was_said else f'{type(error).__name__}: {error}'}"
            )
            self.say(logging.INFO if was_said else logging.WARNING, "engine_fallback", text, op=op, error=error)
            self._tell_when_quiet()
            return False
        if op not in self._said:
            self._said.add(op)
            self.say(logging.INFO, "engine_op", f"with {self.versions()}: {self.parts[op]} runs on {op}", op=op)
        return True

    @property
    def shadow(self) -> float:
        """The share of calls that ``SGLJIT_SHADOW`` compares; 0 where it is not set. Raises ConfigError."""
        value = os.environ.get("SGLJIT_SHADOW", "").strip() or "0"
        with contextlib.suppress(ValueError):
            if 0 <= (share := float(value)) <= 1:
                return share
        raise ConfigError(f"SGLJIT_SHADOW must be the share of calls to compare, from 0 to 1; got {value!r}")

    def shadowed(self, op: str | Callable[..., str], seam: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """The function to put at a seam: ``seam`` itself, or with ``SGLJIT_SHADOW`` one that compares its calls.

        Args:
            op: the op, or a function that gives it for the arguments of a call.
            seam: takes the engine's own code, then the arguments of a call, which it runs on the op or on that code.
            options: ``outcome`` and ``lose``, as the attributes of ``sgljit_engines.shadow.Shadow``.
        """
        if not (share := self.shadow):
            return seam
        from .shadow import Shadow

        text = f"compares {share:g} of the calls of its ops with the engine's own code (SGLJIT_SHADOW)"
        self.say_once(logging.INFO, "engine_shadow", text)
        return Shadow(self, op, seam, 1 / share, **options)

    def lose(self, op: str, error: Exception) -> None:
        """Do what ``attempt`` does after a call with this error, such as to take the op out of use. It may raise it."""

        def fail() -> None:
            raise error

        self.attempt(op, fail)

    def leave(self, ops: Iterable[str], why: str = "") -> None:
        """Let ``report`` say that the engine's own code runs for ops, and why: by default what ``why_not`` says."""
        for op in ops:
            self.use(op, ()).why = why or self.why_not(op)

    def why_not(self, op: str) -> str:
        """Why an op is not among those that ``start`` gives."""
        if self.exact and op not in self.exact_ops:
            return "SGLJIT_ENGINES=exact: none of its modes gives the bits of the engine's own code"
        if op in self.by_name:
            return "it is used only where SGLJIT_ENGINES names it, as nobody measured that it is faster"
        return "switched off"

    @property
    def exact(self) -> bool:
        """Whether ``SGLJIT_ENGINES`` allows only what gives the bits of the engine's own code."""
        return "exact" in _setting()[1]

    @property
    def strict(self) -> bool:
        """Whether ``SGLJIT_ENGINES`` asks for errors in place of the engine's own code."""
        return "strict" in _setting()[1]

    def say(self, level: int, event: str, text: str, **data: object) -> None:
        """Log a text behind the adapter's name, where the engine's messages go; ``data`` is the record's."""
        log.log(level, event, f"{self._name()} {text}", self.logger, adapter=self.distribution, **data)

    def say_once(self, level: int, event: str, text: str) -> None:
        """``say``, once in a process; later where the log does not take the level, if it does then."""
        takes = logging.getLogger(self.logger).isEnabledFor(level)
        if text not in self._said and (takes or self.is_early):
            self._said.add(text)
            self.say(level, event, text) if takes else _later(self.say, level, event, text)

    def _tell_when_quiet(self) -> None:
        """Log what runs, after ``QUIET_SECONDS`` without a new kind of call: CUDA graphs make no calls to count."""
        if not logging.getLogger(self.logger).isEnabledFor(logging.INFO):
            return
        for timer in self._waiting:
            timer.cancel()
        self._waiting[:] = [_later(self._tell)]

    def _tell(self) -> None:
        self.say(logging.INFO, "engine_warm", f"with {self.versions()}, after warm-up: {summary(self.distribution)}")

    def _usual(self, modes: set[str]) -> frozenset[str]:
        return frozenset(self.parts) if "exact" in modes else frozenset(self.parts) - self.by_name

    def _choose(self, source: str, value: str, on: frozenset[str]) -> frozenset[str]:
        """The ops that ``on``, ``off`` or a list allows: those it names, or ``on`` if it only takes some away."""
        words = [word.strip() for word in str(value).lower().split(",")]
        if words in (["on"], ["off"]):
            return on if words == ["on"] else frozenset()
        chosen: dict[bool, set[str]] = {True: set(), False: set()}
        for word in words:
            name = word.removeprefix("-")
            if not (found := self.named(name)) and not any(one.named(name) for one in _installed_adapters().values()):
                adapters = {self.distribution: self, **_installed_adapters()}.values()
                known = {f"{family}.{op}": None for one in adapters for family, ops in one.ops.items() for op in ops}
                raise ConfigError(
                    f"{source} must be on, off, or names of ops and families with commas between them, each with - in "
                    f"front if it is switched off; got {value!r}. No adapter has {name!r}; there are {', '.join(known)}"
                )
            chosen[word == name] |= found
        return (on if all(word[0] == "-" for word in words) else frozenset(chosen[True])) - chosen[False]

    def named(self, name: str) -> set[str]:
        """The ops that a name stands for: that of a family, of an op, or FAMILY.OP."""
        pairs = ((family, op) for family, ops in self.ops.items() for op in ops)
        return {op for family, op in pairs if name in (family, op, f"{family}.{op}")}

    def _name(self) -> str:
        return f"{self.distribution} {_installed(self.distribution) or '(not installed)'}"

    def _unsupported(self) -> str:
        """Why nothing can be done; empty if it can."""
        engine = next((name for name in self.engine if _installed(name)), next(iter(self.engine)))
        version, tested = _installed(engine), self.engine[engine]
        if version is None:
            return f"{engine} is not installed. Install a version {tested}"
        if SpecifierSet(tested).contains(version, prereleases=True):
            return ""
        return (
            f"{engine} {version} is installed, and it was tested with {engine}{tested}. Install such a version of "
            f"{engine}, or a release of {self.distribution} for {engine} {version}"
        )


def _later(function: Callable[..., object], *args: object) -> threading.Timer:
    timer = threading.Timer(QUIET_SECONDS, function, args)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread is left
        timer.start()
    return timer


def _setting() -> tuple[str, set[str]]:
    """The choice of ``SGLJIT_ENGINES``, and which of the words "exact" and "strict" it has."""
    value = os.environ.get("SGLJIT_ENGINES", "").strip() or "on"
    words = [word.strip() for word in value.split(",")]
    others = [word for word in words if word.lower() not in _MODES]
    return ",".join(others) or "on", {word.lower() for word in words} & _MODES


def _installed_adapters() -> Mapping[str, Adapter]:
    return {point.name: point.load() for point in importlib_metadata.entry_points(group="sgljit.engines")}


def engine_ops(engine: str | None) -> frozenset[str] | None:
    """The ops of an engine's adapter, or else of all installed adapters; None, for all ops, where there is no adapter.

    Without ops that are used by name alone, unless ``SGLJIT_ENGINES`` names them. Raises ConfigError where that cannot
    be read, and UnsupportedEngineError where ``engine`` is the name of no entry point in the group ``sgljit.engines``.
    """
    points = importlib_metadata.entry_points(group="sgljit.engines")
    if engine is not None and engine not in points.names:
        names = ", ".join(sorted(points.names)) or "none"
        raise UnsupportedEngineError(
            f"no installed adapter is for the engine {engine!r} (installed: {names}). "
            f"The project's own are sgljit-compile, sgljit-sglang, sgljit-transformers and sgljit-vllm: install one"
        )
    chosen = (point.load() for point in points if engine in (None, point.name))
    value, modes = _setting()
    named = ((one, one._choose("SGLJIT_ENGINES", value, frozenset())) for one in chosen)  # noqa: SLF001
    return frozenset(op for one, ops in named for op in one._usual(modes) | ops) if points else None  # noqa: SLF001


def _installed(distribution: str) -> str | None:
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None
