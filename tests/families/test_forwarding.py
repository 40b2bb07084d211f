"""Declared functions: what Python adds to the function that C++ exports."""

from __future__ import annotations

import cProfile
import inspect
import itertools
import pickle
import pstats
import traceback
from types import SimpleNamespace

import pytest
import torch
import tvm_ffi

from sgljit_core import KernelFamily, errors

loads: list[str] = []
calls: list[tuple] = []
_names = (f"forwarding_{i}" for i in itertools.count())


@pytest.fixture
def family():
    """A family of its own for each test: what is declared stays while the family lives."""
    return KernelFamily(next(_names), "nowhere")


FAMILY = KernelFamily("forwarding", "nowhere")


def module() -> SimpleNamespace:
    loads.append("load")
    return SimpleNamespace(scale=lambda *args: calls.append(args))


@FAMILY.op(exports=module)
def scale(x: int, out: int | None = None, factor: float = 2.0, *, shift: int = 3) -> None:
    """What users read."""


def called(op, *args, **kwargs):
    calls.clear()
    op(*args, **kwargs)
    (only,) = calls
    return only


def test_the_exported_function_gets_every_argument_by_position():
    assert called(scale, 1) == (1, None, 2.0, 3)
    assert called(scale, 1, 5, shift=4) == (1, 5, 2.0, 4)
    assert called(scale, x=1, factor=0.5) == (1, None, 0.5, 3)


def test_the_module_is_loaded_at_the_first_call_and_once(family):
    loads.clear()
    late = family.op(exports=module)(inspect.unwrap(scale))
    assert loads == []
    late(1)
    late(2)
    assert loads == ["load"]


def test_a_load_that_fails_is_tried_again(family):
    attempts = []

    def flaky() -> SimpleNamespace:
        attempts.append(None)
        if len(attempts) == 1:
            raise OSError("no compiler yet")
        return module()

    op = family.op(exports=flaky)(inspect.unwrap(scale))
    with pytest.raises(OSError, match="no compiler yet"):
        op(1)
    assert called(op, 1) == (1, None, 2.0, 3)


def test_it_looks_like_the_declaration():
    assert inspect.signature(scale) == inspect.signature(inspect.unwrap(scale))
    assert scale.__doc__ == "What users read."
    assert scale.__name__ == scale.__qualname__ == "scale"
    assert scale.__module__ == __name__
    with pytest.raises(TypeError, match=r"scale\(\) takes"):
        scale(1, None, 2.0, 3)  # shift is keyword-only


def test_a_call_packs_no_arguments():
    """What *args and **kwargs cost is a third of a small kernel's call."""
    assert not scale.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)


def fails() -> SimpleNamespace:
    def failing(x: object) -> None:
        raise ValueError("no such luck")

    return SimpleNamespace(failing=failing)


@FAMILY.op(
    exports=fails,
    mutates=("x",),
)
def failing(x: torch.Tensor) -> None:
    """Fails."""


def test_a_traceback_and_a_profile_name_the_line_of_the_declaration():
    line = failing.__wrapped__.__code__.co_firstlineno
    with pytest.raises(ValueError, match="no such luck") as caught:
        failing(torch.ones(1))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert "<string>" not in {frame.filename for frame in frames}
    (frame,) = (frame for frame in frames if frame.name == "failing" and frame.lineno == line)
    assert frame.filename == __file__
    assert frame.line == "@FAMILY.op("

    profile = cProfile.Profile()
    with profile:
        scale(1)
    seen = {(file, name) for file, _, name in pstats.Stats(profile).stats}
    assert (__file__, "scale") in seen
    assert "<string>" not in {file for file, _ in seen}


def test_its_source_is_that_of_the_declaration():
    assert inspect.getsource(failing).startswith("@FAMILY.op(\n    exports=fails,")
    assert inspect.getsourcefile(failing) == __file__


def test_an_op_of_a_package_can_be_pickled():
    from sgljit_norm import rmsnorm

    assert pickle.loads(pickle.dumps(rmsnorm)) is rmsnorm


def test_code_whose_source_is_nowhere_can_be_declared_too(family):
    scope = {"torch": torch}
    exec("def typed(x: torch.Tensor) -> None:\n    x.add_(1)", scope)
    op = family.op(mutates=("x",))(scope["typed"])
    x = torch.zeros(1)
    op(x)
    assert x.tolist() == [1]


@pytest.mark.parametrize("given", [None, 3, module])
def test_a_loader_that_returns_no_module_is_named_with_what_it_returns(family, given):
    @family.op(exports=lambda: given)
    def lost(x: int) -> None:
        """A declaration."""

    with pytest.raises(errors.InvalidFamilyError) as caught:
        lost(1)
    text = str(caught.value)
    assert text.startswith(f"op {family.name}.lost ({__file__}:")
    assert f"names as exports returned {given!r}, and must return the module that exports lost, such as" in text


def test_a_module_in_place_of_its_loader_is_refused_where_it_is_declared(family):
    def declared(x: int) -> None:
        """A declaration."""

    loaded = tvm_ffi.system_lib("sgljit_nothing_")
    assert callable(loaded)
    with pytest.raises(errors.InvalidFamilyError, match=r"declared .*: exports must be the function that returns"):
        family.op(exports=loaded)(declared)


def test_a_function_that_its_module_does_not_export_is_named_with_the_remedy(family):
    @family.op(exports=lambda: SimpleNamespace(implements_function=lambda name: False))
    def missing(x: int) -> None:
        """A declaration."""

    with pytest.raises(errors.InvalidFamilyError) as caught:
        missing(1)
    text = str(caught.value)
    assert ") stands for a function that its module does not export. End its file with SGL_EXPORT(" in text
    assert "SGL_EXPORT(missing, (missing)), and list the file in KernelFamily(host=[...])" in text
    assert text.endswith("names it in cpp_wrappers: ('missing', the C++ symbol)")


def test_a_declaration_with_another_number_of_parameters_is_refused_with_both(family):
    def takes_two(*args: int) -> None:
        raise TypeError(f"mismatched(): expected 2 arguments, got {len(args)}")

    @family.op(exports=lambda: SimpleNamespace(mismatched=takes_two))
    def mismatched(x: int, y: int = 0, z: int = 0) -> None:
        """A declaration."""

    with pytest.raises(errors.InvalidFamilyError, match=r"declares 3 parameters, and the C\+\+ function takes 2"):
        mismatched(1)


def test_a_parameter_may_have_any_name(family):
    @family.op(exports=lambda: SimpleNamespace(named=lambda *args: calls.append(args)))
    def named(call: int, library_op: int = 2, *, function: int = 3, type: int = 4) -> None:  # noqa: A002
        """A declaration."""

    assert called(named, 1) == (1, 2, 3, 4)
    assert called(named, call=4, function=5) == (4, 2, 5, 4)


def test_the_body_may_be_python(family):
    @family.op(mutates=("x",))
    def shift_(x: torch.Tensor, by: int = 1, *, twice: bool = False) -> None:
        x.add_(2 * by if twice else by)

    x = torch.zeros(1)
    shift_(x)
    shift_(x, 2, twice=True)
    assert x.tolist() == [5]
