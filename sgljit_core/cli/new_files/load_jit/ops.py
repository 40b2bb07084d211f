"""What users call. It checks what the kernel cannot, picks the module for the dtype and the device, and calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from sgljit_core import cache_once, make_cpp_args

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@cache_once
def load_module(dtype: torch.dtype, device_type: str) -> Module:
    """The module for one dtype, on "cuda" or "cpu". Compiled if it is in no cache yet."""
    args = make_cpp_args(dtype)  # the template arguments; a number becomes one as well, and so is a variant
    wrappers = [("$op", f"$namespace::$op<{args}>")]  # the name in Python, and the function in C++
    if device_type == "cuda":
        return FAMILY.load_jit("$op", *args, cuda_files=["$op.cu"], cuda_wrappers=wrappers)
    return FAMILY.load_jit("$op", *args, cpp_files=["$op.cpp"], cpp_wrappers=wrappers)


def _fake(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """What the op returns, without the values: torch.compile asks."""
    return torch.empty_like(x)


@FAMILY.op(fake=_fake, samples="$package.reference:samples")
def $op(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """``scale * x``, computed in float32 and rounded once.

    Args:
        x: [rows, columns], contiguous, float16, bfloat16 or float32, on a CUDA device or the CPU.
        scale: the factor.

    Raises:
        ValueError: ``x`` has another dtype, or is on another device.
        sgljit_core.errors.TensorMatchError: it has another number of dimensions, or is not contiguous.
    """
    if x.dtype not in DTYPES or x.device.type not in ("cuda", "cpu"):
        raise ValueError(f"x must be one of {DTYPES} on a CUDA device or the CPU, got {x.dtype} on {x.device}")
    out = torch.empty_like(x)
    load_module(x.dtype, x.device.type).$op(x, out, scale)
    return out


def variants() -> Iterator[Callable[[], Any]]:
    """What `sgljit wheel` builds ahead: a module for each dtype and kind of device."""
    for dtype in DTYPES:
        for device_type in ("cpu", "cuda"):
            yield functools.partial(load_module, dtype, device_type)
