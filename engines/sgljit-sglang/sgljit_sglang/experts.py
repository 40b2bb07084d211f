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
_MOST = 32  # experts of a token, and groups
_MOST_IN_GROUPS = 1 << 16  # experts
_OWN_KERNELS = {(896, 16), (512, 22)}  # experts, and those of a token, for which SGLang has a kernel of its own
_EPSILONS = (0.0, 1e-20)  # to the sum that weights are divided by, ours adds 1e-20; SGLang does for sums of 0 alone

# The options whose value must be the default, and all that the hook knows.
_EMPTY = ("bias_alt", "input_ids", "bias_alt_token_id", "num_token_non_padded", "packed_out")
_FALSE = ("num_fused_shared_experts", "moe_softcapping", "sqrtsoftplus_log1p")
_SCALE = "routed_scaling_factor"
_SCALED = "apply_routed_scaling_factor_on_output"
_GROUPS, _KEPT = "num_expert_group", "topk_group"
_KNOWN = {*_EMPTY, *_FALSE, _SCALE, _SCALED, _GROUPS, _KEPT, "renormalize", "renormalize_epsilon"}

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
    groups = (options.get(_GROUPS, 1), options.get(_KEPT, 1)) if options.get(_GROUPS, 1) > 1 else (1, 1)
    if name in _used and not (
        is_plain and _fits(name, scores, bias, topk) and _has_groups(scores, bias, topk, *groups)
    ):
        left(name)
    elif name in _used and _works(name, scores, bias, topk, *groups):
        weights = scores.new_empty((len(scores), topk), dtype=torch.float32)
        ids = scores.new_empty((len(scores), topk), dtype=torch.int32)
        renormalize = bool(options.get("renormalize", True))
        factor = options.get(_SCALE) if options.get(_SCALED) else None
        scale = 1.0 if factor is None else float(factor)
        asked = {"num_expert_group": groups[0], "topk_group": groups[1], "routed_scaling_factor": scale}
        if ran(name, weights, ids, scores, renormalize, correction_bias=bias, **asked):
            return weights, ids
    return theirs(scores, bias, topk, scoring_func, *args, **options)


def _is_plain(options: Mapping[str, Any]) -> bool:
    """Whether no option asks for more than scores, their choice, in groups or not, and weights."""
    return (
        options.keys() <= _KNOWN
        and all(options.get(name) is None for name in _EMPTY)
        and not any(options.get(name) for name in _FALSE)
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


def _has_groups(scores: torch.Tensor, bias: torch.Tensor | None, topk: int, groups: int, kept: int) -> bool:
    """Whether groups are ranked by the sum of their two best, as ours are with a bias.

    SGLang passes over experts that are equal to the best of their group; ours counts them, as the models do.
    """
    experts = scores.shape[1]
    size = experts // groups
    return groups == 1 or (
        bias is not None
        and groups <= _MOST
        and experts <= _MOST_IN_GROUPS
        and experts == groups * size
        and size > 1
        and 0 < kept <= groups
        and topk <= kept * size
    )


def _works(name: str, scores: torch.Tensor, bias: torch.Tensor | None, topk: int, groups: int, kept: int) -> bool:
    experts = scores.shape[1]

    def trial(kernel: Op) -> None:
        zeros = None if bias is None else torch.zeros_like(bias)

        def choose(tokens: int) -> None:
            weights, ids = (scores.new_empty(tokens, topk, dtype=dtype) for dtype in (torch.float32, torch.int32))
            gates, grouped = scores.new_zeros(tokens, experts), {"num_expert_group": groups, "topk_group": kept}
            kernel(weights, ids, gates, True, correction_bias=zeros, **grouped)

        try_rows(choose, experts, device)

    device = scores.device.type
    form = f"{kept} of {groups} groups" if kept < groups else "no groups"
    kind = (experts, topk, form, scores.dtype, None if bias is None else bias.dtype, device)
    return works(name, kind, trial)
