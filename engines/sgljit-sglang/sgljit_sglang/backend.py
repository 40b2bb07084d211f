"""How does a layer of SGLang come to call sgljit? By the plugin backend of its fused ops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from sglang.kernels.fused_op import BaseFusedOp
from sglang.kernels.spec import CapabilityRequirement, KernelBackend

from . import ADAPTER

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def give_backend(layer: Any, forward: Callable[..., Any]) -> None:
    """Let SGLang choose ``forward`` before its own where there is a CUDA device. Another plugin's stays.

    Args:
        layer: the class.
        forward: takes what the layer's ``forward_cuda`` takes.
    """
    if getattr(layer.forward_plugin, "of_sgljit", False):
        return
    if layer.forward_plugin is not BaseFusedOp.forward_plugin:
        other = f"{layer.forward_plugin.__module__}.{layer.forward_plugin.__qualname__}"
        text = f"leaves {layer.__name__} to {other}, the backend of another plugin"
        ADAPTER.say_once(logging.WARNING, "engine_conflict", text)
        return
    forward.of_sgljit = True  # type: ignore[attr-defined]
    layer.forward_plugin = forward
    layer.capabilities = {**layer.capabilities, KernelBackend.PLUGIN: {CapabilityRequirement.CUDA}}
