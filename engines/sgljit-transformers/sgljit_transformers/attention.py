"""Which layers attend with sinks, and how do they do so by fewer calls of PyTorch?

A sink is a number for each head that takes part in the softmax as if it were the score of one more token, which has no
value. Only eager code knows it, and that copies keys and values for each query head of a group and takes the softmax
in six calls. No op of ours is in what stands here: a step of few tokens waits for the host, for which the number of
calls counts.
"""

from __future__ import annotations

import inspect
import math
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from .seams import DTYPES, NO_RULE, Forward

__all__ = ["attending", "match"]

# The parameters of such a function, before those of other options.
_TAKES = ("module", "query", "key", "value", "attention_mask", "scaling", "dropout")
# Options that a model hands on, and of which the result does not depend: each is tried.
_OPTIONS = {
    "sliding_window": 2,
    "position_ids": torch.arange(3)[None],
    **dict.fromkeys(("use_cache", "output_attentions", "output_hidden_states", "output_router_logits"), True),
}
_IGNORED = frozenset({*_OPTIONS, "s_aux"})


def match(layer: nn.Module) -> str:
    """The global name of the function that attends with sinks in a layer's ``forward``; "" if there is none."""
    forward, sinks = type(layer).forward, getattr(layer, "sinks", None)
    if not isinstance(forward, FunctionType) or not isinstance(sinks, nn.Parameter) or sinks.dim() != 1:
        return ""
    named = {name: forward.__globals__.get(name) for name in forward.__code__.co_names}
    found = [
        name
        for name, one in named.items()
        if isinstance(one, FunctionType) and tuple(inspect.signature(one).parameters)[:-1] == _TAKES
    ]
    return found[0] if len(found) == 1 and _attends(named[found[0]]) else ""


def _attends(function: Any) -> bool:
    """Whether a function computes attention with sinks, and returns it with the weights of all tokens."""
    for dtype in (torch.float32, torch.bfloat16):
        for groups, is_masked in ((1, True), (2, False), (3, True)):
            generator = torch.Generator().manual_seed(0)

            def some(*shape: int) -> torch.Tensor:
                return torch.randn(*shape, generator=generator).to(dtype)  # noqa: B023 - called here alone

            query, key, value, sinks = some(2, 2 * groups, 3, 8), some(2, 2, 5, 8), some(2, 2, 5, 8), some(2 * groups)
            mask = some(2, 1, 3, 5) if is_masked else None
            if mask is not None:
                mask[0, :, :2, 3] = torch.finfo(dtype).min
            module = SimpleNamespace(sinks=sinks, num_key_value_groups=groups, training=False)
            options = {**_OPTIONS, "s_aux": some(2 * groups)}
            try:
                with torch.no_grad():
                    results = tuple(function(module, query, key, value, mask, scaling=0.3, dropout=0.0, **options))
                pairs = list(zip(results, _wanted(sinks, query, key, value, mask, 0.3), strict=True))
            except Exception:  # noqa: BLE001 - a stranger's function: whatever it cannot do, it is not replaced
                return False
            for result, wanted in pairs:
                if not isinstance(result, torch.Tensor) or result.dtype != dtype or result.shape != wanted.shape:
                    return False
                # A model rounds each of the steps from the scores to their softmax.
                tolerance = 8 * torch.finfo(dtype).eps * float(wanted.abs().max())
                if not ((result.double() - wanted).abs() <= tolerance).all():
                    return False
    return True


def _wanted(
    sinks: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula in float64: the heads of a group are neighbours."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(groups, dim=1) for x in (key, value))
    scores = scaling * query.double() @ key.mT + (0 if mask is None else mask.double())
    shares = scores.exp()
    weights = shares / (shares.sum(-1, keepdim=True) + sinks.double().exp()[:, None, None])
    return (weights @ value).transpose(1, 2), weights


def attending(theirs: Forward) -> Forward:
    """A function that computes the same as one that ``match`` has found, and calls that for what it does not take.

    It is for a layer in inference alone. Scores of all tokens and sinks lie side by side in one tensor, which begins
    as the mask: the product of queries and keys is added to it in place.
    """
    plain, cat, bmm = torch.Tensor, torch.cat, torch.bmm

    def attend(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: Any,
        dropout: Any = 0.0,
        **options: Any,
    ) -> Any:
        sinks, mask = module.sinks, attention_mask
        if (
            type(query) is type(key) is type(value) is plain
            and type(sinks) in (plain, nn.Parameter)
            and (mask is None or type(mask) is plain)
            and query.dtype is key.dtype is value.dtype is sinks.dtype
            and query.dtype in DTYPES
            and type(scaling) is float
            and not dropout
            and options.keys() <= _IGNORED
        ):
            try:
                batch, heads, tokens, size = query.shape
                _, kv_heads, length, value_size = value.shape
                if mask is None:
                    mask = query.new_zeros(()).expand(1, 1, tokens, length)
                if (
                    key.shape == (batch, kv_heads, length, size)
                    and heads == kv_heads * module.num_key_value_groups
                    and sinks.shape == (heads,)
                    and mask.dtype is query.dtype
                    and mask.shape in ((batch, 1, tokens, length), (1, 1, tokens, length))
                ):
                    of_sinks = sinks.view(1, heads, 1, 1).expand(batch, heads, tokens, 1)
                    parts = [mask.expand(batch, heads, tokens, length), of_sinks]
                    if tokens > 1 and (rest := -(length + 1) % 8):  # rows of a product begin at 16 bytes then
                        parts.append(query.new_full((), -math.inf).expand(batch, heads, tokens, rest))
                    scores = cat(parts, -1)
                    # The query heads of a group are neighbours: as rows of one matrix they share keys and values.
                    count, rows = batch * kv_heads, heads // kv_heads * tokens
                    queries, keys = query.reshape(count, rows, size), key.reshape(count, length, size).mT
                    scores = scores.view(count, rows, -1)
                    scores.narrow(2, 0, length).baddbmm_(queries, keys, alpha=scaling)
                    weights = scores.softmax(-1).narrow(2, 0, length)
                    result = bmm(weights, value.reshape(count, length, value_size))
                    if tokens == 1:
                        result = result.view(batch, 1, heads, value_size)
                    else:
                        result = result.view(batch, heads, tokens, value_size).transpose(1, 2).contiguous()
                    return result, weights.view(batch, heads, tokens, length)
            except NO_RULE:  # such as torch.vmap, which has none for this product in place
                pass
        return theirs(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)

    return attend
