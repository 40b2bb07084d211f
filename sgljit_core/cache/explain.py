"""Why is this build not that one? Pure comparison of ingredients, in words."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath

__all__ = ["differences"]


def differences(
    wanted: Mapping[str, str], wanted_tools: Mapping[str, str], found: Mapping[str, str], found_tools: Mapping[str, str]
) -> list[str]:
    """What sets a wanted build apart from one that was found, most telling first; empty where nothing does.

    Args:
        wanted, wanted_tools: the ingredients of the source key and of the toolchain key; no tools where none are known.
        found, found_tools: those of the other build.
    """
    texts = [text for name in _names(wanted, found) for text in _difference(name, wanted.get(name), found.get(name))]
    if wanted_tools:
        pairs = [(name, found_tools.get(name), wanted_tools.get(name)) for name in _names(wanted_tools, found_tools)]
        texts += [f"{name} {_short(name, old)} -> {_short(name, new)}" for name, old, new in pairs if old != new]
    return texts


def _names(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Every name of both; what is generated comes last, because a change there often follows from another."""
    return sorted({*one, *other}, key=lambda name: (name.startswith("generated "), name))


def _difference(name: str, wanted: str | None, found: str | None) -> list[str]:
    if wanted == found:
        return []
    kind, _, rest = name.partition(" ")
    if kind == "flags":
        return _flags(rest, json.loads(wanted or "[]"), json.loads(found or "[]"))
    if kind == "file":
        verb = "is new" if found is None else "is gone" if wanted is None else "changed"
        return [f"{PurePosixPath(rest)} {verb}"]
    if kind == "generated":
        return [f"{rest} (generated: files, exports, template arguments) changed"]
    return [f"{name} {found} -> {wanted}"]


def _flags(step: str, wanted: list[str], found: list[str]) -> list[str]:
    texts = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, found, wanted, autojunk=False).get_opcodes():
        if tag != "equal":
            texts += [f"flag {flag} removed ({step})" for flag in found[a:b]]
            texts += [f"flag {flag} added ({step})" for flag in wanted[c:d]]
    return texts


def _short(name: str, version: str | None) -> str:
    """The version inside a compiler's version line: "13.0.88" of "Cuda compilation tools, release 13.0, V13.0.88"."""
    if version is None:
        return "(none)"
    return version.rpartition(", V")[2] if name == "nvcc" and ", V" in version else version
