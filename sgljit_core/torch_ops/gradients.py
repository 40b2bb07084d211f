"""Refusing gradients: no op has one.

An argument that requires grad is refused, as PyTorch refuses to write to a leaf. So is an argument with
a tangent of forward-mode differentiation. The check is the op's kernel for the autograd key, which a tracer passes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, is_grad_enabled
from torch.autograd.forward_ad import unpack_dual
from torch.library import Library

from sgljit_core.errors import InferenceOnlyError

from .tensors import PLAIN

_backend_is_next: dict[int, bool] = {}  # by a set of dispatch keys, as a number


def refuse_gradients(library: Library, overload: Any, run: Callable[..., Any], op: str, names: Sequence[str]) -> None:
    """Register the check for a library op, in front of whatever would run, which is ``run`` where a backend is next.

    Errors call it ``op``, and its arguments ``names``, which are in the schema's order.
    """

    def check(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        number = keyset.raw_repr()
        # The way of a graph's calls: the loop below takes longer than a whole call. A tensor is its own primal unless
        # forward-mode differentiation is under way, where arguments may have tangents.
        if not is_grad_enabled() and _backend_is_next.get(number) and unpack_dual(PLAIN).primal is PLAIN:
            return run(*args, **kwargs)
        for argument, value in (*zip(names, args, strict=False), *kwargs.items()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor) and (why := _refusal(tensor)):
                    raise InferenceOnlyError(
                        f"{op}(): {argument} {why}, and this op is for inference only: it has no gradient. Call it "
                        f"under torch.no_grad() or torch.inference_mode(), or pass {argument}.detach()"
                    )
        # The remaining dispatch keys: without the autograd key that led here.
        rest = keyset.remove(keyset.highestPriorityTypeId())
        if number not in _backend_is_next:
            _backend_is_next[number] = rest.highestPriorityTypeId().name in ("CPU", "CUDA")
        return overload.redispatch(rest, *args, **kwargs)

    library.impl(overload, check, "Autograd", with_keyset=True)


def _refusal(tensor: Tensor) -> str:
    if tensor.requires_grad and is_grad_enabled():
        return "requires grad"
    return "has a tangent" if unpack_dual(tensor).tangent is not None else ""
