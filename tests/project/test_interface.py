"""What docs/compatibility.md promises is what it was: names, parameters, hooks, errors, options, and plugins' ops.

``interface.txt`` is the interface as it was released. A line that changes there is a promise that is broken, unless it
adds something. Look at each line, then write the file anew: run this file with ``PYTHONPATH=tests:docs``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import pluggy
from generated import command_line

from sgljit_core import ops
from sgljit_core.families import loading
from sgljit_core.plugins import hookspecs

SNAPSHOT = Path(__file__).with_name("interface.txt")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def promised() -> list[str]:
    """The Python names that all may use."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Python names\n")[2].partition("\n### For the tools\n")[0]
    found = []
    for module, cell in re.findall(r"^\| `([\w.]+)` \| (.+?) \|", text, re.MULTILINE):
        names = importlib.import_module(module).__all__ if cell == "all of `__all__`" else re.findall(r"`(\w+)`", cell)
        found += [f"{module}.{name}" for name in names]
    return sorted(found)


def signature(function: Any) -> str:
    """Parameters with annotations and defaults; an address in a default is no part of it."""
    if get_origin(function) is not None:  # of a name for a type, releases of Python tell different parameters, or none
        return "(...)"
    try:
        text = str(inspect.signature(function))
    except (ValueError, TypeError):
        return "(...)"
    text = re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", re.sub(r"(: |-> )'([^']*)'", r"\1\2", text))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def described(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value) or isinstance(value, str | pluggy.HookimplMarker):  # the last is pluggy's to change
        yield name
    elif isinstance(value, type) and get_origin(value) is None:  # a name for a type is one in Python 3.10
        bases = ", ".join(base.__name__ for base in value.__bases__)
        is_error = issubclass(value, BaseException)  # its parameters are the project's own
        yield f"{name}({bases})" if is_error else f"{name}{signature(value)}, a {bases}"
        for member, one in sorted(vars(value).items()):
            if member.startswith("_") or is_error:
                continue
            function = getattr(one, "__func__", one)
            yield f"{name}.{member}{signature(function) if inspect.isfunction(function) else ''}"
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def interface() -> list[str]:
    """A line for each promise."""
    lines = []
    for name in promised():
        module, _, attribute = name.rpartition(".")
        if attribute != "__version__":
            lines += described(name, getattr(importlib.import_module(module), attribute))
    for name, value in sorted(vars(hookspecs).items()):
        if name.startswith("sgljit_"):
            lines.append(f"hook {name}{signature(value)}")
    for words, command in command_line.commands():
        taken = sorted("/".join([*one.opts, *one.secondary_opts]) for one in command.params)
        lines.append(f"sgljit {words}: {' '.join(taken)}")
    for family in sorted(ops):
        if loading.installed()[family][0].distribution.startswith("sgljit-"):
            declared = loading.load(family).declared()
            lines += [f"op {family}.{name}{signature(declared[name].function)}" for name in sorted(declared)]
    return lines


def test_the_interface_is_what_it_was():
    kept, now = SNAPSHOT.read_text(encoding="utf-8").splitlines(), interface()
    changes = list(difflib.unified_diff(kept, now, "interface.txt", "now", lineterm="", n=0))
    assert changes == [], "\n".join(["docs/compatibility.md says what may change; see the top of this file", *changes])


def test_a_change_is_seen():
    """A changed default, base class or method changes a line."""

    def before(x: int, *, eps: float = 1e-6) -> None:
        pass

    def after(x: int, *, eps: float = 1e-5) -> None:
        pass

    assert [*described("f", before)] == ["f(x: int, *, eps: float = 1e-06) -> None"]
    assert [*described("f", before)] != [*described("f", after)]
    assert [*described("E", type("E", (ValueError,), {}))] == ["E(ValueError)"]
    kind = type("Kind", (), {"call": lambda self, x: None, "_own": 1})
    assert [*described("Kind", kind)] == ["Kind(), a object", "Kind.call(self, x)"]


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(f"{line}\n" for line in interface()), encoding="utf-8")
