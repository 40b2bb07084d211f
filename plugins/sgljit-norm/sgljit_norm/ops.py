"""The functions users call. Their bodies are C++: csrc/*.cpp check, choose a kernel and launch it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core import cache_once
from sgljit_core.compilers.arch import cuda_target

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module

# Compiled side by side: where there are cores for it, the first call of any op waits for the slowest alone.
_HOST_FILES = ["rmsnorm.cpp", "fused_add_rmsnorm.cpp", "qknorm.cpp", "qknorm_across_heads.cpp", "layernorm.cpp"]


@cache_once
def host_module() -> Module:
    """The host part: the checks, and the choice of a kernel."""
    return FAMILY.load_host("norm", cpp_files=_HOST_FILES, header_only=False)


@FAMILY.op(exports=host_module, mutates=("out",), inplace="input")
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
        eps: at least 0; added to the mean of squares, so that a row of zeros stays zero.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``out`` share memory with each other, with other rows of ``input`` or with ``weight``;
            ``eps`` is negative.
    """


@FAMILY.op(exports=host_module, mutates=("out",), inplace="input")
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


@FAMILY.op(exports=host_module, mutates=("input", "residual"))
def fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
) -> None:
    """``residual = input + residual``, then ``input = rmsnorm(residual)``, row by row, both in place.

    The sum is normalised in float32, before it is rounded to the dtype of ``residual``. No row: a no-op.

    Args:
        input: [tokens, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU; rows may be apart.
        residual: like ``input``, with a row stride of its own, and in memory of its own.
        weight: [hidden], contiguous, of the input's dtype and device.
        eps: at least 0; added to the mean of squares.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``input`` and of ``residual`` share memory, or with ``weight``; ``eps`` is negative.
    """


@FAMILY.op(exports=host_module, mutates=("input", "residual"))
def gemma_fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002 - as rmsnorm
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
) -> None:
    """``residual = input + residual``, then ``input = gemma_rmsnorm(residual)``, row by row, both in place.

    ``fused_add_rmsnorm`` with ``1 + weight``.

    Args:
        input: [tokens, hidden], as in ``fused_add_rmsnorm``.
        residual: like ``input``.
        weight: [hidden], contiguous, of the input's dtype and device.
        eps: at least 0; added to the mean of squares.

    Raises:
        sgljit_core.errors.TensorMatchError, ValueError: as ``fused_add_rmsnorm``.
    """


@FAMILY.op(exports=host_module, mutates=("q", "k"))
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


@FAMILY.op(exports=host_module, mutates=("q", "k"))
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


@FAMILY.op(exports=host_module, mutates=("q", "k"))
def fused_inplace_qknorm_across_heads(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float = 1e-6
) -> None:
    """``rmsnorm`` over all heads of a token together, of ``q`` and of ``k``, in place, in one launch.

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


@FAMILY.op(exports=host_module, mutates=("out",), inplace="input")
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
        eps: at least 0; added to the variance, so that a constant row becomes ``bias``.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``out`` share memory with each other, with other rows of ``input``, or with ``weight`` or
            ``bias``; ``eps`` is negative.
    """


# The sizes that models have: hidden sizes, those of Gemma's, those of models with layer normalisation; heads.
_HIDDEN_SIZES = (2048, 2880, 3072, 4096, 5120, 6144, 7168, 8192, 16384)
_GEMMA_SIZES = (2304, 2560, 3584, 3840, 5376)
_LAYERNORM_SIZES = (768, 1024, 4096, 8192)
_HEAD_DIMS = (64, 128, 256)
_GEMMA_HEAD_DIMS = (256,)


def variants() -> Iterator[Callable[[], Any]]:
    """The variants worth building ahead: the host part, and on CUDA the usual sizes and the kernels for any size."""
    yield host_module
    for op in ("rmsnorm", "fused_add_rmsnorm", "qknorm", "layernorm"):
        yield functools.partial(FAMILY.build_deferred, f"{op}_cpu.cpp", f"{op}_on_cpu")
    load_bytes = 32 if (cuda_target().cuda_arch or (0, 0)) >= (10, 0) else 16
    for dtype, (op, sizes, flag) in itertools.product(
        (torch.float16, torch.bfloat16),
        (
            ("rmsnorm", _HIDDEN_SIZES, False),
            ("rmsnorm", _GEMMA_SIZES, True),
            ("fused_add_rmsnorm", _HIDDEN_SIZES, False),
            ("fused_add_rmsnorm", _GEMMA_SIZES, True),
            ("qknorm", _HEAD_DIMS, False),
            ("qknorm", _GEMMA_HEAD_DIMS, True),
            ("layernorm", _LAYERNORM_SIZES, True),
        ),
    ):
        kernel = functools.partial(FAMILY.build_variant, f"{op}.cuh")
        yield functools.partial(kernel, f"norm_kernels::{op}_any_size", 16 // dtype.itemsize, flag, dtype)
        for size in sizes:
            yield functools.partial(kernel, f"norm_kernels::{op}", size, load_bytes, flag, dtype)
