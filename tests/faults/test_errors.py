"""Errors come whole out of a pool of processes, and out of a copy."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path

import pytest

from sgljit_core import errors

VALUES = {
    "str": "a text\nof two lines",
    "int": 2,
    "Path": Path("/nowhere"),
    "OSError": OSError(24, "Too many open files"),
    "Sequence[str]": ["/usr/bin", "/bin"],
    "Sequence[Exception]": [ValueError("a"), errors.CaptureError("b", "c")],
}


def made(name: str) -> errors.SgljitError:
    """An error, with a value for each parameter that its class must have."""
    kind = getattr(errors, name)
    needed = [p for p in inspect.signature(kind.__init__).parameters.values() if p.annotation in VALUES]
    needed = [p for p in needed if p.default is p.empty]
    keywords = {p.name: VALUES[p.annotation] for p in needed if p.kind is p.KEYWORD_ONLY}
    values = [VALUES[p.annotation] for p in needed if p.name not in keywords]
    return kind(*values, **keywords) if needed else kind("a text")


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_that_was_pickled_or_copied_is_the_same(name, again):
    error = made(name)
    error.more = "an attribute that somebody gave it"
    other = again(error)
    assert type(other) is type(error)
    assert (str(other), other.cause, other.args) == (str(error), error.cause, error.args)
    assert repr(vars(other)) == repr(vars(error))


def test_what_a_builtin_keeps_beside_the_attributes_is_kept_too():
    error = errors.StorageError(28, "No space left on device", "/cache")
    other = pickle.loads(pickle.dumps(error))
    assert (other.errno, other.filename, str(other)) == (28, "/cache", str(error))
