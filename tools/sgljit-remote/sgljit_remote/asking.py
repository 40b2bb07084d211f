"""How long may a remote take? A limit for each question, with all of its attempts.

A question runs in a thread of its own, whose answer is waited for until the limit: no library need know of it. A thread
that is late is left to itself, and its answer is dropped.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sgljit_core.builds import record

from .counts import count
from .errors import RemoteUnavailableError

T = TypeVar("T")

_FIRST_PAUSE = 0.1  # seconds; twice as long each time, and by chance, so that many machines do not ask at once


class TryAgainError(Exception):
    """An attempt failed in a way that may pass: the connection, or a server that is busy."""


class StalledError(TryAgainError):
    """Nothing came for as long as one artifact may take."""


def ask(
    question: Callable[[float], T],
    seconds: float,
    meanwhile: Callable[[], object] = lambda: None,
    place: str = "",
    *,
    times: float = 1,
    heard: Callable[[], int] = lambda: 0,
) -> T:
    """The answer to a question, which is asked again while it raises TryAgainError and there is time.

    Args:
        question: gets the time by which it must be done, by ``time.monotonic``.
        seconds: the limit of one artifact.
        meanwhile: what this thread does before it waits for an answer; it must not take long.
        place: what is asked for, as plugins hear of failures.
        times: all attempts together may take so many limits, as long as each goes on for more than one: what stalls,
            or fails at once, is over after one.
        heard: a number that changes whenever a part of the answer comes.

    Raises:
        RemoteUnavailableError: there was no answer in time.
    """
    start = time.monotonic()
    deadline = start + times * seconds
    pause, reasons = _FIRST_PAUSE, dict[str, None]()
    while True:
        try:
            count(requests=1)
            began = time.monotonic()
            return _in_time(question, seconds, deadline, meanwhile, heard)
        except RemoteUnavailableError as error:
            _failed(place, error)
            raise
        except TryAgainError as error:
            _failed(place, error)
            reasons[str(error)] = None
            wait = pause * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
            went_on = time.monotonic() - began > seconds and not isinstance(error, StalledError)
            limit = times * seconds if went_on else seconds
            if time.monotonic() + wait >= start + limit:
                raise RemoteUnavailableError(f"{'; '.join(reasons)}, for {limit:g} s") from error
        time.sleep(wait)
        pause *= 2


def _failed(place: str, error: Exception) -> None:
    count(failures=1)
    record.event("failure", place, str(error))


def _in_time(
    question: Callable[[float], T],
    seconds: float,
    deadline: float,
    meanwhile: Callable[[], object],
    heard: Callable[[], int],
) -> T:
    answers: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((question(deadline),))
        except BaseException as error:  # noqa: BLE001 - handed on
            answers.put(error)

    try:
        threading.Thread(target=work, name="sgljit-remote", daemon=True).start()
    except RuntimeError as error:  # no thread is left
        raise RemoteUnavailableError(f"it cannot be asked within a time: {error}") from error
    meanwhile()
    before, since, answer = heard(), time.monotonic(), None
    while answer is None:
        left = min(deadline, since + seconds) - time.monotonic()
        with contextlib.suppress(queue.Empty):
            answer = answers.get(timeout=max(0.0, min(left, seconds / 8)))
        if answer is None and left <= 0:
            raise (TryAgainError if deadline <= since + seconds else StalledError)("no answer")
        if (now := heard()) != before:
            before, since = now, time.monotonic()
    if isinstance(answer, BaseException):
        raise answer
    return answer[0]
