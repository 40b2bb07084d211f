"""Which plugins are installed, and how is one loaded?

Discovery reads the metadata of installed distributions and imports nothing of theirs. A plugin is imported when its
family is first asked for. Whatever one plugin does wrong is kept with its name and raised when *its* family is
asked for; the others work. Other problems are a warning, once, and a line of ``sgljit list``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import importlib_metadata

from sgljit_core import log, paths
from sgljit_core._version import __version__
from sgljit_core.config import settings
from sgljit_core.errors import (
    WANTS,
    IncompatiblePluginError,
    PluginConflictError,
    PluginLoadError,
    ResourceError,
    SgljitError,
)
from sgljit_core.machine import answers
from sgljit_core.machine.forks import ForkLock

from .family import KernelFamily
from .origin import KERNELS

if TYPE_CHECKING:
    from pluggy import PluginManager


EXTENSIONS = "sgljit.plugins"

T = TypeVar("T")

_problems: dict[str, str] = {}
_doubles: dict[str, tuple[Path, Path]] = {}  # by a plugin's distribution: the directory in use, and one that is not


def _problem(about: str, text: str) -> None:
    _problems.setdefault(about, text)
    log.once("plugin_problem", about, text)


@dataclass(frozen=True, eq=False)
class Plugin:
    """One entry point of an installed distribution, read from its metadata.

    The metadata file is parsed when it is first asked for: listing names must stay cheap.

    Attributes:
        name: the entry point's name; for a kernel plugin, the family.
        module: the module that the entry point names.
        distribution, version, requires: name, version and requirements of the distribution that ships it.
        location: the directory that the distribution is installed in.
    """

    name: str
    module: str
    _dist: Any

    @property
    def distribution(self) -> str:
        return self._metadata["Name"][0]

    @property
    def version(self) -> str:
        return self._metadata["Version"][0]

    @property
    def requires(self) -> list[str]:
        return self._metadata["Requires-Dist"]

    @property
    def location(self) -> Path:
        return Path(str(self._dist.locate_file(""))).resolve()  # an entry of sys.path may be relative

    @functools.cached_property
    def _metadata(self) -> dict[str, list[str]]:
        return _fields(self._dist)

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def _fields(dist: Any) -> dict[str, list[str]]:
    """Name, version and requirements. ``importlib.metadata`` reads them with the email package: 100 ms to import."""
    directory = _directory(dist)
    name, _, version = directory.stem.partition("-")
    fields = {"Name": [name], "Version": [version or "0"], "Requires-Dist": []}
    try:
        text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    except ValueError as error:
        _problem(str(directory), _unreadable(dist, error))
        return fields
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(": ")
        if name == "Requires-Dist":
            fields[name].append(value.strip())
        elif name in fields:
            fields[name] = [value.strip()]
    return fields


def _directory(dist: Any) -> Path:
    """Where its metadata is: ``NAME-VERSION.dist-info``."""
    return Path(str(getattr(dist, "_path", dist.locate_file(""))))


def _unreadable(dist: Any, error: Exception) -> str:
    return f"the metadata of a distribution, {_directory(dist)}, cannot be read: {type(error).__name__}: {error}"


def installed() -> dict[str, tuple[Plugin, ...]]:
    """The kernel plugins by family, from metadata alone. More than one plugin for a family is a conflict."""
    families: dict[str, tuple[Plugin, ...]] = {}
    for plugin in _entry_points(KERNELS):
        name = plugin.name.replace("-", "_")
        families[name] = (*families.get(name, ()), plugin)
    return dict(sorted(families.items()))


def _entry_points(group: str) -> list[Plugin]:
    allowed = settings().plugins
    if allowed is None:
        return _scan(group)
    from packaging.utils import canonicalize_name

    names = {canonicalize_name(name) for name in allowed}
    _check_doubles(frozenset(names))
    return [plugin for plugin in _scan(group) if canonicalize_name(plugin.distribution) in names]


@functools.cache
def _check_doubles(names: frozenset[str]) -> None:
    for name in sorted(names):
        found = dict.fromkeys(_directory(dist).resolve() for dist in importlib_metadata.distributions(name=name))
        if len(found) > 1:
            first, *others = map(str, found)
            _problem(
                f"double {name}",
                f"SGLJIT_PLUGINS allows {name}, which is installed more than once: {first} is used, and "
                f"{', '.join(others)} is not",
            )


@functools.cache
def _scan(group: str) -> list[Plugin]:
    _check_descriptors()
    # importlib_metadata loads what reads zip files for each entry that is not there, such as python311.zip.
    path = [entry for entry in sys.path if os.path.exists(entry or os.curdir)]  # noqa: PTH110 - it raises nothing
    found: dict[str, list[Plugin]] = {}
    used: dict[str, Path] = {}
    for dist in importlib_metadata.distributions(path=path):
        directory = _directory(dist)
        name = re.sub(r"[-_.]+", "-", directory.stem.partition("-")[0]).lower()
        if name in found:  # an earlier entry has it: that one is imported
            if found[name] and directory.resolve() != used[name].resolve():
                _doubles.setdefault(name, (used[name], directory))
            continue
        used[name] = directory
        try:
            found[name] = [Plugin(point.name, point.value, dist) for point in dist.entry_points.select(group=group)]
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - a distribution's metadata may be anything
            _problem(str(directory), _unreadable(dist, error))
    return [plugin for plugins in found.values() for plugin in plugins]


def _check_descriptors() -> None:
    """Raise where no directory can be opened: importlib_metadata takes one that it cannot list for an empty one."""
    try:
        os.close(os.open(os.sep, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in WANTS:  # such as a sandbox that hides this directory
            return
        raise ResourceError("the installed packages cannot be looked through", error) from error


def rescan() -> None:
    """Forget what is installed, so that the next question reads the metadata anew."""
    importlib.invalidate_caches()  # importlib_metadata keeps what it saw of each directory
    _scan.cache_clear()
    _doubles.clear()
    _check_doubles.cache_clear()


_lock = ForkLock()  # plugins are loaded one after the other
_families: dict[str, KernelFamily] = {}
_failures: dict[str, PluginLoadError | PluginConflictError] = {}
_registering: list[KernelFamily] = []
_plugins: dict[Any, Plugin] = {}  # by module


@functools.cache
def _manager() -> PluginManager:
    import pluggy

    from . import hookspecs

    manager = pluggy.PluginManager("sgljit")
    manager.add_hookspecs(hookspecs)
    # Historic: every plugin that is registered from now on is called back at once with this ``register``.
    manager.hook.sgljit_register_kernels.call_historic(kwargs={"register": _register})
    return manager


def _register(family: KernelFamily) -> None:
    if not isinstance(family, KernelFamily):
        raise TypeError(f"register() expects a KernelFamily, got {type(family).__name__}")
    _registering.append(family)


def load(family: str) -> KernelFamily:
    """Import the plugin of an installed family and return what it registered.

    Raises:
        PluginConflictError: several distributions claim the family, or the plugin registers another's.
        PluginLoadError: the plugin cannot be imported, registers something else, or has failed before.
        IncompatiblePluginError: its metadata excludes the running core.
    """
    claims = installed()[family]
    if len(claims) > 1:
        listed = "\n".join(f"  - {_described(plugin)}" for plugin in claims)
        raise PluginConflictError(
            f"family {family!r} is claimed by {len(claims)} distributions:\n{listed}\n"
            f"Uninstall all but one, or name the ones to use in SGLJIT_PLUGINS=<distribution>,..."
        )
    with _lock.here():
        if family in _failures:
            raise _failures[family]
        if family not in _families:
            try:
                _load(claims[0])
                if family not in _families:
                    raise PluginLoadError(
                        str(claims[0]),
                        f"its entry point promises the family {family!r}, which {claims[0].module} does not register: "
                        f"it needs `@hookimpl def sgljit_register_kernels(register)`, with that name and decorator, "
                        f"that calls register(FAMILY)",
                    )
            except (PluginLoadError, PluginConflictError) as error:
                if not _may_pass(error):
                    _failures[family] = error
                raise
        return _families[family]


def _may_pass(error: BaseException | None) -> bool:
    """Whether it came from a want that may be over at the next try: of descriptors, of memory, of stack."""
    while error is not None:
        if isinstance(error, MemoryError | RecursionError) or getattr(error, "errno", None) in WANTS:
            return True
        error = error.__cause__ or error.__context__
    return False


def _load(plugin: Plugin) -> None:
    """Import a plugin and take the families that it registers."""
    module = _import(plugin)
    _registering.clear()
    if _manager().is_registered(module):  # another entry point names it, or a load of it was interrupted
        _manager().unregister(module)
    try:
        _manager().register(module)
    except (Exception, SystemExit) as error:
        if _manager().is_registered(module):
            _manager().unregister(module)
        raise _load_error(plugin, error) from error
    claims = installed()
    for family in _registering:
        owners = claims.get(family.name, ())
        if plugin.distribution not in {owner.distribution for owner in owners}:
            raise PluginConflictError(
                f"{_described(plugin)} registers the family {family.name!r}, "
                + (f"which belongs to {_described(owners[0])}" if owners else "for which it has no entry point")
                + f". A distribution registers the families that its entry points in {KERNELS!r} name."
            )
    _plugins[module] = plugin
    _report_wrappers(module)
    _families.update({family.name: family for family in _registering})


def _described(plugin: Plugin) -> str:
    return f"{plugin} ({plugin.module} in {plugin.location})"


def _import(plugin: Plugin) -> Any:
    _check_requirements(plugin)
    module, _, attribute = plugin.module.partition(":")
    if attribute:
        raise PluginLoadError(
            str(plugin), f"its entry point names {plugin.module!r}, and must name a module, without {':' + attribute!r}"
        )
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise _load_error(plugin, error) from error


def _load_error(plugin: Plugin, error: BaseException) -> PluginLoadError:
    trace = "".join(traceback.format_exception(error)).rstrip()
    return PluginLoadError(str(plugin), f"importing {plugin.module} raised {type(error).__name__}: {error}\n{trace}")


def _check_requirements(plugin: Plugin) -> None:
    """Compare the plugin's own requirement on sgljit-core with the running core."""
    for text in plugin.requires:
        if not _ON_CORE.match(text):
            continue
        question = ["requirement", text, __version__]
        if answers.recall(question) == "met":  # packaging takes 10 ms to import
            continue
        try:
            is_met = _is_met(text)
        except ValueError as error:
            raise PluginLoadError(str(plugin), f"its metadata has the requirement {text!r}: {error}") from error
        if not is_met:
            raise IncompatiblePluginError(
                str(plugin),
                f"it requires {text}, and sgljit-core {__version__} is running; "
                f"pip install --upgrade sgljit-core {plugin.distribution}",
            )
        answers.remember(question, "met")


