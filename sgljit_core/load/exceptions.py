"""How does an exception of ours pass through C++ unchanged?

tvm-ffi carries an exception across C++ as a name and a message. A class that is made from more than a message would
arrive as a RuntimeError, without its data and its traceback. So the thread keeps the exception itself, and the name
leads back to it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from sgljit_core import errors

P = ParamSpec("P")
R = TypeVar("R")

_raised = threading.local()


def passing(function: Callable[P, R]) -> Callable[P, R]:
    """A function for C++ to call, whose exceptions reach the Python code that called C++."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except errors.SgljitError as error:
            _raised.error = error
            raise

    return wrapper


def register(tvm_ffi: Any) -> None:
    """Tell tvm-ffi about every class of ours."""
    for name in errors.__all__:
        cls = getattr(errors, name)
        tvm_ffi.register_error(name, cls)  # the name of the class
        tvm_ffi.register_error(name, _restorer(cls))  # what the name stands for: tvm-ffi wants a class to call


def _restorer(cls: type[errors.SgljitError]) -> type:
    """A class whose call returns the exception that this thread saw last, or makes one of ``cls`` that C++ raised."""

    def restore(_: type, message: str) -> errors.SgljitError:
        error: errors.SgljitError | None = getattr(_raised, "error", None)
        _raised.error = None
        if type(error) is cls and str(error) == message:
            return error
        return cls.__new__(cls, message)

    return type(cls.__name__, (), {"__new__": restore})
