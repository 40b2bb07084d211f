"""What is wrong with the installed plugins? Found without importing a family."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path

import importlib_metadata

from sgljit_core.plugins import discovery, hooks

from .environment import inherited_environment


def problems() -> list[str]:
    """The faults of the installed plugins, each with what to do."""
    missing = [text for claims in discovery.installed().values() for plugin in claims if (text := _unloadable(plugin))]
    return [*hooks.problems(), *missing, *_unknown_names()]


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed. Its metadata is not parsed as a whole."""
    try:
        text = importlib_metadata.distribution(distribution).read_text("METADATA") or ""
    except importlib_metadata.PackageNotFoundError:
        return None
    found = re.search(r"^Version: (.+)$", text, re.MULTILINE)
    return found[1] if found else "unknown"


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


def _unknown_names() -> list[str]:
    """The distributions that ``SGLJIT_PLUGINS`` allows, and that are not installed."""
    given = inherited_environment().get("SGLJIT_PLUGINS", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    return [
        f"SGLJIT_PLUGINS allows {name!r}, and no installed distribution has that name; correct it, or install it"
        for name in names
        if version_of(name) is None
    ]