_ON_CORE = re.compile(r"sgljit[-_.]+core(?![-_.\w])", re.IGNORECASE)


def _is_met(text: str) -> bool:
    """Whether the running core meets a requirement on it, or the requirement does not count here."""
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return True
    return requirement.specifier.contains(__version__, prereleases=True)


def hooks() -> Any:
    """The hook callers, after every plugin of the group ``sgljit.plugins`` was loaded.

    One that fails is reported as a warning, once, and left out: a broken observer must not stop a build.
    """
    _load_extensions()
    return _manager().hook


@functools.cache
def _load_extensions() -> None:
    for plugin in _entry_points(EXTENSIONS):
        _load_extension(plugin)


def _load_extension(plugin: Plugin) -> None:
    try:
        module = _import(plugin)
        if not _manager().is_registered(module):  # it may be a family's, too
            _manager().register(module)
        _plugins[module] = plugin
        _report_wrappers(module)
    except Exception as error:  # noqa: BLE001 - it is a plugin's, and may be anything
        _problem(_described(plugin), f"{_described(plugin)} cannot be used: {error}")


def _report_wrappers(module: Any) -> None:
    for caller in _manager().get_hookcallers(module) or ():
        for one in caller.get_hookimpls():
            if one.plugin is module and _is_wrapper(one):
                about = f"{_described(_plugins[module])}: its {caller.name}"
                _problem(
                    about,
                    f"{about} is a hook wrapper (wrapper=True or hookwrapper=True) and is not called: each plugin is "
                    f"asked by itself, so there is nothing to wrap. Write it as a plain @hookimpl",
                )


