"""Several functions at once, each in a thread; in this thread where the machine has no other left.

Rejected: an executor of ``concurrent.futures``. It takes no work while the interpreter ends.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def running(functions: Sequence[Callable[[], T]], most: int, end: Callable[[], object]) -> Iterator[list[Future[T]]]:
    """Run functions in at most ``most`` threads. The block gets their futures; when it ends, all have ended.

    If the block raises, those that have not begun are cancelled, and ``end`` is called to end the others. They are
    cancelled, too, if a function raises KeyboardInterrupt or SystemExit.
    """
    futures: list[Future[T]] = [Future() for _ in functions]
    pending = collections.deque(zip(futures, functions, strict=True))

    def cancel() -> None:
        for future in futures:
            future.cancel()

    def work() -> None:
        with contextlib.suppress(IndexError):  # nothing is pending any more
            while True:
                future, function = pending.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - handed on
                    future.set_exception(error)
                    if not isinstance(error, Exception):
                        cancel()

    threads = [threading.Thread(target=work) for _ in range(min(len(functions), most))]
    try:
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:  # no thread is left: fewer at once
            if threads[0].ident is None:
                work()
        yield futures
    except BaseException:
        cancel()
        end()
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
