"""Lazy names that torch.compile may meet while it traces, without a private name of torch.

torch.compile traces Python functions, but it evaluates an attribute of a module, and with it the module's
``__getattr__``, at once. Code that must run rather than be traced is therefore an attribute of a module object.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["Attributes", "constant", "torch_compiler"]


class Attributes(types.ModuleType):
    """A module object whose attributes are made at their first use."""

    def __init__(self, name: str, **makers: Callable[[], Any]) -> None:
        super().__init__(name)
        self.__dict__["_makers"] = makers

    def __getattr__(self, name: str) -> Any:
        if name not in self._makers:
            raise AttributeError(name)
        value = self._makers[name]()
        setattr(self, name, value)
        return value


def constant(function: Callable[..., Any]) -> Attributes:
    """An object whose ``call`` runs ``function`` while torch.compile traces; the graph holds the result."""

    def make() -> Any:
        import torch

        return torch.compiler.assume_constant_result(function)

    return Attributes(f"constant {function.__qualname__}", call=make)


class _Compiler(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name != "is_compiling":
            raise AttributeError(name)
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "compiler"):
            return _no  # and ask again at the next call
        self.is_compiling = torch.compiler.is_compiling
        return self.is_compiling


def _no() -> bool:
    return False


# ``torch_compiler.is_compiling()`` does not import torch: where torch is not imported, nothing is compiled.
torch_compiler = _Compiler("sgljit torch.compiler")
