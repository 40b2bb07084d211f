"""The functions users call: choose the module, call what it exports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from sgljit_core import cache_once, is_arch_support_pdl, make_cpp_args

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# The longest row that a CUDA kernel keeps in registers, and the bytes of one load.
_MAX_ROW_BYTES = 64 * 1024
_LOAD_BYTES = 16


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
        input: [tokens, hidden], float16, bfloat16 or float32, on a CUDA device or the CPU. Rows may be apart (any row
            stride), elements of a row may not.
        weight: [hidden], contiguous, of the input's dtype and device.
        out: like ``input``, with a row stride of its own; ``input`` itself is overwritten when None.
        eps: added to the mean of squares, so that a row of zeros stays zero.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: rows of ``out`` share memory with each other or with other rows of ``input``.
    """
    if out is None:
        out = input
    if getattr(input, "is_cuda", False) and input.dtype in _DTYPES and input.dim() == 2:
        module = _cuda_module(_specialised_size(input.size(1), input.dtype), input.dtype)
    else:
        module = _host_module()  # the CPU's kernel; of anything that no kernel takes, it says why
    module.rmsnorm(input, weight, out, eps)


def variants() -> Iterator[Callable[[], Module]]:
    """The modules worth building ahead: the CPU's, and on CUDA the usual hidden sizes and the kernel for any size."""
    yield _host_module
    for dtype in (torch.float16, torch.bfloat16):
        for hidden_size in (0, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 16384):
            yield functools.partial(_cuda_module, hidden_size, dtype)


def _specialised_size(hidden_size: int, dtype: torch.dtype) -> int:
    """The hidden size to compile for: 0, for any, where a row is no whole number of loads or too long for registers."""
    row_bytes = hidden_size * dtype.itemsize
    return hidden_size if row_bytes % _LOAD_BYTES == 0 and row_bytes <= _MAX_ROW_BYTES else 0


@cache_once
def _host_module() -> Module:
    return FAMILY.load_jit(
        "rmsnorm_cpu", cpp_files=["rmsnorm.cpp"], cpp_wrappers=[("rmsnorm", "rmsnorm")], extra_ldflags=["-pthread"]
    )


@cache_once
def _cuda_module(hidden_size: int, dtype: torch.dtype) -> Module:
    args = make_cpp_args(hidden_size, is_arch_support_pdl(), dtype)
    return FAMILY.load_jit(
        "rmsnorm", *args, cuda_files=["rmsnorm.cu"], cuda_wrappers=[("rmsnorm", f"RMSNormKernel<{args}>::run")]
    )
