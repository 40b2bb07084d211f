"""``ops``: the families and ops that users see.

``list(ops)`` and ``"norm" in ops`` read metadata only; ``ops["norm"]`` imports the plugin; ``ops["norm"].rmsnorm``
imports the op's implementation, and with it torch.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

from sgljit_core.config import settings
from sgljit_core.errors import InvalidFamilyError, UnknownFamilyError, UnknownOpError
from sgljit_core.machine.forks import ForkLock
from sgljit_core.model.build import FamilySpec, Op

from . import discovery
from .discovery import Plugin

__all__ = ["FamilyOps", "Registry", "declared_variants", "ops", "resolve"]


# A family is loaded once and an op registered once, whichever threads ask for them first.
_lock = ForkLock()


def _while_tracing(method: Any) -> Any:
    """Have torch.compile call a method while it traces, and not trace it: a first use may be in a compiled graph.

    What ``torch.compiler.assume_constant_result`` does, without importing torch. The method returns nothing.
    """
    method._dynamo_marked_constant = True  # noqa: SLF001
    return method


class FamilyOps:
    """The ops of one family as attributes."""

    def __init__(self, family: FamilySpec, plugin: Plugin) -> None:
        self._family = family
        self._plugin = plugin

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Import an op at its first use. Raises UnknownOpError with the family's ops and the nearest match."""
        if name.startswith("_"):  # what copy and pickle ask an object for before it has anything
            raise AttributeError(name)
        self._import(name)
        found: Callable[..., Any] = vars(self)[name]
        return found

    @_while_tracing
    def _import(self, name: str) -> None:
        op = next((op for op in self._family.ops if op.name == name), None)
        if op is None:
            names = [op.name for op in self._family.ops]
            raise UnknownOpError(
                f"family {self._family.name!r} ({self._plugin}) has no op {name!r}{_nearest(name, names)}; "
                f"it has: {', '.join(names)}",
                name=name,
                obj=self,
            )
        with _lock.here():
            if name not in vars(self):  # another thread may have been first
                setattr(self, name, _callable(self._family, op))  # the next access finds it without coming here

    def __dir__(self) -> list[str]:
        return [op.name for op in self._family.ops]

    def __repr__(self) -> str:
        return f"<ops of {self._family.name!r} from {self._plugin}: {', '.join(dir(self))}>"


class Registry(dict[str, FamilyOps]):
    """The installed families by name. A hyphen reads as an underscore.

    It *is* the dictionary of those that are loaded, so that ``ops["norm"]`` in front of every call costs a look-up in
    C; all other questions are answered by what is installed.
    """

    def __init__(self) -> None:
        super().__init__()
        # The same once more: what torch.compile knows of this dictionary is as old as the beginning of its trace.
        self._loaded: dict[str, FamilyOps] = {}

    def __missing__(self, family: str) -> FamilyOps:
        """Load a family at its first use.

        Raises:
            UnknownFamilyError: no installed plugin provides it; the text has the nearest match and the pip line.
            PluginConflictError, PluginLoadError, IncompatiblePluginError: its plugin cannot be used.
        """
        self._load(family)
        return self._loaded[family]

    @_while_tracing
    def _load(self, family: str) -> None:
        name = family.replace("-", "_")
        claims = discovery.installed().get(name)
        if claims is None:
            discovery.rescan()  # it may have been installed since
            claims = discovery.installed().get(name)
        if claims is None:
            raise UnknownFamilyError(_unknown(name, list(self)))
        with _lock.here():
            loaded = dict.get(self, name) or FamilyOps(discovery.load(name, claims), claims[0])
            for dictionary in (self, self._loaded):
                dictionary.update({name: loaded, family: loaded})

    def get(self, family: str, default: Any = None) -> Any:
        try:
            return self[family]
        except KeyError:
            return default

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a view of what is installed
        return KeysView(self)

    def values(self) -> ValuesView[FamilyOps]:  # type: ignore[override]
        return ValuesView(self)

    def items(self) -> ItemsView[str, FamilyOps]:  # type: ignore[override]
        return ItemsView(self)

    def __iter__(self) -> Iterator[str]:
        return iter(discovery.installed())

    def __len__(self) -> int:
        return len(discovery.installed())

    def __contains__(self, family: object) -> bool:
        return isinstance(family, str) and family.replace("-", "_") in discovery.installed()

    def __repr__(self) -> str:
        return f"<sgljit ops: {', '.join(self) or 'no family is installed'}>"


ops = Registry()


def _callable(family: FamilySpec, op: Op) -> Callable[..., Any]:
    from .library_ops import dispatching, register  # imports torch

    function = resolve(op.implementation)
    fake = None if op.fake is None else resolve(op.fake)
    return dispatching(function, register(family.name, op.name, function, op.mutates, fake))


def resolve(reference: str) -> Callable[..., Any]:
    """Import what "package.module:function" names. Raises InvalidFamilyError where there is no such module or name."""
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another that is not
        raise InvalidFamilyError(
            f"a plugin names {reference!r}, but there is no module {error.name!r}"
            f"{_nearest(error.name, _siblings(error.name))}"
        ) from error
    if not hasattr(module, name):
        raise InvalidFamilyError(
            f"a plugin names {reference!r}, but {module.__file__} has no {name!r}{_nearest(name, dir(module))}"
        )
    function: Callable[..., Any] = getattr(module, name)
    return function


def _siblings(module_name: str) -> list[str]:
    """The modules of the package that a module would be in."""
    package = module_name.rpartition(".")[0]
    path = getattr(sys.modules.get(package), "__path__", ())
    return [module.name for module in pkgutil.iter_modules(path, f"{package}.")]


def declared_variants(family: str) -> list[Callable[[], Any]]:
    """What a family declares worth building ahead: functions without arguments that each build one thing.

    Raises:
        UnknownFamilyError: no installed plugin provides the family.
        InvalidFamilyError: it declares no variants, or something else than functions.
    """
    name = family.replace("-", "_")
    claims = discovery.installed().get(name, ())
    if not claims:
        ops[family]  # raises the error that names the families there are
    spec = discovery.load(name, claims)
    if spec.variants is None:
        raise InvalidFamilyError(f"family {name!r} ({claims[0]}) declares no variants; see KernelFamily(variants=...)")
    builders = list(resolve(spec.variants)() or ())
    for number, builder in enumerate(builders, 1):
        if not callable(builder):
            raise InvalidFamilyError(
                f"family {name!r} ({claims[0]}): {spec.variants} must yield callables without arguments; #{number} is "
                f"a {type(builder).__name__}. Yield the function and do not call it, or functools.partial"
            )
    return builders


def _unknown(name: str, known: list[str]) -> str:
    installed = ", ".join(known) or "none"
    allowed = settings().plugins
    restriction = "" if allowed is None else f"; SGLJIT_PLUGINS allows only {', '.join(sorted(allowed)) or 'none'}"
    return (
        f"no installed plugin provides the kernel family {name!r}{_nearest(name, known)} "
        f"(installed: {installed}{restriction}). If it exists: pip install sgljit-{name.replace('_', '-')}. If it is "
        f'yours: its pyproject needs {name} = "PACKAGE.plugin" below [project.entry-points."{discovery.KERNELS}"], and '
        f"must be installed again after that"
    )


def _nearest(name: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
