"""Which ops does an engine call? Its adapter says so, by its entry point."""

from __future__ import annotations

import importlib_metadata

from .errors import UnsupportedEngineError

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
