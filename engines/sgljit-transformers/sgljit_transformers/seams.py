"""What does a ``forward`` of ours ask before it calls an op, and what happens where the op does not run?

It is the code between a model and a kernel, called for each layer of every token. So it asks only what a sound result
needs, and each question costs less than a tenth of a microsecond. An op refuses a wrong dtype or a gradient by itself;
these are asked first because a refusal is slow, and because a compiled graph has no way back from one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sgljit_core.errors import InferenceOnlyError, SgljitError, TensorMatchError
from sgljit_engines import Use

from .adapter import ADAPTER

__all__ = ["DTYPES", "NOT_TAKEN", "NO_RULE", "Forward", "GiveUp", "Op", "by_ops", "count_own", "own_code"]

DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
NOT_TAKEN = (TensorMatchError, InferenceOnlyError, IndexError)  # an op does not take such a tensor
NO_RULE = (RuntimeError, ValueError)  # such as torch.vmap, for which ops have no rule
_GRADIENTS = (
    "has a model in eval() that is called while gradients are enabled: its layers run their own code, as the ops are "
    "for inference. Call it inside of torch.inference_mode(), or torch.no_grad()"
)

Op = Callable[..., torch.Tensor | None]
Forward = Callable[..., Any]
# Called with the layer, the op and the error where an op cannot be built, and without a layer where it disagrees with
# the layers' own code.
GiveUp = Callable[[nn.Module | None, str, Exception], None]


def own_code(layer: nn.Module, use: Use, *args: Any, **kwargs: Any) -> Any:
    """The layer's own code. If gradients alone are the reason, one warning says so: few models in eval() want them."""
    if not torch.compiler.is_compiling():
        count_own(use)
        if not layer.training and torch.is_grad_enabled():
            ADAPTER.say_once(logging.WARNING, "engine_gradients", _GRADIENTS)
    return type(layer).forward(layer, *args, **kwargs)


def by_ops(give_up: GiveUp, use: Use, layer: nn.Module | None, compute: Callable[..., Any], *args: Any) -> Any:
    """The result of ``compute(*args)``, which calls ops; None where the layer's own code must run. It counts either."""
    try:
        result = compute(*args)
    except NOT_TAKEN:
        pass
    except (SgljitError, OSError) as error:
        give_up(layer, use.op, error)
    except NO_RULE:
        pass
    else:
        use.calls += 1
        return result
    count_own(use)
    return None


def count_own(use: Use) -> None:
    """Count a call that the model's own code takes."""
    use.own_calls += 1
    ADAPTER.own_runs[use.op] += 1
