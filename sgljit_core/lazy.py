"""How does a package have names whose modules are not imported with it?"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


def attributes(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names are imported at their first use (PEP 562).

    Hide the assignment from type checkers, and give them the imports, so that they see each name's own type:

    >>> if TYPE_CHECKING:
    ...     from .ops import rmsnorm
    ... else:
    ...     __getattr__, __dir__ = attributes(__name__, {"ops": __all__})

    Args:
        package: the package's ``__name__``.
        homes: by module, relative to the package, the names that it has; under "" the names of submodules.
    """

    def find(name: str) -> Any:
        home = next((home for home, names in homes.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with collector_paused():
            module = importlib.import_module(f"{package}.{home or name}")
        if not home:
            return module
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)  # the next access finds it without coming here
        return value

    return find, lambda: sorted(sys.modules[package].__all__)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside the block, which makes thousands of objects that stay.

    A full collection in between walks all of PyTorch's objects: 100 ms, several times what a family takes to load.
    A block that finds it off leaves it alone: of two threads, the second is slower once the first has turned it on.
    """
    if was_enabled := gc.isenabled():
        gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