def _is_wrapper(implementation: Any) -> bool:
    return bool(implementation.wrapper or implementation.hookwrapper)


def ask(hook: str, take: Callable[[Any], T], **arguments: Any) -> list[T]:
    """Each plugin's answer to a hook, as ``take`` converts it, the latest plugin's first.

    A plugin that raises is reported, once, and left out.
    """
    implementations = [one for one in getattr(hooks(), hook).get_hookimpls() if not _is_wrapper(one)]
    taken = (_ask_one(one, hook, take, arguments) for one in reversed(implementations))
    return [answer for answer in taken if answer is not None]


def _ask_one(implementation: Any, hook: str, take: Callable[[Any], T], arguments: dict[str, Any]) -> T | None:
    try:
        answer = implementation.function(*(arguments[name] for name in implementation.argnames))
        return None if answer is None else take(answer)
    except Exception as error:  # noqa: BLE001 - it is a plugin's, and may be anything
        plugin = _plugins.get(implementation.plugin)
        about = f"{_described(plugin) if plugin else implementation.plugin_name}: its {hook}"
        _problem(about, f"{about} raised {type(error).__name__}: {error}")
        return None


def header_providers() -> dict[str, Callable[[], list[Path]]]:
    """By name, what the plugins provide for builds that ask for headers by name."""
    providers: dict[str, Callable[[], list[Path]]] = {}
    for answer in ask("sgljit_header_dependencies", dict):
        providers |= answer
    return providers


