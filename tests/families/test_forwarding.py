"""Python functions whose body is a C++ function."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from sgljit_core import errors, exported, load_jit

loads: list[str] = []


def module() -> SimpleNamespace:
    loads.append("load")
    return SimpleNamespace(scale=lambda *args: args)


@exported(module)
def scale(x: int, out: int | None = None, factor: float = 2.0, *, shift: int = 3) -> tuple[int, ...]:
    """What users read."""


def test_the_exported_function_gets_every_argument_by_position():
    assert scale(1) == (1, None, 2.0, 3)
    assert scale(1, 5, shift=4) == (1, 5, 2.0, 4)
    assert scale(x=1, factor=0.5) == (1, None, 0.5, 3)


def test_the_module_is_loaded_at_the_first_call_and_once():
    loads.clear()
    late = exported(module)(inspect.unwrap(scale))
    assert loads == []
    late(1)
    late(2)
    assert loads == ["load"]


def test_a_load_that_fails_is_tried_again():
    attempts = []

    def flaky() -> SimpleNamespace:
        attempts.append(None)
        if len(attempts) == 1:
            raise OSError("no compiler yet")
        return module()

    op = exported(flaky)(inspect.unwrap(scale))
    with pytest.raises(OSError, match="no compiler yet"):
        op(1)
    assert op(1) == (1, None, 2.0, 3)


def test_it_looks_like_the_declaration():
    assert inspect.signature(scale) == inspect.signature(inspect.unwrap(scale))
    assert scale.__doc__ == "What users read."
    assert scale.__name__ == "scale"
    with pytest.raises(TypeError, match=r"scale\(\) takes|function\(\) takes"):
        scale(1, None, 2.0, 3)  # shift is keyword-only


def test_a_call_packs_no_arguments():
    """What *args and **kwargs cost is a third of a small kernel's call."""
    assert not scale.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)


def test_a_function_that_its_module_does_not_export_is_named_with_the_remedy():
    @exported(SimpleNamespace)
    def missing(x: int) -> None:
        """A declaration."""

    with pytest.raises(errors.InvalidFamilyError) as caught:
        missing(1)
    text = str(caught.value)
    assert "missing stands for a function that its module does not export; the module exports: nothing." in text
    assert "With header_only=False, end the file of missing with SGL_EXPORT(missing, (missing));" in text
    assert text.endswith("else name it in cpp_wrappers: ('missing', the C++ symbol)")


def test_a_misspelt_export_is_named_with_what_the_module_exports(tmp_path):
    code = (
        "#include <cstdint>\nstd::int64_t rotate_half(std::int64_t x) { return x; }\n#include <sgl_kernel/export.h>\n"
    )
    (tmp_path / "rotate.cpp").write_text(
        f"{code}SGL_EXPORT(rotate_hlaf, (rotate_half))\nSGL_EXPORT(a, (rotate_half))\n"
    )

    @exported(lambda: load_jit("rotate", cpp_files=["rotate.cpp"], header_only=False, csrc=tmp_path))
    def rotate_half(x: int) -> int:
        """A declaration."""

    with pytest.raises(errors.InvalidFamilyError) as caught:
        rotate_half(1)
    assert "does not export; did you mean 'rotate_hlaf'?; the module exports: a, rotate_hlaf. " in str(caught.value)


def test_a_declaration_with_another_number_of_parameters_is_refused_with_both():
    def takes_two(*args: int) -> None:
        raise TypeError(f"mismatched(): expected 2 arguments, got {len(args)}")

    @exported(lambda: SimpleNamespace(mismatched=takes_two))
    def mismatched(x: int, y: int = 0, z: int = 0) -> None:
        """A declaration."""

    with pytest.raises(errors.InvalidFamilyError, match=r"declares 3 parameters, and the C\+\+ function takes 2"):
        mismatched(1)


def test_a_parameter_may_have_any_name():
    @exported(lambda: SimpleNamespace(named=lambda *args: args))
    def named(call: int, library_op: int = 2, *, function: int = 3) -> None:
        """A declaration."""

    assert named(1) == (1, 2, 3)
    assert named(call=4, function=5) == (4, 2, 5)
