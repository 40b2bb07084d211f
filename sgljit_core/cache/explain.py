"""Why a build is a hit or a miss, in words: what sets it apart from the nearest artifact of its module."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sgljit_core.machine import roots

from . import lookup
from .keys import Location, without_core
from .manifest import Manifest, ManifestError

_MOST = 64  # manifests that are read to explain a miss


class Explanation(NamedTuple):
    """Why a build is a hit or a miss.

    Attributes:
        build: what messages call it.
        location, toolchain_key: where its artifacts would lie below a root; no key for a hit, or without a compiler.
        artifact: the directory of the artifact that serves; None for a miss.
        nearest: the directory of the artifact of the same module that differs least; None where there is none.
        differences: what sets the build apart from ``nearest``, most telling first.
        other_targets: where ``nearest`` is None, the targets that there are artifacts of the same module for.
        remedy: what to do about it, if there is something to be done.
    """

    build: str
    location: Location
    artifact: Path | None
    nearest: Path | None = None
    differences: tuple[str, ...] = ()
    other_targets: tuple[str, ...] = ()
    remedy: str = ""
    toolchain_key: str | None = None

    @property
    def source_key(self) -> str:
        return self.location.source_key

    def __str__(self) -> str:
        if self.artifact is not None:
            return f"{self.build}: a hit, {self.artifact}"
        if self.nearest is None:
            others = f" (there are some for {', '.join(self.other_targets)})" if self.other_targets else ""
            return f"{self.build}: a miss, no artifact of this module and target was ever built here{others}"
        key = self.nearest.parent.name[:8]
        return f"{self.build}: a miss; the nearest artifact ({key}) differs: {', '.join(self.differences)}{self.remedy}"


def explain_miss(
    build: str,
    markers: Sequence[str],
    location: Location,
    source: Mapping[str, str],
    tools: Mapping[str, str] | None,
    tiers: Sequence[lookup.Tier],
) -> Explanation:
    """The differences between a build and the nearest artifact of its module. Reads up to 64 manifests.

    If two differ equally much, the one with the same markers counts as nearer. ``source`` and ``tools`` are the
    ingredients of the build's keys; ``tools`` is None without a toolchain. A tier that somebody else could have
    written is passed over.
    """
    safe: list[lookup.Tier] = []
    for tier in tiers:
        with contextlib.suppress(OSError):  # somebody else could have written it
            if not tier.vouched:
                roots.check(tier.root)
            safe.append(tier)
    best: tuple[int, int, Path, list[str], str] | None = None
    place = location.path.parent  # of the module's artifacts for the target
    found = [(path, tier) for tier in safe for path in (tier.root / place).glob("*/*") if os.path.isdir(path)]  # noqa: PTH112
    with contextlib.suppress(OSError):
        found.sort(key=lambda one: one[0].stat().st_mtime, reverse=True)
    for directory, tier in found[:_MOST]:
        try:
            manifest = lookup.read_manifest(directory, None if tier.vouched else tier.root)
            texts = differences(source, tools or {}, manifest.source, manifest.toolchain)
        except (OSError, ManifestError, ValueError, TypeError, RecursionError):  # its flags may be any text
            continue
        rank = (len(texts), int(manifest.markers != tuple(markers)))
        if best is None or rank < best[:2]:
            best = (*rank, directory, texts, _remedy(manifest, source) if tier.vouched else "")
    if best is None:
        any_of = f"{place.relative_to(location.target)}/*/*"
        others = {path.name for tier in safe for path in tier.root.glob("[!.]*") if any(path.glob(any_of))}
        return Explanation(build, location, None, other_targets=tuple(sorted(others)))
    _, _, nearest, texts, remedy = best
    texts = texts or [lookup.fault(nearest, has_toolchain=tools is not None) or "nothing, but it does not load here"]
    return Explanation(build, location, None, nearest, tuple(texts), remedy=remedy)


def _remedy(manifest: Manifest, source: Mapping[str, str]) -> str:
    """The packages to install if a plugin carries an artifact that differs in the core alone, and in its ABI."""
    if {name for name, _ in without_core(source).items() ^ without_core(manifest.source).items()} != {"core_abi"}:
        return ""
    upgrade, core = f"pip install --upgrade {manifest.plugin.partition(' ')[0]}", f"sgljit-core=={manifest.core}"
    return f". {manifest.plugin} carries it for the ABI of {core}: {upgrade}, or pip install {core}"


def differences(
    wanted: Mapping[str, str], wanted_tools: Mapping[str, str], found: Mapping[str, str], found_tools: Mapping[str, str]
) -> list[str]:
    """The differences between the ingredients of a wanted build and of one that was found, most important first.

    Without a toolchain there are no wanted tools: those of the other build are then not compared.
    """
    texts = [text for name in _names(wanted, found) for text in _difference(name, wanted.get(name), found.get(name))]
    if wanted_tools:
        pairs = [(name, found_tools.get(name), wanted_tools.get(name)) for name in _names(wanted_tools, found_tools)]
        texts += [f"{name} {_short(name, old)} -> {_short(name, new)}" for name, old, new in pairs if old != new]
    return texts


def _names(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Every name of both. Generated sources come last, as a change there often follows from another change."""
    return sorted({*one, *other}, key=lambda name: (name.startswith("generated "), name))


def _difference(name: str, wanted: str | None, found: str | None) -> list[str]:
    if wanted == found:
        return []
    kind, _, rest = name.partition(" ")
    if kind == "flags":
        new, old = json.loads(wanted or "[]"), json.loads(found or "[]")
        texts = [f"flag {flag} removed ({rest})" for flag in old if flag not in new]
        texts += [f"flag {flag} added ({rest})" for flag in new if flag not in old]
        return texts or [f"flags in another order, or another number ({rest})"]
    if kind == "file":
        return [f"{PurePosixPath(rest)} {'is new' if found is None else 'is gone' if wanted is None else 'changed'}"]
    if kind == "generated":
        return [f"{rest} (generated: files, exports, template arguments) changed"]
    return [f"{name} {found} -> {wanted}"]


def _short(name: str, version: str | None) -> str:
    """The version inside a compiler's version line: "13.0.88" of "Cuda compilation tools, release 13.0, V13.0.88"."""
    version = version or "(none)"
    return version.rpartition(", V")[2] if name == "nvcc" else version
