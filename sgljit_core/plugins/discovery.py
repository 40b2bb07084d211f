"""Which plugins are installed?

Discovery reads the metadata of installed distributions and imports nothing of theirs. A plugin is imported when it is
first asked for. A distribution whose metadata is broken is a warning, once, and a line of ``sgljit list``. Rejected:
``importlib_metadata`` takes four times as long, and adds a finder to ``sys.meta_path``.
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sgljit_core import log
from sgljit_core._version import __version__
from sgljit_core.config import settings
from sgljit_core.errors import SHORTAGES, IncompatiblePluginError, PluginLoadError, ResourceError
from sgljit_core.machine import answers

KERNELS = "sgljit.kernels"  # entry points of kernel families
EXTENSIONS = "sgljit.extensions"  # entry points of distributions that implement hooks and have no kernels

_problems: dict[str, str] = {}
_doubles: dict[str, tuple[Path, Path]] = {}  # by a plugin's distribution: the directory in use, and one that is not


def report(about: str, text: str) -> None:
    """Report a problem of a plugin: as a warning, once, and as a line of ``sgljit list``."""
    _problems.setdefault(about, text)
    log.once("plugin_problem", about, text)


class Plugin:
    """One entry point of an installed distribution, read from its metadata when a field of it is first asked for.

    Attributes:
        name: the entry point's name; for a kernel plugin, the family.
        module: what the entry point names: a module, or an object in it, "package.plugin:FAMILY".
        directory: where its metadata is: ``NAME-VERSION.dist-info``.
    """

    def __init__(self, name: str, module: str, directory: Path) -> None:
        self.name, self.module, self.directory = name, module, directory

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
        return self.directory.parent.resolve()  # an entry of sys.path may be relative

    @functools.cached_property
    def _metadata(self) -> dict[str, list[str]]:
        """The fields needed here. ``importlib.metadata`` reads them with the email package: 100 ms to import."""
        name, _, version = self.directory.stem.partition("-")
        text, fields = "", {"Name": [name], "Version": [version or "0"], "Requires-Dist": []}
        try:
            text = _text(f"{self.directory}/METADATA") or _text(f"{self.directory}/PKG-INFO")
        except ValueError as error:
            report(str(self.directory), _unreadable(self.directory, error))
        for line in text.partition("\n\n")[0].splitlines():
            name, _, value = line.partition(": ")
            if name == "Requires-Dist":
                fields[name].append(value.strip())
            elif name in fields:
                fields[name] = [value.strip()]
        return fields

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def _text(file: str) -> str:
    """The text of a file of metadata; "" where there is none. Raises ValueError: it is not UTF-8."""
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - half the time
            return opened.read().decode().replace("\r\n", "\n")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        return ""


def _unreadable(directory: Path, error: Exception) -> str:
    return f"the metadata of a distribution, {directory}, cannot be read: {type(error).__name__}: {error}"


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
    if allowed is None:
        return _scan(group)
    from packaging.utils import canonicalize_name

    names = {canonicalize_name(name) for name in allowed}
    plugins = [plugin for plugin in _scan(group) if canonicalize_name(plugin.distribution) in names]
    for name in sorted(names & _doubles.keys()):
        used, other = _doubles[name]
        text = f"SGLJIT_PLUGINS allows {name}, which is installed more than once: {used} is used, and {other} is not"
        report(f"double {name}", text)
    return plugins


@functools.cache
def _scan(group: str) -> list[Plugin]:
    found: dict[str, list[Plugin]] = {}
    used: dict[str, str] = {}
    for directory in (f"{place or os.curdir}/{name}" for place in sys.path for name in _listed(place)):
        stem, _, kind = directory.rpartition("/")[2].rpartition(".")
        if not stem or kind not in ("dist-info", "egg-info"):
            continue
        name = re.sub(r"[-_.]+", "-", stem.partition("-")[0]).lower()
        if name in found:  # an earlier entry has it: that one is imported
            if found[name] and Path(directory).resolve() != Path(used[name]).resolve():
                _doubles.setdefault(name, (Path(used[name]), Path(directory)))
            continue
        used[name] = directory
        try:
            text = _text(f"{directory}/entry_points.txt")
            found[name] = [Plugin(*point, Path(directory)) for point in _points(text, group)] if group in text else []
        except ValueError as error:
            report(directory, _unreadable(Path(directory), error))
    return [plugin for plugins in found.values() for plugin in plugins]


def _listed(place: str) -> list[str]:
    """The names in an entry of sys.path; none where it is no directory."""
    try:
        return os.listdir(place or os.curdir)  # noqa: PTH208 - by Path takes twice as long
    except OSError as error:
        if error.errno in SHORTAGES:
            raise ResourceError("the installed packages cannot be looked through", error) from error
        return []


def _points(text: str, group: str) -> Iterator[tuple[str, str]]:
    """The entry points of a group, by name and value. Raises ValueError: a line is none."""
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == group and line and not line.startswith("#"):
            name, is_point, value = line.partition("=")
            if not is_point:
                raise ValueError(f"{line!r} of its entry_points.txt is no entry point")
            yield name.strip(), value.partition("[")[0].strip()  # what follows are extras


def rescan() -> None:
    """Forget what is installed, so that the next question reads the metadata anew."""
    importlib.invalidate_caches()  # a plugin that was just installed can be imported then
    _scan.cache_clear()
    _by_family.cache_clear()
    _doubles.clear()


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


def problems() -> list[str]:
    """The faults of the installed distributions that can be found without importing a family."""
    modules: dict[str, dict[str, None]] = {}
    for family, claims in installed().items():
        if len(claims) > 1:
            _problems[f"family {family}"] = f"family {family!r} is claimed by {' and '.join(map(described, claims))}"
        for plugin in claims:
            modules.setdefault(plugin.module, {})[f"{plugin} ({plugin.location})"] = None
    for module, owners in modules.items():
        if len(owners) > 1:
            _problems[f"module {module}"] = f"{module} is the entry point of {' and '.join(owners)}"
    for name, (used, other) in sorted(_doubles.items() if settings().plugins is None else ()):  # else they are known
        _problems[f"double {name}"] = f"{name} is installed more than once: {used} is used, and {other} is not"
    return list(_problems.values())
