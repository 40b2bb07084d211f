"""Which plugins are installed?

Discovery reads the metadata of installed distributions and imports nothing of theirs. A plugin is imported when it is
first asked for. A distribution whose metadata is broken is a warning, once, and a line of ``sgljit list``.
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import importlib_metadata

from sgljit_core import log
from sgljit_core._version import __version__
from sgljit_core.config import settings
from sgljit_core.errors import SHORTAGES, IncompatiblePluginError, PluginLoadError, ResourceError
from sgljit_core.machine import answers

KERNELS = "sgljit.kernels"  # entry points of kernel families
EXTENSIONS = "sgljit.extensions"  # entry points of distributions that implement hooks and have no kernels

reported: dict[str, str] = {}  # the problems of plugins that this process has met, by what they are about


def report(about: str, text: str) -> None:
    """Report a problem of a plugin: as a warning, once, and as a line of ``sgljit list``."""
    reported.setdefault(about, text)
    log.once("plugin_problem", about, text)


@dataclass(frozen=True, eq=False)
class Plugin:
    """One entry point of an installed distribution, read from its metadata when a field of it is first asked for.

    Attributes:
        name: the entry point's name; for a kernel plugin, the family.
        module: what the entry point names: a module, or an object in it, "package.plugin:FAMILY".
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
        """The fields needed here. ``importlib.metadata`` reads them with the email package: 100 ms to import."""
        directory = metadata_directory(self._dist)
        name, _, version = directory.stem.partition("-")
        fields = {"Name": [name], "Version": [version or "0"], "Requires-Dist": []}
        try:
            text = self._dist.read_text("METADATA") or self._dist.read_text("PKG-INFO") or ""
        except ValueError as error:
            report(str(directory), _unreadable(directory, error))
            return fields
        for line in text.partition("\n\n")[0].splitlines():
            name, _, value = line.partition(": ")
            if name == "Requires-Dist":
                fields[name].append(value.strip())
            elif name in fields:
                fields[name] = [value.strip()]
        return fields

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def metadata_directory(dist: Any) -> Path:
    """Where its metadata is: ``NAME-VERSION.dist-info``."""
    return Path(str(getattr(dist, "_path", dist.locate_file(""))))


def _unreadable(place: Path, error: Exception) -> str:
    return f"the metadata of a distribution, {place}, cannot be read: {type(error).__name__}: {error}"


def installed() -> Mapping[str, tuple[Plugin, ...]]:
    """The kernel plugins by family, from metadata alone. More than one plugin for a family is a conflict."""
    return _by_family(settings().plugins)


@functools.cache
def _by_family(allowed: frozenset[str] | None) -> Mapping[str, tuple[Plugin, ...]]:
    families: dict[str, tuple[Plugin, ...]] = {}
    for plugin in entry_points(KERNELS, allowed):
        name = plugin.name.replace("-", "_")
        families[name] = (*families.get(name, ()), plugin)
    return MappingProxyType(dict(sorted(families.items())))


def entry_points(group: str, allowed: frozenset[str] | None) -> list[Plugin]:
    """The entry points of a group, of the ``allowed`` distributions; None allows all."""
    plugins = [plugin for its_group, plugin in _scan() if its_group == group]
    if allowed is None:
        return plugins
    from packaging.utils import canonicalize_name

    names = {canonicalize_name(name) for name in allowed}
    return [plugin for plugin in plugins if canonicalize_name(plugin.distribution) in names]


@functools.cache
def _scan() -> list[tuple[str, Plugin]]:
    _check_descriptors()
    # importlib_metadata loads what reads zip files for each entry that is not there, such as python311.zip.
    path = [entry for entry in sys.path if os.path.exists(entry or os.curdir)]  # noqa: PTH110 - it raises nothing
    found: dict[str, list[tuple[str, Plugin]]] = {}
    for dist in importlib_metadata.distributions(path=path):
        directory = metadata_directory(dist)
        name = re.sub(r"[-_.]+", "-", directory.stem.partition("-")[0]).lower()
        if name in found:  # an earlier entry has it: that one is imported
            continue
        try:
            points = dist.entry_points if "sgljit." in (dist.read_text("entry_points.txt") or "") else ()
            found[name] = [(point.group, Plugin(point.name, point.value, dist)) for point in points]
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - a distribution's metadata may be anything
            report(str(directory), _unreadable(directory, error))
    return [entry for entries in found.values() for entry in entries]


def _check_descriptors() -> None:
    """Raise where no directory can be opened: importlib_metadata takes one that it cannot list for an empty one."""
    try:
        os.close(os.open(os.sep, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in SHORTAGES:  # such as a sandbox that hides this directory
            return
        raise ResourceError("the installed packages cannot be looked through", error) from error


def rescan() -> None:
    """Forget what is installed, so that the next question reads the metadata anew."""
    importlib.invalidate_caches()  # importlib_metadata keeps what it saw of each directory
    _scan.cache_clear()
    _by_family.cache_clear()


def described(plugin: Plugin) -> str:
    """A plugin with the place of its code, for messages."""
    return f"{plugin} ({plugin.module} in {plugin.location})"


def import_plugin(plugin: Plugin) -> Any:
    """Import the module that a plugin's entry point names. Raises PluginLoadError and IncompatiblePluginError."""
    if (lock := settings().lock) is not None:
        try:
            importlib.import_module("sgljit_remote.lock").check(plugin, lock)
        except ModuleNotFoundError as error:
            raise PluginLoadError(str(plugin), f"SGLJIT_LOCK needs sgljit-remote: {error}") from error
    _check_requirements(plugin)
    module, _, attribute = plugin.module.partition(":")
    try:
        imported = importlib.import_module(module)
        return operator.attrgetter(attribute)(imported) if attribute else imported
    except (Exception, SystemExit) as error:
        raise load_error(plugin, error) from error


def load_error(plugin: Plugin, error: BaseException) -> PluginLoadError:
    """The error for a plugin whose import raised another."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    return PluginLoadError(str(plugin), f"importing {plugin.module} raised {type(error).__name__}: {error}\n{trace}")


def _check_requirements(plugin: Plugin) -> None:
    """Compare the plugin's own requirement on sgljit-core with the running core."""
    series = re.fullmatch(r"0\.(\d+)\.\d+", __version__)
    usual = f"sgljit-core<0.{int(series[1]) + 1},>=0.{series[1]}" if series else ""  # as docs/compatibility.md has it
    for text in filter(_ON_CORE.match, plugin.requires):
        question = ["requirement", text, __version__]
        if text == usual or answers.recall(question) == "met":
            continue
        from packaging.requirements import Requirement  # takes 10 ms to import

        try:
            requirement = Requirement(text)
            counts = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except ValueError as error:
            raise PluginLoadError(str(plugin), f"its metadata has the requirement {text!r}: {error}") from error
        if counts and not requirement.specifier.contains(__version__, prereleases=True):
            remedy = f"pip install --upgrade sgljit-core {plugin.distribution}"
            reason = f"it requires {text}, and sgljit-core {__version__} is running; {remedy}"
            raise IncompatiblePluginError(str(plugin), reason)
        answers.remember(question, "met")


_ON_CORE = re.compile(r"sgljit[-_.]+core(?![-_.\w])", re.IGNORECASE)
