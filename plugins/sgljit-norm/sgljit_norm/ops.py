"""The functions users call. Their bodies are C++: csrc/rmsnorm.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core import cache_once, exported, is_arch_support_pdl

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module


@cache_once
def host_module() -> Module:
    """The host part: the checks, and the choice of a kernel."""
    return FAMILY.load_host("norm", cpp_files=["rmsnorm.cpp"], cpp_wrappers=[("rmsnorm", "rmsnorm")])


@exported(host_module)
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


def variants() -> Iterator[Callable[[], Any]]:
    """What is worth building ahead: the host part, and on CUDA the usual hidden sizes and the kernel for any size."""
    yield host_module
    yield functools.partial(FAMILY.build_deferred, "rmsnorm_cpu.cpp", "rmsnorm_on_cpu")
    for dtype in (torch.float16, torch.bfloat16):
        pdl = is_arch_support_pdl()
        kernel = functools.partial(FAMILY.build_variant, "rmsnorm.cuh")
        yield functools.partial(kernel, "norm_kernels::rmsnorm_any_size", 16 // dtype.itemsize, pdl, dtype)
        for hidden_size in (64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 16384):
            yield functools.partial(kernel, "norm_kernels::rmsnorm", hidden_size, pdl, dtype)
