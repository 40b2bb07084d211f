"""The ops in plain PyTorch and float64, to compare the kernels with."""

from __future__ import annotations

import torch


def topk_softmax(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    *,
    correction_bias: torch.Tensor | None = None,
    num_expert_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
) -> None:
    """The experts with the highest gate, or with the highest softmax plus bias."""
    gates = gating_output.double()
    scores = gates.softmax(-1)
    ids = _choose(gates, scores, topk_ids, correction_bias, num_expert_group, topk_group)
    if renormalize and correction_bias is None:
        # A softmax of the chosen, but by the largest of all: what was not chosen makes no NaN.
        chosen = gates.gather(-1, ids)
        scores = torch.zeros_like(gates).scatter(-1, ids, (chosen - _numbers(gates).amax(-1, keepdim=True)).exp())
    _weigh(topk_weights, scores.gather(-1, ids), renormalize, routed_scaling_factor)


def topk_sigmoid(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    *,
    correction_bias: torch.Tensor | None = None,
    num_expert_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
) -> None:
    """The experts with the highest gate, or with the highest sigmoid plus bias."""
    gates = gating_output.double()
    scores = gates.sigmoid()
    ids = _choose(gates, scores, topk_ids, correction_bias, num_expert_group, topk_group)
    _weigh(topk_weights, scores.gather(-1, ids), renormalize, routed_scaling_factor)


def topk_sqrtsoftplus(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    *,
    correction_bias: torch.Tensor | None = None,
    num_expert_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
) -> None:
    """The experts with the highest gate, or with the highest score plus bias."""
    gates = gating_output.double()
    scores = torch.nn.functional.softplus(gates, threshold=50).sqrt()  # from 50 on it is the gate
    ids = _choose(gates, scores, topk_ids, correction_bias, num_expert_group, topk_group)
    _weigh(topk_weights, scores.gather(-1, ids), renormalize, routed_scaling_factor)


def moe_sum(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    routed_scaling_factor: float = 1.0,
) -> None:
    """Rounded once, to the dtype of ``output``."""
    rows = input.double()
    if topk_weights is not None:
        rows = rows * topk_weights.double()[..., None]
    output.copy_(rows.sum(1) * routed_scaling_factor)


def moe_align_block_size(
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
) -> None:
    """A stable sort of the pairs whose id is an expert."""
    ids = topk_ids.flatten().long()
    pairs = ((ids >= 0) & (ids < num_experts)).nonzero()[:, 0]
    pairs = pairs[ids[pairs].sort(stable=True).indices]
    experts = ids[pairs]
    counts = experts.bincount(minlength=num_experts)
    blocks = (counts + block_size - 1) // block_size
    shifts = (blocks.cumsum(0) - blocks) * block_size - (counts.cumsum(0) - counts)  # by the padding before
    places = torch.arange(len(pairs), device=ids.device) + shifts[experts]
    sorted_token_ids.fill_(len(ids))
    sorted_token_ids[places] = pairs.int()
    of_blocks = torch.arange(num_experts, device=ids.device).repeat_interleave(blocks)
    expert_ids.fill_(-1)
    expert_ids[: len(of_blocks)] = of_blocks
    num_tokens_post_pad.fill_(len(of_blocks) * block_size)


def sort_by_expert(
    topk_ids: torch.Tensor,
    pairs: torch.Tensor,
    expert_ids: torch.Tensor,
    places: torch.Tensor,
    ends: torch.Tensor,
) -> None:
    """A stable sort of the pairs whose id is an expert."""
    ids = topk_ids.flatten().long()
    found = ((ids >= 0) & (ids < len(ends))).nonzero()[:, 0]
    order = found[ids[found].sort(stable=True).indices]
    pairs.fill_(len(ids))[: len(order)] = order.int()
    expert_ids.fill_(-1)[: len(order)] = ids[order].int()
    places.fill_(-1)[order] = torch.arange(len(order), dtype=torch.int32, device=ids.device)
    ends.copy_(ids[order].bincount(minlength=len(ends)).cumsum(0))


def expert_matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    expert_ids: torch.Tensor,
    output: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """Rounded once, to the dtype of ``output``."""
    ids = expert_ids.flatten().tolist()
    repeats = expert_ids.shape[1] if expert_ids.ndim == 2 else 1
    products = [weight[expert].double() @ x[i // repeats].double() for i, expert in enumerate(ids)]
    for row, product, expert in zip(output, products, ids, strict=True):
        row.copy_(product if bias is None else product + bias[expert].double())


def _numbers(values: torch.Tensor) -> torch.Tensor:
    return values.where(~values.isnan(), -torch.inf)


def _weigh(weights: torch.Tensor, chosen: torch.Tensor, renormalize: bool, scale: float) -> None:
    if renormalize:
        chosen = chosen / (chosen.sum(-1, keepdim=True) + 1e-20)
    weights.copy_(chosen * scale)


def _choose(
    gates: torch.Tensor,
    scores: torch.Tensor,
    topk_ids: torch.Tensor,
    bias: torch.Tensor | None,
    num_expert_group: int,
    topk_group: int,
) -> torch.Tensor:
    """The chosen experts, which are written, and as int64."""
    choice = gates if bias is None else scores + bias.double()
    order = _order(choice)
    if topk_group < num_expert_group:
        groups = choice.unflatten(-1, (num_expert_group, -1))
        best = groups.gather(-1, _order(groups)[..., : 1 if bias is None else 2]).sum(-1)
        chosen = _order(best)[:, :topk_group]
        size = gates.shape[-1] // num_expert_group
        inside = (order[..., None] // size == chosen[:, None, :]).any(-1)
        order = order[inside].view(len(order), topk_group * size)
    ids = order[:, : topk_ids.shape[-1]]
    topk_ids.copy_(ids)
    return ids


def _order(values: torch.Tensor) -> torch.Tensor:
    """The columns from the largest value to the smallest, of equal ones the lower first; NaN is behind all."""
    order = _numbers(values).sort(stable=True, descending=True).indices
    return order.gather(-1, values.gather(-1, order).isnan().byte().sort(stable=True).indices)
