"""The functions users call. Their body is C++: csrc/activation.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import torch

from .plugin import FAMILY


def _new_out(
    input: torch.Tensor,  # noqa: A002 - as the ops
    _out: torch.Tensor | None,
    up: torch.Tensor | None,
    **_others: object,
) -> torch.Tensor:
    """The tensor that is written where ``out`` is None."""
    if up is not None:
        return input.new_empty(input.shape)
    shape = list(input.shape)
    if shape:  # else the op refuses it
        shape[-1] //= 2
    return input.new_empty(shape)


@FAMILY.op(mutates=("out",), fake=_new_out)
def silu_and_mul(  # type: ignore[empty-body]  # it is C++
    input: torch.Tensor,  # noqa: A002 - as engines pass it
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    round_first: bool = False,
) -> torch.Tensor:
    """``silu(gate) * up``, with ``silu(x) = x / (1 + exp(-x))``: the activation of a SwiGLU layer.

    Equation 6 of https://arxiv.org/abs/2002.05202. Computed in float32 and rounded once, at the end; or twice, with
    ``round_first``. Without a row: a no-op.

    Args:
        input: [..., 2 * d], float16, bfloat16 or float32, on a CUDA device or the CPU: the gate, then ``up``. With
            ``up``: [..., d], the gate alone. Rows may be any one distance apart, their elements may not.
        out: [..., d], float16, bfloat16 or float32, with a row distance of its own; may be the gate or ``up``. A new
            tensor of the input's dtype if None.
        up: like the gate, with a row distance of its own; None if it is in ``input``.
        round_first: whether ``silu(gate)`` is rounded to the input's dtype before the product, as where PyTorch
            computes both one after the other. In float16 and bfloat16 the bits are PyTorch's then.

    Returns:
        ``out``, or the new tensor.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``out`` share memory with each other, or with other rows of another argument.
    """


@FAMILY.op(mutates=("out",), fake=_new_out)
def gelu_and_mul(  # type: ignore[empty-body]  # it is C++
    input: torch.Tensor,  # noqa: A002 - as engines pass it
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    round_first: bool = False,
) -> torch.Tensor:
    """``gelu(gate) * up``, with ``gelu(x) = x / 2 * (1 + erf(x / sqrt(2)))``: as ``torch.nn.functional.gelu``.

    The rest is as in ``silu_and_mul``.

    Args:
        input: [..., 2 * d], or [..., d] with ``up``, as in ``silu_and_mul``.
        out: [..., d]; a new tensor if None.
        up: like the gate; None if it is in ``input``.
        round_first: whether ``gelu(gate)`` is rounded to the input's dtype before the product, as where PyTorch
            computes both one after the other. The bits are PyTorch's for 98 % of the values of a gate. Most of the
            others are below -2, where PyTorch's own sum loses digits; the rest is subnormal or next to an overflow.

    Returns:
        ``out``, or the new tensor.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``silu_and_mul``.
    """


@FAMILY.op(mutates=("out",), fake=_new_out)
def gelu_tanh_and_mul(  # type: ignore[empty-body]  # it is C++
    input: torch.Tensor,  # noqa: A002 - as engines pass it
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    round_first: bool = False,
) -> torch.Tensor:
    """``gelu_and_mul`` in its approximation by tanh: as ``torch.nn.functional.gelu(..., approximate="tanh")``.

    ``gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``. The rest is as in ``silu_and_mul``.

    Args:
        input: [..., 2 * d], or [..., d] with ``up``, as in ``silu_and_mul``.
        out: [..., d]; a new tensor if None.
        up: like the gate; None if it is in ``input``.
        round_first: as in ``gelu_and_mul``; the bits are PyTorch's for 99 % of the values of a gate.

    Returns:
        ``out``, or the new tensor.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``silu_and_mul``.
    """


@FAMILY.op(mutates=("out",), fake=_new_out)
def clamped_swiglu(  # type: ignore[empty-body]  # it is C++
    input: torch.Tensor,  # noqa: A002 - as engines pass it
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    is_interleaved: bool = False,
    round_first: bool = False,
) -> torch.Tensor:
    """``(up + 1) * gate * sigmoid(alpha * gate)``, after a limit: the activation of gpt-oss's experts.

    A gate above ``limit`` counts as ``limit``, and ``up`` is limited on both sides, to ``-limit`` and ``limit``.
    Computed in float32 and rounded once, at the end; PyTorch, and so transformers, rounds after each operation, as
    ``round_first`` does. The rest is as in ``silu_and_mul``.

    Args:
        input: [..., 2 * d], or [..., d] with ``up``, as in ``silu_and_mul``.
        out: [..., d]; a new tensor if None.
        up: like the gate; None if it is in ``input``.
        alpha: what the gate is multiplied by in the sigmoid.
        limit: positive; infinity for none.
        is_interleaved: whether ``input`` has gates and values in turn, as gpt-oss's weights give them: gates at even
            places. Else the gate comes first. On the CPU these take many times as long.
        round_first: whether the result of each operation is rounded to the input's dtype: both limits, ``alpha *
            gate``, its sigmoid, that times the gate, and ``up + 1``. In float16 and bfloat16 the bits are PyTorch's
            then.

    Returns:
        ``out``, or the new tensor.

    Raises:
        sgljit_core.errors.TensorMatchError: as ``silu_and_mul``.
        ValueError: as ``silu_and_mul``; ``limit`` is not positive, or NaN; ``alpha`` is not finite; ``up`` is given
            with ``is_interleaved``.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def silu_and_mul_quant(
    input: torch.Tensor,  # noqa: A002 - as engines pass it
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    *,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
) -> None:
    """``output_q = silu(gate) * up / output_s`` in FP8 or int8, with the activation of ``silu_and_mul``.

    Computed in float32, as ``y * (1 / output_s)`` of ``y = silu(gate) * up``, rounded to the nearest value of
    ``output_q``, ties to even, and saturated: e4m3 at 448, int8 at -128 and 127. A computed scale is ``max(abs(y)) /
    448``, for int8 ``/ 127``, of a row or a group, but at least 2**-126, which is the scale of zeros, and at most
    float32's largest value, which is the scale where there is an infinity. NaN becomes NaN, in int8 0, and does not
    count towards the scale. One launch; no row, or no column: a no-op.

    Args:
        input: [..., 2 * d], float16, bfloat16 or float32, on a CUDA device or the CPU: the gate, then ``up``. Rows may
            be any one distance apart, their elements may not.
        output_q: [..., d], float8_e4m3fn or int8, with a row distance of its own.
        output_s: float32. [1] if ``is_static``: the scale, which is read. Else with any strides, and written: [rows, 1]
            for a scale of each row, or [rows, d / 128] for one of each 128 neighbours. For d = 128 these are the same.
            Or, with ``scale_ue8m0``, int32, [rows, ceil(d / 512)] with any strides: four exponents to a word, each plus
            127, the first in the lowest byte. Bytes beyond the groups are not written.
        is_static: whether the scale is given. It should be positive; this is not checked. By a scale of 0 what is not 0
            saturates, and 0 becomes NaN; by infinity finite values become zeros; by NaN all become NaN. NaN is 0 in
            int8.
        round_first: whether ``y`` is rounded to the input's dtype first, once: the bits of ``silu_and_mul``, without
            its own ``round_first``, and a quantisation after it.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.
        round_each: whether ``silu(gate)`` and ``y`` are both rounded to the input's dtype, as where PyTorch computes
            one after the other: the bits of ``silu_and_mul(..., round_first=True)`` and a quantisation after it. With
            ``round_first`` alone 2 to 3 % of the bytes are others.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with itself or another argument; ``output_s`` is int32 without
            ``scale_ue8m0``; that comes with ``is_static``.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def clamped_swiglu_quant(
    input: torch.Tensor,  # noqa: A002 - as the ops above
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    up: torch.Tensor | None = None,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    is_static: bool = False,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
    is_interleaved: bool = False,
) -> None:
    """``output_q = y / output_s`` in FP8 or int8, with ``y`` that of ``clamped_swiglu``.

    The rest is as in ``silu_and_mul_quant``.

    Args:
        input: [..., 2 * d], or [..., d] with ``up``, as in ``clamped_swiglu``.
        output_q: [..., d], float8_e4m3fn or int8, with a row distance of its own.
        output_s: float32: [1], which is read, if ``is_static``; else [rows, 1] or [rows, d / 128]; or int32.
        up: like the gate; None if it is in ``input``.
        alpha: what the gate is multiplied by in the sigmoid.
        limit: positive; infinity for none.
        is_static: whether the scale is given.
        round_first: whether ``y`` is rounded to the input's dtype first, once: the bits of ``clamped_swiglu``, without
            its own ``round_first``, and a quantisation after it.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.
        round_each: whether the result of each operation is rounded to the input's dtype: the bits of
            ``clamped_swiglu(..., round_first=True)`` and a quantisation after it.
        is_interleaved: whether ``input`` has gates and values in turn, gates at even places: float16 or bfloat16, with
            rows at multiples of four bytes.

    Raises:
        sgljit_core.errors.TensorMatchError: as ``silu_and_mul_quant``.
        ValueError: as ``silu_and_mul_quant``; ``limit`` is not positive, or NaN; ``alpha`` is not finite; ``up``
            is given with ``is_interleaved``.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def silu_and_mul_masked_quant(
    input: torch.Tensor,  # noqa: A002 - as engines pass it
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    counts: torch.Tensor,
    *,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
) -> None:
    """``silu_and_mul_quant`` with a scale for each 128 neighbours, of the first ``counts[e]`` tokens of each expert e.

    All other rows of ``output_q`` and ``output_s`` stay as they are, and those of ``input`` are not read. One launch.

    Args:
        input: [experts, tokens, 2 * d], float16, bfloat16 or float32, on a CUDA device or the CPU: the gate, then
            ``up``. Experts and tokens may be any distance apart, elements of a row may not. On CUDA addresses and
            distances are multiples of four elements, also of ``output_q``, and ``d`` is at most 4096 loads of 16 bytes
            or less.
        output_q: [experts, tokens, d], float8_e4m3fn, with distances of its own.
        output_s: [experts, tokens, d / 128], float32, or with ``scale_ue8m0`` also int32, [experts, tokens, ceil(d /
            512)], as in ``silu_and_mul_quant``. The last dimension is contiguous, or the tokens of an expert are side
            by side, as DeepGEMM takes them.
        counts: [experts], int32. On the CPU one below 0 or above the number of tokens is refused, unless
            ``SGLJIT_CHECK_INDICES=0``; on CUDA only with ``SGLJIT_CHECK_INDICES=1``, which makes the host wait. Without
            a check one below 0 counts as 0, and one above as all.
        round_first: as in ``silu_and_mul_quant``.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.
        round_each: as in ``silu_and_mul_quant``.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above; a count is
            refused.
        ValueError: an output shares memory with itself or another argument; ``output_s`` is int32 without
            ``scale_ue8m0``.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def clamped_swiglu_masked_quant(
    input: torch.Tensor,  # noqa: A002 - as the ops above
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    counts: torch.Tensor,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    round_first: bool = False,
    scale_ue8m0: bool = False,
    round_each: bool = False,
    is_interleaved: bool = False,
) -> None:
    """``clamped_swiglu_quant`` of the first ``counts[e]`` tokens of each expert e, a scale for each 128 neighbours.

    The rest is as in ``silu_and_mul_masked_quant``.

    Args:
        input: [experts, tokens, 2 * d], as in ``silu_and_mul_masked_quant``; or gates and values in turn.
        output_q: [experts, tokens, d], float8_e4m3fn, with distances of its own.
        output_s: [experts, tokens, d / 128], float32, or with ``scale_ue8m0`` also int32.
        counts: [experts], int32.
        alpha, limit, round_each, is_interleaved: as in ``clamped_swiglu_quant``.
        round_first: as in ``clamped_swiglu_quant``.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.

    Raises:
        sgljit_core.errors.TensorMatchError: as ``silu_and_mul_masked_quant``.
        ValueError: as ``silu_and_mul_masked_quant``; ``limit`` is not positive, or NaN; ``alpha`` is not finite.
    """
