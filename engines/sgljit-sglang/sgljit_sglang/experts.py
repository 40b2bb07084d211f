"""SGLang's choice of experts by a hook, or SGLang's own code for what sgljit does not support.

The rest of a layer of experts is SGLang's: its alignment keeps blocks for ids of no expert, whose rows its matrix
products set to zero, and ours leaves such ids out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled

from sgljit_engines.kernels import DTYPES, Op, try_rows

from .backend import around
from .kernels import left, ran, works

_GATE = "sglang.kernels.ops.moe.moe_fused_gate.moe_fused_gate"
_SCORES = {"softmax": "topk_softmax", "sigmoid": "topk_sigmoid", "sqrtsoftplus": "topk_sqrtsoftplus"}
_MOST = 32  # experts of a token
_OWN_KERNELS = {(896, 16), (512, 22)}  # experts, and those of a token, for which SGLang has a kernel of its own
_EPSILONS = (0.0, 1e-20)  # to the sum that weights are divided by, ours adds 1e-20; SGLang does for sums of 0 alone

# The options whose value must be the default, and all that the hook knows.
_EMPTY = ("bias_alt", "input_ids", "bias_alt_token_id", "num_token_non_padded", "packed_out")
_FALSE = ("num_fused_shared_experts", "moe_softcapping", "sqrtsoftplus_log1p")
_SCALE = "routed_scaling_factor"
_SCALED = "apply_routed_scaling_factor_on_output"
_KNOWN = {*_EMPTY, *_FALSE, _SCALE, _SCALED, "num_expert_group", "topk_group", "renormalize", "renormalize_epsilon"}

Result = tuple[torch.Tensor, torch.Tensor]

_used: frozenset[str] = frozenset()


def replace(used: frozenset[str]) -> None:
    """Register the hook.

    Args:
        used: the ops that may be called.
    """
    global _used  # noqa: PLW0603 - one SGLang in a process
    _used = used
    if used.intersection(_SCORES.values()):
        around(_GATE, _choose)


def _choose(
    theirs: Callable[..., Result],
    scores: torch.Tensor,
    bias: torch.Tensor | None,
    topk: int,
    scoring_func: str = "sigmoid",
    *args: Any,
    **options: Any,
) -> Result:
    name = _SCORES.get(scoring_func, "")
    is_plain = not args and not is_batch_invariant_mode_enabled() and _is_plain(options)
    if name in _used and not (is_plain and _fits(name, scores, bias, topk)):
        left(name)
    elif name in _used and _works(name, scores, bias, topk):
        weights = scores.new_empty((len(scores), topk), dtype=torch.float32)
        ids = scores.new_empty((len(scores), topk), dtype=torch.int32)
        renormalize = bool(options.get("renormalize", True))
        factor = options.get(_SCALE) if options.get(_SCALED) else None
        scale = 1.0 if factor is None else float(factor)
        if ran(name, weights, ids, scores, renormalize, correction_bias=bias, routed_scaling_factor=scale):
            return weights, ids
    return theirs(scores, bias, topk, scoring_func, *args, **options)


def _is_plain(options: Mapping[str, Any]) -> bool:
    """Whether no option asks for more than scores, their choice and weights, without groups of experts.

    With groups SGLang passes over experts that are equal to the best of their group, and ours does not.
    """
    return (
        options.keys() <= _KNOWN
        and all(options.get(name) is None for name in _EMPTY)
        and not any(options.get(name) for name in _FALSE)
        and options.get("num_expert_group", 1) <= 1
        and options.get("renormalize_epsilon", 0.0) in _EPSILONS
    )


def _fits(name: str, scores: torch.Tensor, bias: torch.Tensor | None, topk: int) -> bool:
    if scores.ndim != 2 or len(scores) == 0 or scores.stride(1) != 1 or scores.dtype not in DTYPES:
        return False
    experts = scores.shape[1]
    if not 0 < topk <= min(_MOST, experts) or (experts, topk) in _OWN_KERNELS:
        return False
    if bias is None or name == "topk_softmax":  # SGLang adds the bias of a softmax to the gates
        return bias is None and name == "topk_softmax"
    is_vector = bias.shape == (experts,) and bias.is_contiguous()
    return is_vector and bias.dtype in DTYPES and bias.device == scores.device


def _works(name: str, scores: torch.Tensor, bias: torch.Tensor | None, topk: int) -> bool:
    experts = scores.shape[1]

    def trial(kernel: Op) -> None:
        zeros = None if bias is None else torch.zeros_like(bias)

        def choose(tokens: int) -> None:
            weights, ids = (scores.new_empty(tokens, topk, dtype=dtype) for dtype in (torch.float32, torch.int32))
            kernel(weights, ids, scores.new_zeros(tokens, experts), True, correction_bias=zeros)

        try_rows(choose, experts, device)

    device = scores.device.type
    kind = (experts, topk, scores.dtype, None if bias is None else bias.dtype, device)
    return works(name, kind, trial)
