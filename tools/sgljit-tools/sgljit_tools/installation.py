"""What is wrong with the installed plugins, and what do they carry?"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import importlib_metadata

from sgljit_core import paths
from sgljit_core.config import settings
from sgljit_core.errors import SgljitError
from sgljit_core.families import loading
from sgljit_core.plugins import discovery, hooks


def problems() -> list[str]:
    """The faults of the installed plugins, each with what to do. Imports extensions, and no family."""
    claims = discovery.installed()
    hooks.header_providers()  # an extension whose hook fails is reported
    hooks.prebuilt_roots()
    missing = [text for plugins in claims.values() for plugin in plugins if (text := _unloadable(plugin))]
    text = "SGLJIT_PLUGINS allows {!r}, and no installed distribution has that name; correct it, or install it"
    unknown = [text.format(name) for name in sorted(settings().plugins or ()) if version_of(name) is None]
    return [*_conflicts(claims), *discovery.reported.values(), *_doubles(claims), *missing, *unknown]


def _conflicts(claims: Mapping[str, Sequence[discovery.Plugin]]) -> Iterator[str]:
    """The families and modules that more than one plugin claims."""
    owners: dict[str, dict[str, None]] = {}
    for family, plugins in claims.items():
        if len(plugins) > 1:
            yield f"family {family!r} is claimed by {' and '.join(map(discovery.described, plugins))}"
        for plugin in plugins:
            owners.setdefault(plugin.module, {})[f"{plugin} ({plugin.location})"] = None
    for module, names in owners.items():
        if len(names) > 1:
            yield f"{module} is the entry point of {' and '.join(names)}"


def _doubles(claims: Mapping[str, Sequence[discovery.Plugin]]) -> Iterator[str]:
    """The distributions of families that are installed more than once: the first on ``sys.path`` is imported."""
    for name in sorted({plugin.distribution for plugins in claims.values() for plugin in plugins}):
        found = importlib_metadata.distributions(name=name, path=sys.path)
        places = list(dict.fromkeys(discovery.metadata_directory(one).resolve() for one in found))
        if len(places) > 1:  # there is none where the directory has another name than the distribution
            yield f"{name} is installed more than once: {places[0]} is used, and {places[1]} is not"


def carried_artifacts() -> dict[Path, str]:
    """The roots that installed plugins carry in their packages, each with the distribution's name and version."""
    found = {}
    for family, claims in discovery.installed().items():
        with contextlib.suppress(SgljitError, ImportError):  # a plugin that cannot be loaded says so where it is used
            place = paths.carried_artifacts(loading.load(family).csrc)
            if place is not None:
                found[place] = str(claims[0])
    return found


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed. Its metadata is not parsed as a whole."""
    try:
        text = importlib_metadata.distribution(distribution).read_text("METADATA") or ""
    except importlib_metadata.PackageNotFoundError:
        return None
    return found[1] if (found := re.search(r"^Version: (.+)$", text, re.MULTILINE)) else "unknown"


def _unloadable(plugin: discovery.Plugin) -> str | None:
    """Why the module or the attribute that an entry point names is not there; None if it is, or may be."""
    module, _, attribute = plugin.module.partition(":")
    where = f"{plugin} ({plugin.location}): its entry point {plugin.name} = {plugin.module!r}"
    remedy = "correct the entry point in its pyproject.toml, and install it again"
    spec = _found(module)
    if spec is None:
        return f"{where} names a module that is not there; {remedy}"
    if attribute and spec.origin and spec.origin.endswith(".py"):
        # A word of the source is no proof that the name is defined; its absence is one that it is not.
        name, source = attribute.partition(".")[0], Path(spec.origin).read_text(encoding="utf-8", errors="replace")
        if not re.search(rf"\b{re.escape(name)}\b|import \*|__getattr__", source):
            return f"{where} names {name}, which {spec.origin} does not define; {remedy}"
    return None


def _found(module: str) -> importlib.machinery.ModuleSpec | None:
    """A module's spec. ``importlib.util.find_spec`` would import the packages above it."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for name in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(f"{spec.name}.{name}", spec.submodule_search_locations)
    return spec
