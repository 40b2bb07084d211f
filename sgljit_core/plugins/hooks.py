"""The calls of the plugins' hooks: for headers and artifacts, and to report builds and loads.

Each implementation is called by itself, so that a broken observer does not stop a build: it is reported as a warning,
once, and left out. Rejected: pluggy's call of the whole hook, which ends at the first plugin that raises. A hook
wrapper cannot go on with the next plugin, and a ``historic`` hook has no wrappers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sgljit_core.config import settings
from sgljit_core.errors import InvalidBuildError
from sgljit_core.lazy import collector_paused

if TYPE_CHECKING:
    from pluggy import PluginManager

    from .discovery import Plugin

T = TypeVar("T")

_plugins: dict[Any, Plugin] = {}  # by what the entry point names: a module, or an object such as a family
registering: list[Any] = []  # the families of the plugin that is loaded, for ``families.loading``


def header_directories(name: str) -> list[Path]:
    """The include directories of a named header library. Raises InvalidBuildError: no plugin provides the name."""
    providers = header_providers()
    if name not in providers:
        known = ", ".join(sorted(providers)) or "none"
        text = f"extra_dependencies: no installed plugin provides the headers {name!r} (provided: {known})"
        raise InvalidBuildError(text)
    return [Path(path) for path in providers[name]()]


@collector_paused()
def prebuilt_roots() -> list[Path]:
    """The directories of finished artifacts that plugins name. They are as trusted as the code that names them."""
    from . import discovery  # imports importlib_metadata, which takes longer than a hit

    if not discovery.entry_points(discovery.EXTENSIONS, settings().plugins):  # so that pluggy need not be imported
        return []
    return [path for paths in _ask("sgljit_prebuilt_dirs", lambda paths: [*map(Path, paths)]) for path in paths]


def fetched(location: Path, toolchain_key: str | None, root: Path) -> list[Path]:
    """The roots below which extensions have put an artifact that no tier has."""
    return _ask("sgljit_fetch", Path, location=location, toolchain_key=toolchain_key, root=root)


def tell(hook: str, **arguments: Any) -> None:
    """Tell each plugin what the hook is for."""
    _ask(hook, bool, **arguments)


def register(module: Any, plugin: Plugin) -> None:
    """Take a plugin's module, and report its hook wrappers, which nothing calls."""
    from . import discovery

    if not manager().is_registered(module):  # an entry point of each group may name it
        manager().register(module)
    _plugins[module] = plugin
    for caller in manager().get_hookcallers(module) or ():
        if any(one.plugin is module and _is_wrapper(one) for one in caller.get_hookimpls()):
            about = f"{discovery.described(plugin)}: its {caller.name}"
            text = f"{about} is a hook wrapper and is not called: there is nothing to wrap, as each plugin is asked by "
            discovery.report(about, f"{text}itself. Write it as a plain @hookimpl")


@functools.cache
def manager() -> PluginManager:
    """Pluggy's manager of all plugins that are loaded."""
    import pluggy

    from . import hookspecs

    made = pluggy.PluginManager("sgljit")
    made.add_hookspecs(hookspecs)
    # Historic: every plugin that is registered from now on is called back at once with this ``register``.
    made.hook.sgljit_register_kernels.call_historic(kwargs={"register": registering.append})
    return made


@functools.cache
def load_plugins() -> None:
    """Load every extension: plugins of the group ``sgljit.extensions``. One that fails is reported and left out."""
    from . import discovery

    for plugin in discovery.entry_points(discovery.EXTENSIONS, settings().plugins):
        try:
            register(discovery.import_plugin(plugin), plugin)
        except Exception as error:  # noqa: BLE001, PERF203 - it is a plugin's, and may be anything
            about = discovery.described(plugin)
            discovery.report(about, f"{about} cannot be used: {error}")


def _ask(hook: str, take: Callable[[Any], T], **arguments: Any) -> list[T]:
    """Each plugin's answer to a hook, as ``take`` converts it, the latest plugin's first."""
    load_plugins()
    answers = []
    for one in reversed(getattr(manager().hook, hook).get_hookimpls()):
        if _is_wrapper(one):
            continue
        try:
            if (answer := one.function(*(arguments[name] for name in one.argnames))) is not None:
                answers.append(take(answer))
        except Exception as error:  # noqa: BLE001 - it is a plugin's, and may be anything
            from . import discovery

            plugin = _plugins.get(one.plugin)
            about = f"{discovery.described(plugin) if plugin else one.plugin_name}: its {hook}"
            discovery.report(about, f"{about} raised {type(error).__name__}: {error}")
    return answers


def _is_wrapper(implementation: Any) -> bool:
    return bool(implementation.wrapper or implementation.hookwrapper)


def header_providers() -> dict[str, Callable[[], list[Path]]]:
    """By name, what the plugins provide for builds that ask for headers by name."""
    return {name: find for answer in _ask("sgljit_header_dependencies", dict) for name, find in answer.items()}
