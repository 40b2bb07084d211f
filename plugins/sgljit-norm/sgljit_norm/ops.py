"""The functions users call. Their bodies are C++: csrc/*.cpp check, choose a kernel and launch it."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("out",), inplace="input")
def rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional.rms_norm calls it
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """``input / sqrt(mean(input**2, -1) + eps) * weight``, row by row, into ``out`` or in place.

    Root mean square layer normalisation, equation 4 of https://arxiv.org/abs/1910.07467, with ``eps`` under the root
    as in ``torch.nn.functional.rms_norm``. Computed in float32 and rounded once, at the end. No row: a no-op.

    Args:
        input: [..., hidden], float16, bfloat16 or float32, on a CUDA device or the CPU. Rows may be apart, at any one
            stride; elements of a row may not.
        weight: [hidden], contiguous, of the input's dtype and device.
        out: like ``input``, with a row stride of its own; ``input`` itself is overwritten when None.
        eps: at least 0; added to the mean of squares, so that a row of zeros stays zero: from 2**-126 on, float32's
            smallest normal number. Where it is 0 in float32, a row of zeros becomes NaN.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``out`` share memory with each other, with other rows of ``input`` or with ``weight``;
            ``eps`` is negative.
    """


@FAMILY.op(mutates=("out",), inplace="input")
def gemma_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """``input / sqrt(mean(input**2, -1) + eps) * (1 + weight)``, row by row, into ``out`` or in place.

    The weight as Gemma's checkpoints store it; ``1 + weight`` is not rounded. Otherwise as ``rmsnorm``.

    Args:
        input: [..., hidden], as in ``rmsnorm``.
        weight: [hidden], contiguous, of the input's dtype and device.
        out: like ``input``; ``input`` itself is overwritten when None.
        eps: at least 0; added to the mean of squares.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``rmsnorm``.
    """


@FAMILY.op(mutates=("input", "residual"))
def fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``residual = input + residual``, then ``input = rmsnorm(residual)``, row by row, both in place.

    The sum is normalised in float32, before it is rounded to the dtype of ``residual``, or with ``round_first`` after
    that. No row: a no-op.

    Args:
        input: [tokens, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU; rows may be apart.
        residual: like ``input``, with a row stride of its own, and in memory of its own.
        weight: [hidden], contiguous, of the input's dtype and device.
        eps: at least 0; added to the mean of squares.
        round_first: whether the norm reads the sum as it is rounded, as ``rmsnorm`` does after an addition. On the CPU
            the bits are those of ``residual += input`` and ``rmsnorm``. On CUDA those of ``residual`` are; the sum of
            squares may differ in its last bit, but not for rows of up to 512 bytes in float16 and bfloat16, whose size
            is a multiple of 16 and whose address one of 16 bytes.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``input`` and of ``residual`` share memory, or with ``weight``; ``eps`` is negative.
    """


@FAMILY.op(mutates=("input", "residual"))
def gemma_fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``residual = input + residual``, then ``input = gemma_rmsnorm(residual)``, row by row, both in place.

    ``fused_add_rmsnorm`` with ``1 + weight``.

    Args:
        input: [tokens, hidden], as in ``fused_add_rmsnorm``.
        residual: like ``input``.
        weight: [hidden], contiguous, of the input's dtype and device.
        eps: at least 0; added to the mean of squares.
        round_first: whether the norm reads the sum after it is rounded, as in ``fused_add_rmsnorm``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``fused_add_rmsnorm``.
    """


@FAMILY.op(mutates=("input", "residual"))
def fused_rmsnorm_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``residual = rmsnorm(input, weight) + residual``, then ``input = rmsnorm(residual, next_weight)``, both in place.

    One launch between two blocks of a model that also normalises the result of a block, such as GLM-4-0414 (sandwich
    normalisation, https://arxiv.org/abs/2105.13290). Computed in float32: the first norm is not rounded before the
    addition, nor the sum before the second norm, unless with ``round_first``. No row: a no-op.

    Args:
        input: [tokens, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU; rows may be apart.
        residual: like ``input``, with a row stride of its own, and in memory of its own.
        weight: [hidden], contiguous, of the input's dtype and device; that of the norm before the addition.
        next_weight: like ``weight``; that of the norm of the sum.
        eps: at least 0; added to both means of squares.
        round_first: whether the first norm and the sum are rounded before they are read, as by ``rmsnorm``, an addition
            and ``rmsnorm``. On the CPU the bits are theirs. On CUDA a sum of squares may differ in its last bit, as in
            ``fused_add_rmsnorm``.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``input`` and of ``residual`` share memory, or with a weight; ``eps`` is negative.
    """


