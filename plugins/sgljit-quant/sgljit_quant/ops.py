"""The functions users call. Their bodies are C++: csrc/quant.cpp checks, chooses kernels and launches them."""

from __future__ import annotations

import torch

from .plugin import FAMILY


@FAMILY.op(mutates=("output_q", "output_s"))
def per_tensor_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    is_static: bool = False,
) -> None:
    """``output_q = input / output_s`` in FP8 (e4m3), with one scale for the whole tensor.

    Computed as ``input * (1 / output_s)`` in float32, rounded to the nearest e4m3, ties to even; beyond 448, its
    largest value, saturated. Dynamic: the scale is first set so that the largest magnitude becomes 448,
    ``max(abs(input)) / 448``, but to no less than 2**-126, which is the scale of zeros, and to no more than float32's
    largest value, which is the scale where there is an infinity. NaN becomes NaN and does not count towards the scale.

    On CUDA it runs on the current stream of the device, in a single launch where the scale is given or the input is
    small (512 KiB on sm_90 and later), else in three: one thread sets the scale to 2**-126, then the maximum, then the
    values. Nothing is kept from call to call, so it may be captured in a graph and replayed.

    Args:
        input: float16, bfloat16 or float32, of any shape, on a CUDA device or the CPU. The last dimensions that are
            contiguous in ``input`` and in ``output_q``, at least one, are a row; in each, those before them must be at
            one stride.
        output_q: float8_e4m3fn, of the input's shape, with a row stride of its own.
        output_s: float32, one element: read if ``is_static``, else written.
        is_static: whether the scale is given. It should be positive; this is not checked. By a scale of 0 what is not 0
            becomes 448 or -448, and 0 becomes NaN; by infinity finite elements become zeros, and infinities NaN; by NaN
            all become NaN.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with itself or another argument.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def per_token_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
) -> None:
    """``output_q = input / output_s`` in FP8 (e4m3), with one scale for each row.

    Rows are along the last dimension. Each is computed as a tensor is by ``per_tensor_quant_fp8`` with a dynamic scale,
    in one launch for all.

    Args:
        input: [..., hidden], float16, bfloat16 or float32, on a CUDA device or the CPU. Elements of a row have no gaps;
            the dimensions before the last must be at one stride.
        output_q: float8_e4m3fn, of the input's shape, with a row stride of its own.
        output_s: [...] or [..., 1], float32, contiguous: where the scales are written.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with itself or another argument.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def per_token_group_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    group_size: int = 128,
    *,
    eps: float = 1e-10,
    scale_ue8m0: bool = False,
) -> None:
    """``output_q = input / output_s`` in FP8 (e4m3), with one scale for each group of neighbours in a row.

    ``output_s = max(max(abs(group)), eps) / 448``, computed in float32, but at least 2**-126 and at most float32's
    largest value. ``output_q = group * (1 / output_s)``, rounded and saturated as in ``per_tensor_quant_fp8``. NaN
    becomes NaN and does not count towards the scale; an infinity becomes 448 or -448, and the finite elements of its
    group become 0. One launch; no row: a no-op.

    Args:
        input: [tokens, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU. Rows may be apart, at any
            one stride; elements of a row may not.
        output_q: float8_e4m3fn, of the input's shape, with a row stride of its own.
        output_s: [tokens, hidden / group_size], float32, with any strides: row-major, column-major, or with padding as
            ``column_major_scales`` makes it. Padding is not written. Or, with ``scale_ue8m0`` and groups of 128,
            [tokens, ceil(hidden / 512)], int32, with any strides: four exponents to a word, each plus 127, the first in
            the lowest byte, as ``packed_scales`` makes it. Bytes beyond the groups are not written.
        group_size: elements of a group, which divide the hidden size.
        eps: at least 0; the magnitude of a group counts as no less.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above, or
            ``group_size`` does not divide the hidden size.
        ValueError: an output shares memory with itself or another argument; ``group_size`` is not positive; ``eps`` is
            negative or NaN; ``output_s`` is int32 without ``scale_ue8m0`` or for groups of another size.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def masked_group_quant_fp8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    counts: torch.Tensor,
    *,
    eps: float = 1e-10,
    scale_ue8m0: bool = False,
) -> None:
    """``per_token_group_quant_fp8`` in groups of 128, of the first ``counts[e]`` tokens of each expert e.

    All other rows of ``output_q`` and ``output_s`` stay as they are, and those of ``input`` are not read. One launch.

    Args:
        input: [experts, tokens, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU. Experts and tokens
            may be any distance apart, elements of a row may not. On CUDA addresses and distances are multiples of four
            elements, also of ``output_q``, and a row is at most 4096 loads of 16 bytes or less.
        output_q: float8_e4m3fn, of the input's shape, with distances of its own.
        output_s: [experts, tokens, hidden / 128], float32, or with ``scale_ue8m0`` also int32, [experts, tokens,
            ceil(hidden / 512)], as in ``per_token_group_quant_fp8``. The last dimension is contiguous, or the tokens of
            an expert are side by side, as ``column_major_scales`` and ``packed_scales`` make them.
        counts: [experts], int32. On the CPU one below 0 or above the number of tokens is refused, unless
            ``SGLJIT_CHECK_INDICES=0``; on CUDA only with ``SGLJIT_CHECK_INDICES=1``, which makes the host wait. Without
            a check one below 0 counts as 0, and one above as all.
        eps: at least 0; the magnitude of a group counts as no less.
        scale_ue8m0: whether each scale is rounded up to a power of two, 2**127 at most.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above; a count is
            refused.
        ValueError: an output shares memory with itself or another argument; ``eps`` is negative or NaN; ``output_s`` is
            int32 without ``scale_ue8m0``.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def per_token_quant_int8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
) -> None:
    """``output_q = input / output_s`` in int8, with one scale for each row.

    ``output_s = max(abs(row)) / 127``, with the limits of ``per_tensor_quant_fp8``. ``output_q = row * (1 / output_s)``
    in float32, rounded to the nearest integer, ties to even, and saturated at -128 and 127. NaN becomes 0 and does not
    count towards the scale; an infinity becomes 127 or -128, and the finite elements of its row become 0. One launch.

    Args:
        input: [..., hidden], as in ``per_token_quant_fp8``.
        output_q: int8, of the input's shape, with a row stride of its own.
        output_s: [...] or [..., 1], float32, contiguous: where the scales are written.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``per_token_quant_fp8``.
    """


@FAMILY.op(mutates=("output_q", "output_s"))
def per_token_group_quant_int8(
    input: torch.Tensor,  # noqa: A002 - the name that engines pass it by
    output_q: torch.Tensor,
    output_s: torch.Tensor,
    group_size: int = 128,
    *,
    eps: float = 1e-10,
) -> None:
    """``output_q = input / output_s`` in int8, with one scale for each group of neighbours in a row.

    ``output_s = max(max(abs(group)), eps) / 127``; the rest is as in ``per_token_quant_int8``.

    Args:
        input: [tokens, hidden], as in ``per_token_group_quant_fp8``.
        output_q: int8, of the input's shape, with a row stride of its own.
        output_s: [tokens, hidden / group_size], float32, with any strides.
        group_size: elements of a group, which divide the hidden size.
        eps: at least 0; the magnitude of a group counts as no less.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``per_token_group_quant_fp8``.
    """
