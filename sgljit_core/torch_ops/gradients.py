"""Refusing gradients: no op has one.

An argument that requires grad is refused, as PyTorch refuses to write to a leaf. So is an argument with
a tangent of forward-mode differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from sgljit_core.errors import InferenceOnlyError


def refuse_gradients(library: torch.library.Library, overload: Any, op: str, names: Sequence[str]) -> None:
    """Register the check for a library op, in front of whatever would run.

    Errors call it ``op``, and its arguments ``names``, which are in the schema's order.
    """

    def check(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        for argument, value in (*zip(names, args, strict=False), *kwargs.items()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and (why := _refusal(tensor)):
                    raise InferenceOnlyError(
                        f"{op}(): {argument} {why}, and this op is for inference only: it has no gradient. Call it "
                        f"under torch.no_grad() or torch.inference_mode(), or pass {argument}.detach()"
                    )
        # The next in order: all but the autograd key that led here.
        return overload.redispatch(keyset.remove(keyset.highestPriorityTypeId()), *args, **kwargs)

    library.impl(overload, check, "Autograd", with_keyset=True)


def _refusal(tensor: torch.Tensor) -> str:
    if tensor.requires_grad and torch.is_grad_enabled():
        return "requires grad"
    return "has a tangent" if forward_ad.unpack_dual(tensor).tangent is not None else ""
