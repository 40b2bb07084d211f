"""What does the Python interface offer? Directives that show each name with its docstring."""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def _directive(module: str, name: str) -> list[str]:
    value: Any = getattr(importlib.import_module(module), name)
    if inspect.isclass(value) and issubclass(value, BaseException):
        return [f".. autoexception:: {module}.{name}"]
    if inspect.isclass(value):
        lines = [f".. autoclass:: {module}.{name}", "   :members:", "   :member-order: bysource"]
        fields = getattr(value, "_fields", ())  # of a NamedTuple; its docstring has them
        return [*lines, f"   :exclude-members: {', '.join(fields)}"] if fields else lines
    if inspect.isroutine(value):
        return [f".. autofunction:: {module}.{name}"]
    return [f".. autodata:: {module}.{name}", "   :no-value:"]


def markdown(module: str, *names: str) -> str:
    """The named ones of a module, by default all of its ``__all__``."""
    names = names or tuple(importlib.import_module(module).__all__)
    lines = [line for name in names for line in [*_directive(module, name), ""]]
    return "\n".join(["```{eval-rst}", *lines, "```"]) + "\n"
