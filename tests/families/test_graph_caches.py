"""The name that an op has in graphs changes with everything that a graph relies on, and with nothing else."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import pytest
import torch

from sgljit_core import KernelFamily

SETS = "def sets(x: torch.Tensor, y: torch.Tensor, by: int = 1) -> None: ..."
FAKE = "def fake(x):\n return torch.empty_like(x)\n"


@pytest.fixture
def name(tmp_path, monkeypatch):
    """The overload's name of an op with this text, declared by this release of a plugin."""

    def overload(text, version="1.0", fake=None, **options):
        release = ModuleType("acme_named")
        release.__version__ = version
        monkeypatch.setitem(sys.modules, "acme_named", release)
        scope = {"torch": torch}
        exec(text, scope)
        function = next(value for key, value in scope.items() if key in ("sets", "makes"))
        if isinstance(fake, str) and "\n" in fake:
            file = tmp_path / "fakes.py"
            file.write_text(fake)
            exec(compile(fake, str(file), "exec"), scope)
            fake = scope["fake"]
        family = KernelFamily("named", "acme_named")
        family.op(fake=fake, **options)(function)
        (found,) = getattr(torch.ops.sgljit_named, function.__name__).overloads()
        return found

    return overload


def test_it_is_an_identifier_and_the_same_each_time(name):
    first = name(SETS, mutates=("y",))
    assert first.isidentifier()
    assert len(first) == len("v_") + 12
    assert name(SETS, mutates=("y",)) == first


@pytest.mark.parametrize(
    ("text", "mutates"),
    [
        (SETS, ("x",)),
        (SETS, ("x", "y")),
        (SETS.replace("by: int = 1", "by: int = 2"), ("y",)),
        (SETS.replace("by: int = 1", "by: int = 1, more: bool = False"), ("y",)),
        (SETS.replace("y: torch.Tensor", "y: torch.Tensor | None"), ("y",)),
    ],
)
def test_another_schema_has_another(name, text, mutates):
    assert name(text, mutates=mutates) != name(SETS, mutates=("y",))


def test_an_op_that_only_writes_keeps_it_from_release_to_release(name):
    """No fake of the author's is in its graphs: a program that was exported before an upgrade loads after it."""
    assert name(SETS, "1.0", mutates=("y",)) == name(SETS, "2.0", mutates=("y",))
    twofold = "def sets(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor: ..."
    fakes = [FAKE.replace("(x)", "(x, y)", 1), FAKE.replace("(x)", "(x, y)", 1) + "# another text"]
    assert name(twofold, fake=fakes[0], mutates=("y",)) == name(twofold, fake=fakes[1], mutates=("y",))


MAKES = "def makes(x: torch.Tensor) -> torch.Tensor:\n return x + 1"


def test_an_op_that_returns_something_has_another_with_another_fake(name):
    first = name(MAKES, fake=FAKE)
    assert name(MAKES, fake=FAKE) == first
    assert name(MAKES, fake=FAKE.replace("empty_like(x)", "empty_like(x).contiguous()")) != first
    assert name(MAKES, fake=torch.empty_like) != name(MAKES, fake=torch.zeros_like)
    assert name(MAKES, fake=functools.partial(torch.empty_like)) == name(MAKES, fake=torch.empty_like)


def test_an_op_that_returns_something_has_another_in_each_release(name):
    """Its fake may call a function of another file."""
    assert name(MAKES, "1.0", fake=FAKE) != name(MAKES, "1.1", fake=FAKE)


def test_every_library_op_of_a_declaration_has_the_same():
    def clear(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        (x if y is None else y).zero_()

    family = KernelFamily("named", "acme_named")
    kept = family.op(mutates=("y",), inplace="x")(clear)
    ops = torch.ops.sgljit_named
    assert ops.clear.overloads() == ops.clear_.overloads()
    assert kept is not None