@FAMILY.op(mutates=("input", "residual"))
def gemma_fused_rmsnorm_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    round_first: bool = False,
) -> None:
    """``fused_rmsnorm_add_rmsnorm`` with ``1 + weight`` and ``1 + next_weight``, as Gemma 2 and 3 have it.

    Args:
        input: [tokens, hidden], as in ``fused_rmsnorm_add_rmsnorm``.
        residual: like ``input``.
        weight: [hidden], contiguous, of the input's dtype and device; that of the norm before the addition.
        next_weight: like ``weight``; that of the norm of the sum.
        eps: at least 0; added to both means of squares.
        round_first: whether both are rounded before they are read, as in ``fused_rmsnorm_add_rmsnorm``.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``fused_rmsnorm_add_rmsnorm``.
    """


@FAMILY.op(mutates=("q", "k"))
def fused_inplace_qknorm(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    head_dim: int = 0,
) -> None:
    """``rmsnorm`` over each head of ``q`` and of ``k``, in place, in one launch.

    ``q`` and ``k`` may be views of one buffer, such as a projection's output that also holds v. No token: a no-op.

    Args:
        q: [tokens, heads, head_dim], float16, bfloat16 or float32, on a CUDA device or the CPU. Tokens and heads may be
            any distance apart, elements of a head may not. Or [tokens, heads * head_dim], with ``head_dim`` given.
        k: like ``q``, with a number of heads and strides of its own.
        q_weight, k_weight: [head_dim], contiguous, of the dtype and device of ``q``.
        eps: at least 0; added to the mean of squares.
        head_dim: elements of a head; 0: the last dimension.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: heads share memory with each other or with a weight; ``head_dim`` is negative, does not divide the
            last dimension, or is missing; ``eps`` is negative.
    """


@FAMILY.op(mutates=("q", "k"))
def gemma_fused_inplace_qknorm(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    head_dim: int = 0,
) -> None:
    """``gemma_rmsnorm`` over each head of ``q`` and of ``k``, in place, in one launch.

    ``fused_inplace_qknorm`` with ``1 + q_weight`` and ``1 + k_weight``.

    Args:
        q: [tokens, heads, head_dim], as in ``fused_inplace_qknorm``.
        k: like ``q``, with a number of heads and strides of its own.
        q_weight, k_weight: [head_dim], contiguous, of the dtype and device of ``q``.
        eps: at least 0; added to the mean of squares.
        head_dim: elements of a head; 0: the last dimension.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``fused_inplace_qknorm``.
    """


@FAMILY.op(mutates=("q", "k"))
def fused_inplace_qknorm_across_heads(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float = 1e-6
) -> None:
    """``rmsnorm`` over all heads of a token together, of ``q`` and of ``k``, in place.

    One launch; two where 1024 tokens or more have a ``q`` of more than four times the elements of ``k``.

    Args:
        q: [tokens, heads * head_dim], float16, bfloat16 or float32, on a CUDA device or the CPU; rows may be apart.
        k: like ``q``, with a size and a row stride of its own. Both may be views of one buffer.
        q_weight: [heads * head_dim of q], contiguous, of the dtype and device of ``q``.
        k_weight: [heads * head_dim of k], likewise.
        eps: at least 0; added to the mean of squares.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows share memory with each other or with a weight; ``eps`` is negative.
    """


