"""How does "package.module:function" become the function?"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from sgljit_core.errors import InvalidFamilyError

from .origin import Origin

REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve(reference: str, where: Origin) -> Callable[..., Any]:
    """Import what "package.module:function" names. Raises as ``import_module`` does, and where it has no such name."""
    module_name, _, name = reference.partition(":")
    module = import_module(module_name, where, reference)
    if not hasattr(module, name):
        text = f"{where} names {reference!r}, but {module.__file__} has no {name!r}{nearest(name, dir(module))}"
        raise InvalidFamilyError(text)
    function: Callable[..., Any] = getattr(module, name)
    return function


def import_module(name: str, where: Origin, named: str | None = None) -> ModuleType:
    """Import a module that a plugin names. For the error, ``named`` is what the plugin wrote.

    Raises InvalidFamilyError: there is no such module. Exceptions of the module itself pass unchanged.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another that is not
        package = error.name.rpartition(".")[0]
        path = getattr(sys.modules.get(package), "__path__", ())
        siblings = [module.name for module in pkgutil.iter_modules(path, f"{package}.")]
        raise InvalidFamilyError(
            f"{where} names {(named or name)!r}, but there is no module {error.name!r}{nearest(error.name, siblings)}"
        ) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """A question for the end of an error: did you mean the nearest of the known names? Empty where none is near."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
