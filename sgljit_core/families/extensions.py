"""The plugins' answers to the build engine: header libraries, prebuilt artifacts, observers of builds."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

from sgljit_core.builds.extensions import Extensions
from sgljit_core.errors import InvalidBuildError
from sgljit_core.model.build import BuildSpec

from . import discovery


class Plugins(Extensions):
    """The answers of the installed plugins."""

    def plugin_of(self, family: str) -> str:
        claims = discovery.installed().get(family, ())
        return str(claims[0]) if len(claims) == 1 else ""

    def header_directories(self, name: str) -> list[Path]:
        providers = discovery.header_providers()
        if name not in providers:
            known = ", ".join(sorted(providers)) or "none"
            raise InvalidBuildError(
                f"extra_dependencies: no installed plugin provides the headers {name!r} (provided: {known})"
            )
        return [Path(path) for path in providers[name]()]

    def prebuilt_roots(self) -> list[Path]:
        if not discovery.has_extensions():  # so that pluggy need not be imported
            return []
        return discovery.prebuilt_directories()

    def build_started(self, build: BuildSpec) -> None:
        _call("sgljit_build_started", build=build)
        _report()

    def build_finished(
        self, build: BuildSpec, seconds: float, error: BaseException | None, key: str, directory: Path, outcome: str
    ) -> None:
        ended = {"seconds": seconds, "error": error, "key": key, "directory": directory, "outcome": outcome}
        _call("sgljit_build_finished", build=build, **ended)

    def loaded(self, build: BuildSpec, key: str, directory: Path, tier: str) -> None:
        _unreported.append({"build": build, "key": key, "directory": directory, "tier": tier})
        if discovery.are_extensions_loaded():
            _report()


# Loading the plugins takes longer than a hit, so the loads before are reported when they are loaded.
_unreported: collections.deque[dict[str, Any]] = collections.deque(maxlen=1000)


def _report() -> None:
    while _unreported:
        _call("sgljit_loaded", **_unreported.popleft())


def _call(name: str, **arguments: Any) -> None:
    """A broken observer must not stop a build."""
    discovery.ask(name, bool, **arguments)
