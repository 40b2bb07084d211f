"""The function users call. It checks what the kernel cannot, picks the variant and calls it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from sgljit_core import cache_once, make_cpp_args

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module

_INT32 = torch.iinfo(torch.int32)


def _fake(src: torch.Tensor, constant: int) -> torch.Tensor:
    """The output's shape, dtype and device, for graphs."""
    return torch.empty_like(src)


@FAMILY.op(fake=_fake, samples="sgljit_add_constant.reference:samples_of_add_constant")
def add_constant(src: torch.Tensor, constant: int) -> torch.Tensor:
    """``src + constant`` for a contiguous one-dimensional int32 tensor; sums wrap around, as torch's do.

    Each constant is a variant of its own: it is compiled into the kernel, on its first use.

    Raises:
        TypeError: ``constant`` is not an integer.
        ValueError: it does not fit into an int32, or ``src`` is on a device other than CUDA and CPU.
        sgljit_core.errors.TensorMatchError: ``src`` is not int32, not one-dimensional or not contiguous.
    """
    number = int(operator.index(constant))
    if not _INT32.min <= number <= _INT32.max:
        raise ValueError(f"constant must fit into an int32, {_INT32.min} to {_INT32.max}, got {number}")
    if src.device.type not in ("cuda", "cpu"):
        raise ValueError(f"src must be on a CUDA device or the CPU, got {src.device}")
    dst = torch.empty_like(src)
    load_module(number, src.device.type).add_constant(dst, src)
    return dst


@cache_once
def load_module(constant: int, device_type: str) -> Module:
    """The module of one constant, for "cuda" or "cpu"; compiled if it is in no cache yet."""
    args = make_cpp_args(constant)
    wrappers = [("add_constant", f"add_constant<{args}>")]
    if device_type == "cuda":
        return FAMILY.load_jit("add_constant", *args, cuda_files=["add_constant.cu"], cuda_wrappers=wrappers)
    return FAMILY.load_jit("add_constant", *args, cpp_files=["add_constant.cpp"], cpp_wrappers=wrappers)
