"""How is the plugin of a family loaded?

It is imported when its family is first asked for. Whatever it does wrong is kept with its name and raised when *its*
family is asked for; the others work.
"""

from __future__ import annotations

from collections.abc import Mapping

from sgljit_core.config import settings
from sgljit_core.errors import SHORTAGES, PluginConflictError, PluginLoadError
from sgljit_core.machine.forks import ForkLock
from sgljit_core.plugins import hooks
from sgljit_core.plugins.discovery import KERNELS, Plugin, described, import_plugin, installed, load_error

from .family import KernelFamily

_lock = ForkLock()  # plugins are loaded one after the other
_families: dict[str, KernelFamily] = {}
_failures: dict[str, PluginLoadError | PluginConflictError] = {}


def load(family: str) -> KernelFamily:
    """Import the plugin of an installed family and return what it registered.

    Raises PluginConflictError, PluginLoadError (also where it has failed before) and IncompatiblePluginError.
    """
    families = installed()
    claims = families[family]
    if len(claims) > 1:
        listed = "\n".join(f"  - {described(plugin)}" for plugin in claims)
        raise PluginConflictError(
            f"family {family!r} is claimed by {len(claims)} distributions:\n{listed}\n"
            f"Uninstall all but one, or name the ones to use in SGLJIT_PLUGINS=<distribution>,..."
        )
    if settings().has_remote and not hooks.load_plugins.cache_info().misses:  # an extension may ask while it is loaded
        hooks.load_plugins()  # sgljit-remote imports what it needs, in a thread
    with _lock.here():
        if family in _failures:
            raise _failures[family]
        if family not in _families:
            try:
                _load(claims[0], families)
                if family not in _families:
                    raise PluginLoadError(
                        str(claims[0]),
                        f"its entry point promises the family {family!r}, which {claims[0].module} does not register: "
                        f"it must name a KernelFamily of this name, such as PACKAGE.plugin:FAMILY, or a module with "
                        f"`@hookimpl def sgljit_register_kernels(register)` that calls register(FAMILY)",
                    )
            except (PluginLoadError, PluginConflictError) as error:
                if not _may_pass(error):
                    _failures[family] = error
                raise
        return _families[family]


def _may_pass(error: BaseException | None) -> bool:
    """Whether it is caused by a missing resource (descriptors, memory, stack), so that the next try may succeed."""
    while error is not None:
        if isinstance(error, MemoryError | RecursionError) or getattr(error, "errno", None) in SHORTAGES:
            return True
        error = error.__cause__ or error.__context__
    return False


def _load(plugin: Plugin, claims: Mapping[str, tuple[Plugin, ...]]) -> None:
    """Import a plugin and take the families that it registers."""
    module = import_plugin(plugin)
    hooks.registering.clear()
    if hooks.manager().is_registered(module):  # another entry point names it, or a load of it was interrupted
        hooks.manager().unregister(module)
    try:
        hooks.register(module, plugin)
        for family in hooks.registering:
            if not isinstance(family, KernelFamily):
                raise TypeError(f"register() expects a KernelFamily, got {type(family).__name__}")
    except (Exception, SystemExit) as error:
        if hooks.manager().is_registered(module):
            hooks.manager().unregister(module)
        raise load_error(plugin, error) from error
    for family in hooks.registering:
        owners = claims.get(family.name, ())
        if plugin.distribution not in {owner.distribution for owner in owners}:
            raise PluginConflictError(
                f"{described(plugin)} registers the family {family.name!r}, "
                + (f"which belongs to {described(owners[0])}" if owners else "for which it has no entry point")
                + f". A distribution registers the families that its entry points in {KERNELS!r} name."
            )
    _families.update({family.name: family for family in hooks.registering})
