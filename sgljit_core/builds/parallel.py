"""How are several modules built at once?"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import TypeVar

from sgljit_core.errors import ParallelCompileError
from sgljit_core.machine import supervisor, threads

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
    jobs = [functools.partial(contextvars.copy_context().run, builder) for builder in builders]
    # A thread waits for its turn most of the time; a few more than cores keep these busy between two compilers. After
    # control-C the compilers are ended here, as they are not in the terminal's process group.
    with threads.running(jobs, 2 * (os.cpu_count() or 1), supervisor.end_all) as futures:
        wait(futures)
    errors = [error for future in futures if not future.cancelled() and (error := future.exception()) is not None]
    failures = [error for error in errors if isinstance(error, Exception) and not isinstance(error, MemoryError)]
    if len(failures) < len(errors):
        raise next(error for error in errors if error not in failures)
    if failures:
        raise ParallelCompileError(failures, len(jobs)) from failures[0]
    return [future.result() for future in futures]
