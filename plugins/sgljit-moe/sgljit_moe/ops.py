"""The functions users call. Their bodies are C++: csrc/*.cpp check, choose kernels and launch them."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("topk_weights", "topk_ids"))
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
    """The ``k`` experts of each token with the highest score, best first, and their weights, in one launch.

    The score of an expert is the softmax of its token's gates, its weight the score times ``routed_scaling_factor``.
    With ``renormalize`` the weights are first divided by their sum, as a softmax of the chosen gates alone is. Experts
    are ranked by their gate, which has the order of the scores, or with a ``correction_bias`` by the score plus the
    bias.

    The first of several equal experts comes first. NaN comes after all numbers, -infinity too; so the ids of a token
    are different, and always of experts. A weight that is computed of NaN is NaN: with a NaN or an infinite gate, or
    with gates that are all -infinity, a softmax is, as PyTorch's.

    With ``num_expert_group`` the experts are groups of neighbours, of which the ``topk_group`` with the highest score
    are chosen; all experts of a token are from these. The score of a group is the highest of its experts', or with a
    bias the sum of its two highest, bias included; equal groups and NaN are ranked as experts are. All is computed in
    float32. No token: a no-op.

    Args:
        topk_weights: [tokens, k], float32, float16 or bfloat16, with any strides; written, rounded once.
        topk_ids: [tokens, k], int32 or int64, with any strides; written.
        gating_output: [tokens, experts], float16, bfloat16 or float32, on a CUDA device or the CPU. Rows may be apart.
        renormalize: whether the weights are divided by their sum, plus 1e-20.
        correction_bias: [experts], float16, bfloat16 or float32; it counts for the choice alone.
        num_expert_group: from 1 to 32; it divides the experts, of which there are at most 65536 in several groups.
        topk_group: from 1 to ``num_expert_group``. ``k`` is at most 32, and at most the experts of so many groups.
        routed_scaling_factor: of the weights.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with itself or another argument; ``num_expert_group`` or ``topk_group`` is
            out of range.
    """


@FAMILY.op(mutates=("topk_weights", "topk_ids"))
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
    """As ``topk_softmax``, with the sigmoid of each gate as the score of its expert.

    Args:
        topk_weights, topk_ids, gating_output, renormalize, correction_bias, num_expert_group, topk_group,
            routed_scaling_factor: as in ``topk_softmax``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``topk_softmax``.
    """


@FAMILY.op(mutates=("topk_weights", "topk_ids"))
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
    """As ``topk_softmax``, with the score sqrt(log(1 + exp(gate))).

    Args:
        topk_weights, topk_ids, gating_output, renormalize, correction_bias, num_expert_group, topk_group,
            routed_scaling_factor: as in ``topk_softmax``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``topk_softmax``.
    """


@FAMILY.op(mutates=("output",))
def moe_sum(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    routed_scaling_factor: float = 1.0,
) -> None:
    """The sum of the results of each token's experts, weighted if there are weights, in one launch.

    ``output[t] = routed_scaling_factor * sum(topk_weights[t, i] * input[t, i])``, added in float32 from the first
    expert to the last and rounded once. No token: a no-op; no expert: zeros.

    Args:
        input: [tokens, k, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU. Tokens and experts may be
            any distance apart; elements of a row may not.
        output: [tokens, hidden], of the dtype of ``input``; rows may be apart; written.
        topk_weights: [tokens, k], float16, bfloat16 or float32, with any strides.
        routed_scaling_factor: of each sum.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: ``output`` shares memory with itself or another argument.
    """


@FAMILY.op(mutates=("sorted_token_ids", "expert_ids", "num_tokens_post_pad"))
def moe_align_block_size(
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
) -> None:
    """The pairs of a token and an expert in the order of the experts, in blocks of one expert each, in one launch.

    A pair is named by its index in ``topk_ids``, read row by row. The pairs of an expert follow each other in ascending
    order, in every run, and are padded to a multiple of ``block_size`` with ``topk_ids.numel()``, as is the rest of
    ``sorted_token_ids``. A pair whose id is no expert, such as -1, is left out.

    Args:
        topk_ids: [tokens, k], int32 or int64, contiguous, on a CUDA device or the CPU.
        num_experts: from 1 to 2048.
        block_size: at least 1.
        sorted_token_ids: [size], int32; written. ``size`` is at least ``blocks * block_size``, where ``blocks`` is
            ``pairs`` if there are fewer pairs than experts, else ``num_experts + (pairs - num_experts) // block_size``;
            ``pairs + num_experts * (block_size - 1)`` is always enough.
        expert_ids: [size], int32; the expert of each block, and -1 behind the last; written. ``size`` is at least
            ``blocks``.
        num_tokens_post_pad: [1], int32; the pairs with their padding; written.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with another argument; ``num_experts`` or ``block_size`` is out of range; so
            many padded pairs have no int32.
    """


@FAMILY.op(mutates=("pairs", "expert_ids", "places", "ends"))
def sort_by_expert(
    topk_ids: torch.Tensor,
    pairs: torch.Tensor,
    expert_ids: torch.Tensor,
    places: torch.Tensor,
    ends: torch.Tensor,
) -> None:
    """The pairs of a token and an expert in the order of the experts, as grouped matrix products take them.

    One launch. It writes what a stable sort of the ids, their histogram, its running sum and the inverse of the order
    give. A pair is named by its index in ``topk_ids``, read row by row. A pair whose id is no expert, such as -1, is
    left out: its place is -1, and what is left of ``pairs`` and ``expert_ids`` is ``topk_ids.numel()`` and -1.

    Args:
        topk_ids: [tokens, k], int32 or int64, contiguous, on a CUDA device or the CPU.
        pairs: [tokens * k], int32; the pairs of expert 0 in ascending order, then those of expert 1, and so on;
            written.
        expert_ids: [tokens * k], int32; the expert of each of these; written.
        places: [tokens * k], int32; where each pair is in ``pairs``; written.
        ends: [experts], int32, from 1 to 2048; behind the last place of each expert; written.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with another argument; there are too many experts.
    """


@FAMILY.op(mutates=("output",))
def expert_matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    expert_ids: torch.Tensor,
    output: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """The product of each row with the matrix of its expert, in one launch that copies no matrix.

    ``output[i] = weight[expert_ids[i]] @ x[i] + bias[expert_ids[i]]``, added in float32 and rounded once. With ids of
    [tokens, k] row ``t`` of ``x`` is for the products ``t * k`` to ``t * k + k - 1``, and nobody copies it.

    It reads the matrix of a row's expert for that row alone: so it is for few rows, such as the experts of one token.
    For many rows a grouped product is faster, which reads each matrix once. No row: a no-op; rows without elements:
    zeros, or the bias.

    Args:
        x: [rows, n] or [tokens, n], float16, bfloat16 or float32, on a CUDA device or the CPU. Rows may be apart.
        weight: [experts, m, n], of the dtype of ``x``. The ``n`` elements of each row are side by side, or the ``m`` of
            each column, as in a transposed view. Experts may be apart, and so may the rows or columns.
        expert_ids: [rows] or [tokens, k], int32 or int64, contiguous: from 0 to experts - 1. On a CUDA device that is
            checked with ``SGLJIT_CHECK_INDICES=1`` alone.
        output: [rows, m] or [tokens * k, m], of the dtype of ``x``; rows may be apart; written.
        bias: [experts, m], of the dtype of ``x``; rows may be apart.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above, or an id is of
            no expert.
        ValueError: ``output`` shares memory with itself or another argument.
    """