@FAMILY.op(mutates=("out",), inplace="input")
def layernorm(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional.layer_norm calls it
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    """``(input - mean) / sqrt(variance + eps) * weight + bias``, row by row, into ``out`` or in place.

    Layer normalisation, equation 4 of https://arxiv.org/abs/1607.06450, with ``eps`` under the root as in
    ``torch.nn.functional.layer_norm``. Computed in float32, the variance from the differences to the mean, and rounded
    once, at the end. No row: a no-op.

    Args:
        input: [..., hidden], as in ``rmsnorm``.
        weight: [hidden], contiguous, of the input's dtype and device.
        bias: like ``weight``; None for none.
        out: like ``input``, with a row stride of its own; ``input`` itself is overwritten when None.
        eps: at least 0; added to the variance, so that a constant row becomes ``bias``. The rounding of the mean
            shows in huge numbers: a row of c is off by up to about ``2e-13 * abs(c) / sqrt(eps)`` times the weight,
            which is 0.6 for c = 1e10 and the default ``eps``.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``out`` share memory with each other, with other rows of ``input``, or with ``weight`` or
            ``bias``; ``eps`` is negative.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def rmsnorm_quant(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    weight: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    eps: float = 1e-6,
    *,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
) -> None:
    """``output_q = y / output_s`` in FP8 or int8, with ``y = input / sqrt(mean(input**2, -1) + eps) * weight``.

    Computed in float32, as ``y * (1 / output_s)``, rounded to the nearest value of ``output_q``, ties to even, and
    saturated: e4m3 at 448, int8 at -128 and 127. A computed scale is ``max(abs(y)) / 448``, for int8 ``/ 127``, of a
    row or a group, but at least 2**-126, which is the scale of zeros, and at most float32's largest value. A row with
    NaN or an infinity is quantised as ``rmsnorm`` computes it: NaN becomes NaN, in int8 0, and does not count towards
    the scale. One launch; no row, or no column: a no-op.

    Args:
        input: [tokens, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU; rows may be apart.
        weight: [hidden], contiguous, float16, bfloat16 or float32.
        output_q: float8_e4m3fn or int8, of the input's shape, with a row stride of its own.
        output_s: float32. [1] if ``is_static``: the scale, which is read. Else with any strides, and written:
            [tokens, 1] for a scale of each row, or [tokens, hidden / 128] for one of each 128 neighbours. For a hidden
            size of 128 these are the same. Or, with ``scale_ue8m0``, int32, [tokens, ceil(hidden / 512)] with any
            strides: four exponents to a word, each plus 127, the first in the lowest byte. Bytes beyond the groups are
            not written.
        eps: at least 0; added to the mean of squares.
        is_static: whether the scale is given. It should be positive; this is not checked. By a scale of 0 what is not 0
            saturates, and 0 becomes NaN; by infinity finite values become zeros; by NaN all become NaN. NaN is 0 in
            int8.
        round_first: whether ``y`` is rounded to the input's dtype first, as by ``rmsnorm`` and a quantisation after it.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with itself or another argument; ``eps`` is negative or NaN; ``output_s`` is
            int32 without ``scale_ue8m0``; that comes with ``is_static``.
    """


@FAMILY.op(mutates=("residual", "output_q", "output_s"))
def fused_add_rmsnorm_quant(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    eps: float = 1e-6,
    *,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
) -> None:
    """``residual = input + residual``, then ``output_q = rmsnorm(residual) / output_s`` in FP8 or int8.

    The sum is normalised in float32, before it is rounded to the dtype of ``residual``, or with ``round_first`` after
    that. ``input`` stays as it is. The rest is as in ``rmsnorm_quant``.

    Args:
        input: [tokens, hidden], as in ``rmsnorm_quant``.
        residual: float16, bfloat16 or float32, of the input's shape, with a row stride of its own, and in memory of its
            own.
        weight: [hidden], contiguous, float16, bfloat16 or float32.
        output_q: float8_e4m3fn or int8, of the input's shape.
        output_s: float32: [1], which is read, if ``is_static``; else [tokens, 1] or [tokens, hidden / 128]; or int32.
        eps: at least 0; added to the mean of squares.
        is_static: whether the scale is given.
        round_first: whether the sum is rounded to the dtype of ``residual``, and its norm to that of ``input``, as by
            an addition, ``rmsnorm`` and a quantisation: bit for bit on the CPU, on CUDA as ``fused_add_rmsnorm``.
        scale_ue8m0: whether each scale is rounded up to a power of two.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``rmsnorm_quant``.
    """
