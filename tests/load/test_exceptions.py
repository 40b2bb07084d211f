"""Exceptions cross C++ unchanged."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from sgljit_core import errors
from sgljit_core.load import library
from sgljit_core.load.exceptions import passing


class OddError(Exception):
    """As a plugin's hook may raise it: made from more than a text."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(code)
        self.where = where


class Silent(BaseException):
    def __str__(self) -> str:
        return ""


def through_cpp(function):
    library.tvm_ffi_version()  # as a load does
    import tvm_ffi

    return tvm_ffi.convert(passing(function))


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        MemoryError(),
        Silent(),
        ValueError("plain"),
        OddError(7, where="here"),
        OSError(28, "No space left on device", "/tmp/file"),
        errors.UntrustedCacheError(Path("/tmp"), "is open", "Close it"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_same_object_arrives_with_its_traceback(error):
    def fails():
        raise error

    with pytest.raises(type(error)) as caught:
        through_cpp(through_cpp(fails))()
    assert caught.value is error
    assert caught.value.__context__ is None
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "fails"
    assert names.count("fails") == 1


def test_an_exception_that_cpp_drops_is_not_taken_for_a_later_one():
    def fails(text):
        raise ValueError(text)

    first = through_cpp(lambda: fails("first"))
    with pytest.raises(ValueError, match=r"^first$") as one:
        first()
    with pytest.raises(ValueError, match=r"^first$") as other:
        first()
    assert one.value is not other.value
