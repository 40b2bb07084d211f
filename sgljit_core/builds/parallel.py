"""How are several modules built at once?"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from sgljit_core.errors import ParallelCompileError
from sgljit_core.machine import supervisor

from .progress import Batch, batch

T = TypeVar("T")


def parallel_compile(builders: Iterable[Callable[[], T]]) -> list[T]:
    """Call each builder, as many at once as the machine's cores and memory allow for compilers.

    >>> parallel_compile([lambda: module_for(1024), lambda: module_for(4096)])

    Each runs in a copy of the caller's context, so that ``override_cuda_arch`` around the call holds inside. The
    limit counts running compilers, over all processes of the user on this machine; ``SGLJIT_JOBS`` sets it.

    Args:
        builders: callables without arguments that each load a module, such as those of a family's ``variants``.

    Returns:
        What each returned, in order.

    Raises:
        ParallelCompileError: some failed; the others have been built. It holds every exception.
    """
    jobs = list(builders)
    token = batch.set(Batch(total=len(jobs)))
    try:
        # A thread waits for its turn most of the time; a few more than cores keep these busy between two compilers.
        with ThreadPoolExecutor(max(1, min(len(jobs), 2 * (os.cpu_count() or 1)))) as pool:
            futures = [pool.submit(contextvars.copy_context().run, job) for job in jobs]
            try:
                wait(futures)
            except BaseException:  # control-C: the compilers are not in the terminal's process group
                for future in futures:
                    future.cancel()
                supervisor.end_all()
                raise
    finally:
        batch.reset(token)
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    failures = [error for error in errors if isinstance(error, Exception)]
    if len(failures) < len(errors):
        raise next(error for error in errors if not isinstance(error, Exception))
    if failures:
        raise ParallelCompileError(failures, len(jobs)) from failures[0]
    return [future.result() for future in futures]
