"""Exceptions pass through C++ unchanged.

tvm-ffi carries an exception across C++ as a name and a message. An exception that is made from more, and Ctrl-C, would
arrive as a RuntimeError, without their data and their traceback. So the thread keeps the exception itself, and C++
carries another in its place, whose name leads back to it.

tvm-ffi's table of names is the process's own: only names that nobody else gives are registered in it, and builtins.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from sgljit_core.errors import TensorMatchError

P = ParamSpec("P")
R = TypeVar("R")

_NAME = "sgljit.Passing"  # no Python exception is called so
_kept = threading.local()


class _Passing(Exception):  # noqa: N818 - nobody sees it
    """The exception that C++ carries. Releases of tvm-ffi differ in whether they carry more than an Exception."""


def passing(function: Callable[P, R]) -> Callable[P, R]:
    """A function for C++ to call, whose exceptions reach the Python code that called C++, each the same object."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised where C++ returns
            _kept.error = error
            carried = _Passing(f"{type(error).__name__}: {error}")  # the text is for C++ that prints it
        raise carried

    return wrapper


def register(tvm_ffi: Any) -> None:
    """Introduce to tvm-ffi the carried exception, and the class of ours that the C++ headers raise by its name."""
    tvm_ffi.register_error(_NAME, _Passing)
    # tvm-ffi takes nothing but classes, and calls the last one of a name.
    tvm_ffi.register_error(_NAME, type("Restored", (), {"__new__": lambda _, text: _restore(text)}))
    # A signal's handler may run in ``wrapper`` before its ``try``.
    for interrupt in (KeyboardInterrupt, SystemExit):
        tvm_ffi.register_error(interrupt.__name__, interrupt)
    tvm_ffi.register_error(TensorMatchError.__name__, TensorMatchError)


def _restore(text: str) -> BaseException:
    """The exception that this thread keeps, if that is the one of this text."""
    error: BaseException | None = _kept.__dict__.pop("error", None)
    return error if error is not None and f"{type(error).__name__}: {error}" == text else RuntimeError(text)
