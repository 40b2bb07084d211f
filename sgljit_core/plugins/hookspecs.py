"""What may a plugin hook into?

Kernel plugins (entry-point group ``sgljit.kernels``) implement the first hook. The others serve extensions (group
``sgljit.extensions``), which provide no kernels; those are loaded at the first miss, with a remote at the first family.

A hook wrapper (``wrapper=True`` or ``hookwrapper=True``) is not called, and ``sgljit list`` says so: see ``hooks``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pluggy

from sgljit_core.specs.build import BuildSpec

hookspec = pluggy.HookspecMarker("sgljit")
hookimpl = pluggy.HookimplMarker("sgljit")


@hookspec(historic=True)
def sgljit_register_kernels(register: Callable[[Any], None]) -> None:
    """Declare kernel families: call ``register(FAMILY)`` once for each ``KernelFamily``."""


@hookspec
def sgljit_header_dependencies() -> dict[str, Callable[[], list[Path]]]:
    """Named header libraries that builds may ask for with ``extra_dependencies=["cutlass"]``.

    Returns:
        By name, a callable that returns the include directories; it runs only when a build asks for the name.
    """
    raise NotImplementedError


@hookspec
def sgljit_prebuilt_dirs() -> list[Path]:
    """Directories of finished artifacts, laid out like the cache; what a plugin's wheel ships. Never written."""
    raise NotImplementedError


@hookspec
def sgljit_fetch(location: Path, toolchain_key: str | None, root: Path) -> Path | None:
    """Put an artifact that no tier has below ``root``, the writable cache, or below another root; return that root.

    The artifact's directory is ``location`` and a name that begins with ``toolchain_key``; any name serves if that is
    None. It is verified there before it is loaded. May be called from any thread, and not after ``freeze``.
    """
    raise NotImplementedError


@hookspec
def sgljit_build_started(build: BuildSpec) -> None:
    """A compiler is about to run. May be called from any thread."""


@hookspec
def sgljit_build_finished(
    build: BuildSpec, seconds: float, error: BaseException | None, key: str, directory: Path, outcome: str
) -> None:
    """A build has ended. May be called from any thread.

    Args:
        seconds: the time that it took, by the clock.
        error: what it raised, or None.
        key: its source key.
        directory: the artifact's; where there is none, the one that it was made in, which may be gone.
        outcome: "compiled", "private" (it serves this process alone), "failed" or "interrupted".
    """


@hookspec
def sgljit_loaded(build: BuildSpec, key: str, directory: Path, tier: str) -> None:
    """Code was loaded. May be called from any thread; what was loaded before the plugins were is reported then.

    Args:
        key: its source key.
        directory: the artifact's.
        tier: where it was found: "cache", "prebuilt", "carried", "plugin" or "remote"; "made" where it was compiled.
    """


@hookspec
def sgljit_event(event: str, place: str, reason: str, size: int, build: BuildSpec | None) -> None:
    """The cache or a remote has counted something else. May be called from any thread, and must load no code.

    Args:
        event: "miss", "refusal" or "failure"; of a remote's objects also "read" and "written".
        place: a path or a URL; of a miss, the directory that would have its artifacts.
        reason: why something was refused, or failed; else "".
        size: the bytes of an object, as far as it came; else 0.
        build: what was missed; else None.
    """