def prebuilt_directories() -> list[Path]:
    """The directories of artifacts that the plugins name."""
    answers = ask("sgljit_prebuilt_dirs", lambda paths: [Path(path) for path in paths])
    return [path for answer in answers for path in answer]


def problems() -> list[str]:
    """The problems of the distributions, as far as it shows without importing a family. Loads the extensions."""
    modules: dict[str, dict[str, None]] = {}
    for family, claims in installed().items():
        if len(claims) > 1:
            _problems[f"family {family}"] = f"family {family!r} is claimed by {' and '.join(map(_described, claims))}"
        for plugin in claims:
            modules.setdefault(plugin.module, {})[f"{plugin} ({plugin.location})"] = None
    for module, owners in modules.items():
        if len(owners) > 1:
            _problems[f"module {module}"] = f"{module} is the entry point of {' and '.join(owners)}"
    header_providers()
    prebuilt_directories()
    if settings().plugins is None:  # else those that it allows are known
        for name, (used, other) in sorted(_doubles.items()):
            _problems[f"double {name}"] = f"{name} is installed more than once: {used} is used, and {other} is not"
    return list(_problems.values())


def are_extensions_loaded() -> bool:
    """Whether the plugins of the group ``sgljit.plugins`` were loaded by now."""
    return _load_extensions.cache_info().currsize > 0


def has_extensions() -> bool:
    """Whether a plugin of the group ``sgljit.plugins`` is installed; imports none."""
    return bool(_entry_points(EXTENSIONS))


def carried_artifacts() -> dict[Path, str]:
    """The roots that installed plugins carry in their packages, each with the distribution's name and version."""
    found = {}
    for family, claims in installed().items():
        with contextlib.suppress(SgljitError, ImportError):  # a plugin that cannot be loaded says so where it is used
            place = paths.carried_artifacts(load(family).csrc)
            if place is not None:
                found[place] = str(claims[0])
    return found
