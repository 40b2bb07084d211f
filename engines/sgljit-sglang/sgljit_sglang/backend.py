"""How does a layer of SGLang come to call sgljit? By the plugin backend of its fused ops, or by a hook."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from sglang.kernels.fused_op import BaseFusedOp
from sglang.kernels.spec import CapabilityRequirement, KernelBackend
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from . import ADAPTER

_hooked: set[str] = set()


def around(
    target: str,
    hook: Callable[..., Any],
    op: str | Callable[..., str] | None = None,
    outcome: Callable[..., Any] | None = None,
) -> None:
    """Register a hook around a function, once. SGLang applies it when all plugins have run.

    Args:
        target: the function's module and name, with dots.
        hook: takes SGLang's function, then what that takes.
        op: what the hook calls, or a function that gives it for a call, for ``SGLJIT_SHADOW``; None if that has
            nothing to compare.
        outcome: what of a call ``SGLJIT_SHADOW`` compares.
    """
    if target not in _hooked:
        _hooked.add(target)
        seam = hook if op is None else ADAPTER.shadowed(op, hook, outcome=outcome)
        HookRegistry.register(target, seam, HookType.AROUND)


def give_backend(layer: Any, forward: Callable[..., Any], fits: Callable[..., bool], op: Callable[..., str]) -> None:
    """Let SGLang choose ``forward`` before its own for a call that fits, on CUDA. Another plugin's stays.

    Args:
        layer: the class.
        forward: takes what the layer's ``forward_cuda`` takes.
        fits: takes the same, and says whether ``forward`` supports it.
        op: takes the same, and gives the op that ``forward`` calls.
    """
    if getattr(layer.forward_plugin, "of_sgljit", False):
        return
    for method in (layer.forward_plugin, layer.backend_eligible):
        if method is not getattr(BaseFusedOp, method.__name__, None):
            other = f"{method.__module__}.{method.__qualname__}"
            text = f"leaves {layer.__name__} to {other}, the backend of another plugin"
            ADAPTER.say_once(logging.WARNING, "engine_conflict", text)
            return

    if ADAPTER.shadow:
        forward = functools.partial(ADAPTER.shadowed(op, _without_own(forward)), _own)

    def forward_plugin(self: Any, *args: Any, **kwargs: Any) -> Any:
        # It may be asked for by name, also for a call that does not fit.
        return forward(self, *args, **kwargs) if fits(self, *args, **kwargs) else self.forward_cuda(*args, **kwargs)

    def backend_eligible(self: Any, backend: KernelBackend, *args: Any, **kwargs: Any) -> bool:
        if not BaseFusedOp.backend_eligible(self, backend, *args, **kwargs):
            return False
        return backend is not KernelBackend.PLUGIN or fits(self, *args, **kwargs)

    forward_plugin.of_sgljit = True  # type: ignore[attr-defined]
    layer.forward_plugin, layer.backend_eligible = forward_plugin, backend_eligible
    layer.capabilities = {**layer.capabilities, KernelBackend.PLUGIN: {CapabilityRequirement.CUDA}}


def _own(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return layer.forward_cuda(*args, **kwargs)


def _without_own(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's ``forward`` as a hook takes its place, which knows the layer's own code by itself."""
    return lambda _theirs, *args, **kwargs: forward(*args, **kwargs)
