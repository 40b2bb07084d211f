"""Lazy names that torch.compile may meet while it traces, without a private name of torch.

torch.compile traces Python functions, but it evaluates an attribute of a module, and with it the module's
``__getattr__``, at once. Code that must run rather than be traced is therefore an attribute of a module object.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any


class Constant(types.ModuleType):
    """An object whose ``call`` runs a function while torch.compile traces; the graph holds the result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(f"constant {function.__qualname__}")
        self._function = function

    def __getattr__(self, name: str) -> Any:
        if name != "call":
            raise AttributeError(name)
        import torch

        self.call = torch.compiler.assume_constant_result(self._function)
        return self.call


class _Compiler(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name != "is_compiling":
            raise AttributeError(name)
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "compiler"):
            return lambda: False  # and ask again at the next call
        self.is_compiling = torch.compiler.is_compiling
        return self.is_compiling


# ``torch_compiler.is_compiling()`` does not import torch: where torch is not imported, nothing is compiled.
torch_compiler = _Compiler("sgljit torch.compiler")
