"""Does vLLM's JIT monitor hear that a kernel was compiled while requests are served?

vLLM activates the monitor after its warm-up. From then on a compile is a warning of it. With
``--jit-monitor-mode=error`` nothing is compiled: vLLM's own code runs where a kernel is missing, and a compiled graph
raises the error. Triton's kernels are told by Triton's hook, which the monitor sets.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from sgljit_core import freeze, hookimpl
from sgljit_core.plugins import hooks

from . import ADAPTER


def watch() -> None:
    """Let the monitor know of compiles from the time on when vLLM activates it."""
    from vllm.utils import jit_monitor

    theirs = jit_monitor.activate
    if getattr(theirs, "of_sgljit", False):
        return

    @functools.wraps(theirs)
    def activate(*, mode: str = "warn", **options: Any) -> None:
        theirs(mode=mode, **options)
        if not hooks.manager().is_registered(this := sys.modules[__name__]):
            hooks.manager().register(this)
        if mode == "error":
            freeze("error")

    activate.of_sgljit = True  # type: ignore[attr-defined]
    jit_monitor.activate = activate


@hookimpl
def sgljit_build_finished(build: Any, seconds: float, outcome: str) -> None:
    """Tell the monitor of a kernel that was compiled."""
    from vllm.utils import jit_monitor

    is_of_triton = hasattr(build, "arguments")
    if outcome not in ("compiled", "private") or is_of_triton:
        return
    event = {"backend": "sgljit", "event": "kernel JIT compilation", "fn_name": build.label}
    try:
        jit_monitor._handle_jit_event(**event, detail=f"{seconds:.2f} s")  # noqa: SLF001 - there is no public one
    except (AttributeError, TypeError):
        text = f"compiled {build.label} during inference, in {seconds:.2f} s, unknown to vLLM's JIT monitor"
        ADAPTER.say(logging.WARNING, "engine_jit", text)
