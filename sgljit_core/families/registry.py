"""``ops``: the families and ops that users see.

``list(ops)`` and ``"norm" in ops`` read metadata only; ``ops["norm"]`` imports the plugin; ``ops["norm"].rmsnorm``
and ``dir(ops["norm"])`` import the family's ops, and with them torch.

A family is an attribute of a module object, and an op an attribute of a family, which is one too: so a first use may
be in a function that torch.compile traces (see ``tracing``).
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sgljit_core import log
from sgljit_core.config import settings
from sgljit_core.errors import UnknownFamilyError, UnknownOpError
from sgljit_core.lazy import collector_paused
from sgljit_core.plugins import discovery
from sgljit_core.plugins.discovery import KERNELS, Plugin
from sgljit_core.plugins.references import nearest

from . import loading
from .family import KernelFamily


class FamilyOps(types.ModuleType):
    """The ops of one family as attributes."""

    __getattribute__ = object.__getattribute__  # beside __getattr__ a module's own takes three times as long

    def __init__(self, family: KernelFamily, plugin: Plugin) -> None:
        super().__init__(family.name, f"The ops of the family {family.name!r}, from {plugin}.")
        self._family = family
        self._plugin = plugin
        family.follow(self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Import an op, and keep it. Raises UnknownOpError with the family's ops and the nearest match."""
        if name.startswith("_"):  # what copy and pickle ask an object for before it has anything
            raise AttributeError(name)
        with collector_paused():
            declared = self._family.declared()
        if name not in declared:
            raise UnknownOpError(
                f"family {self._family.name!r} ({self._plugin}) has no op {name!r}{nearest(name, declared) or '.'} "
                f"Its ops: {', '.join(declared)}",
                name=name,
                obj=self,
            )
        return vars(self).setdefault(name, declared[name].function)  # type: ignore[no-any-return]

    def __dir__(self) -> list[str]:
        return list(self._family.declared())

    def __repr__(self) -> str:
        return f"<ops of {self._family.name!r} from {self._plugin}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (ops, self._family.name)


class _Loaded(types.ModuleType):
    """The families that are loaded, as attributes; another is loaded when it is asked for."""

    __getattribute__ = object.__getattribute__

    def __getattr__(self, family: str) -> FamilyOps:
        if family.startswith("_"):  # no family, and what copy and pickle ask an object for
            raise AttributeError(family)
        name = family.replace("-", "_")
        if name not in (found := discovery.installed()):
            discovery.rescan()  # it may have been installed since
            if name not in (found := discovery.installed()):
                raise UnknownFamilyError(_unknown(name, list(found)))
        # Several threads may load a family at a time. One puts its object in, and all return that one.
        with collector_paused():
            made = FamilyOps(loading.load(name), found[name][0])
        loaded: FamilyOps = vars(self).setdefault(name, made)
        setattr(self, family, loaded)
        return loaded


class Registry(Mapping[str, FamilyOps]):
    """The installed families by name, read-only. A hyphen reads as an underscore."""

    def __init__(self) -> None:
        self._loaded = _Loaded("sgljit families")

    def __getitem__(self, family: str) -> FamilyOps:
        """Load a family at its first use. Raises UnknownFamilyError, and as ``loading.load`` does."""
        if not isinstance(family, str):
            raise TypeError(f'a family is named by a string, such as ops["norm"], and not by {family!r}')
        if family < "a" and family[:1] == "_":  # a module object has such attributes; the slice alone takes 50 ns more
            raise UnknownFamilyError(_unknown(family, list(self)))
        return getattr(self._loaded, family)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f'{name!r} is no attribute of ops: a family is an item, ops["{name}"]')

    def __iter__(self) -> Iterator[str]:
        return iter(discovery.installed())

    def __len__(self) -> int:
        return len(discovery.installed())

    def __contains__(self, family: object) -> bool:
        return isinstance(family, str) and family.replace("-", "_") in discovery.installed()

    def __repr__(self) -> str:
        return f"<sgljit ops: {', '.join(self) or 'no family is installed'}>"

    def __reduce__(self) -> str:
        return "ops"  # the one of the process


ops = Registry()


def register_all(*families: str) -> None:
    """Register the ops of families with PyTorch, as a look-up of an op does.

    ``torch.export.load`` knows ops by their names in ``torch.ops`` alone: call this before it.

    Args:
        families: their names; by default all that are installed. One of these that cannot be loaded is reported as a
            warning, once.

    Raises:
        UnknownFamilyError, PluginConflictError, PluginLoadError, IncompatiblePluginError, InvalidFamilyError: a family
            that is named cannot be loaded.
    """
    for family in families or ops:
        try:
            dir(ops[family])
        except Exception as error:  # noqa: PERF203 - it is a plugin's, and may be anything
            if families:
                raise
            log.once("plugin_problem", f"register_all {family}", f"the ops of {family} are not registered: {error}")


def first_party(family: str) -> str | None:
    """The project's own distribution that has a family, installed or not; None if none of them has it."""
    own = ("activation", "hicache", "kvcache", "moe", "norm", "quant", "rope", "sampling", "wait_value")
    return f"sgljit-{family.replace('_', '-')}" if family in own else None


def _unknown(name: str, known: list[str]) -> str:
    installed = ", ".join(known) or "none"
    allowed = settings().plugins
    # Nobody knows who may have registered another name on an index.
    provider = f"It is in {own}: pip install it. " if (own := first_party(name)) else ""
    restriction = "" if allowed is None else f"; SGLJIT_PLUGINS allows only {', '.join(sorted(allowed)) or 'none'}"
    return (
        f"no installed plugin provides the kernel family {name!r}{nearest(name, known)} "
        f"(installed: {installed}{restriction}). {provider}If it is "
        f'yours: its pyproject needs {name} = "PACKAGE.plugin:FAMILY" below [project.entry-points."{KERNELS}"], and '
        f"must be installed again after that"
    )
