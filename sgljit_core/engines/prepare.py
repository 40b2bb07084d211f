"""What will a model ask to be built?

An adapter says which ops its engine calls, by its entry point; a family says which variants of an op a model needs, by
``KernelFamily.model_variants``. Here the two meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import importlib_metadata

from sgljit_core.compilers.arch import cuda_target
from sgljit_core.errors import NoTargetError, UnsupportedEngineError
from sgljit_core.families import discovery, registry

from .shapes import ModelShape

GROUP = "sgljit.engines"


def engine_ops(engine: str | None) -> frozenset[str] | None:
    """The ops that an engine's adapter uses; without an engine, those of all installed adapters.

    None stands for all ops: there is no adapter, so that it is open who calls what.

    Args:
        engine: the name of an entry point in the group ``sgljit.engines``, which names the adapter's ``Adapter``.

    Raises:
        UnsupportedEngineError: no adapter for this engine is installed.
    """
    points = {point.name: point for point in importlib_metadata.entry_points(group=GROUP)}
    if engine is not None and engine not in points:
        raise UnsupportedEngineError(
            f"no installed adapter is for the engine {engine!r} (installed: {', '.join(sorted(points)) or 'none'}). "
            f"The project's own are sgljit-sglang, sgljit-transformers and sgljit-vllm: install that of your engine"
        )
    chosen = list(points.values()) if engine is None else [points[engine]]
    return frozenset(op for point in chosen for op in point.load().ops) if chosen else None


def device() -> str:
    """The device to build for: "cuda" if an architecture is named or there is a device, else "cpu"."""
    try:
        cuda_target()
    except NoTargetError:
        return "cpu"
    return "cuda"


def builders(shape: ModelShape, ops: frozenset[str] | None, device: str) -> list[Callable[[], Any]]:
    """Functions without arguments that each build one module or kernel that a model needs.

    Args:
        shape: the model.
        ops: as ``engine_ops`` returns them.
        device: "cuda", for the current target, or "cpu".

    Raises:
        InvalidFamilyError: a family yields something else than functions.
    """
    return [
        builder for family in discovery.installed() for builder in registry.model_variants(family, shape, ops, device)
    ]
