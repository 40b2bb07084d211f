"""How are several modules built at once?"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from sgljit_core.errors import ParallelCompileError
from sgljit_core.machine import supervisor

T = TypeVar("T")


def parallel_compile(builders: Iterable[Callable[[], T]]) -> list[T]:
    """Call each builder, as many at once as the machine's cores and memory allow for compilers.

    >>> parallel_compile([lambda: module_for(1024), lambda: module_for(4096)])

    A builder takes no arguments and loads a module; the results are in the order of the builders.
    Each runs in a copy of the caller's context, so that ``override_cuda_arch`` around the call holds inside. The
    limit counts the running compilers of this process; ``SGLJIT_JOBS`` sets it. Where the machine has no thread left,
    they run one after the other.

    Raises:
        ParallelCompileError: some failed; the others have been built. It holds every exception.
        MemoryError, KeyboardInterrupt, SystemExit: as a builder raised it; builds that had not begun are left out after
            the last two.
    """
    jobs = list(builders)
    futures = _run([functools.partial(contextvars.copy_context().run, job) for job in jobs])
    errors = [error for future in futures if not future.cancelled() and (error := future.exception()) is not None]
    failures = [error for error in errors if isinstance(error, Exception) and not isinstance(error, MemoryError)]
    if len(failures) < len(errors):
        raise next(error for error in errors if error not in failures)
    if failures:
        raise ParallelCompileError(failures, len(jobs)) from failures[0]
    return [future.result() for future in futures]


def _run(jobs: Sequence[Callable[[], T]]) -> list[Future[T]]:
    """Run jobs in threads; in this one where the machine has no thread left."""
    futures: list[Future[T]] = [Future() for _ in jobs]
    pending = collections.deque(zip(futures, jobs, strict=True))

    def work() -> None:
        with contextlib.suppress(IndexError):  # nothing is pending any more
            while True:
                settle(*pending.popleft())

    def settle(future: Future[T], job: Callable[[], T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001 - handed on
            future.set_exception(error)
            if not isinstance(error, Exception):  # an interrupt is meant for the others, too
                for other in futures:
                    other.cancel()

    # A thread waits for its turn most of the time; a few more than cores keep these busy between two compilers.
    threads = [threading.Thread(target=work) for _ in range(min(len(jobs), 2 * (os.cpu_count() or 1)))]
    try:
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:  # no more threads: fewer jobs at once
            if threads[0].ident is None:
                work()
        wait(futures)
    except BaseException:  # control-C: the compilers are not in the terminal's process group
        for future in futures:
            future.cancel()
        supervisor.end_all()
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return futures
