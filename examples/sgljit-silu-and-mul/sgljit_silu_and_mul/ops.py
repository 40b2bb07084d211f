"""The function users call. Its body is C++: csrc/silu_and_mul.cpp checks, chooses a kernel and launches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core import cache_once

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module


@cache_once
def host_module() -> Module:
    """The host part: the checks, and the choice of a kernel."""
    return FAMILY.load_host(
        "silu_and_mul", cpp_files=["silu_and_mul.cpp"], cpp_wrappers=[("silu_and_mul", "silu_and_mul")]
    )


@FAMILY.op(exports=host_module, mutates=("out",), samples="sgljit_silu_and_mul.reference:samples")
def silu_and_mul(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional calls it
    out: torch.Tensor,
) -> None:
    """``silu(input[:, :hidden]) * input[:, hidden:]`` into ``out``.

    The activation of a SwiGLU layer, equation 6 of https://arxiv.org/abs/2002.05202, with ``silu(x) = x / (1 +
    exp(-x))``. Computed in float32 and rounded once, at the end.

    Args:
        input: [tokens, 2 * hidden], contiguous; float16, bfloat16 or float32, on a CUDA device or the CPU.
        out: [tokens, hidden], contiguous, of the input's dtype and device.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor is not as above.
    """


def variants() -> Iterator[Callable[[], Any]]:
    """The variants worth building ahead: the host part, the CPU's kernel, and one CUDA kernel for each dtype."""
    yield host_module
    yield functools.partial(FAMILY.build_deferred, "silu_and_mul_cpu.cpp", "silu_and_mul_on_cpu")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        yield functools.partial(FAMILY.build_variant, "silu_and_mul.cuh", "swiglu::silu_and_mul", dtype)
