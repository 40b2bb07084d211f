"""What users call. The body is C++: csrc/$op.cpp checks the arguments, chooses a kernel and launches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from sgljit_core import CppType, cache_once, make_cpp_args

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module


@cache_once
def host_module() -> Module:
    """The compiled host part. Each op has its line in ``cpp_wrappers``: the name in Python, and that in C++."""
    return FAMILY.load_host(
        "$family",
        cpp_files=["$op.cpp"],
        cpp_wrappers=[
            ("$op", "$namespace::$op"),
        ],
    )


# The C++ function of the same name gets these arguments, in this order. `mutates` names every tensor that it writes.
@FAMILY.op(exports=host_module, mutates=("out",), samples="$package.reference:samples")
def $op(x: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
    """``scale * x`` into ``out``, computed in float32 and rounded once.

    Args:
        x: [..., columns], float16, bfloat16 or float32, on a CUDA device or the CPU; rows at any one stride.
        out: the same shape and device, float16, bfloat16 or float32; rows at any one stride. It may be ``x``.
        scale: the factor.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor is not as above.
        ValueError: ``out`` shares memory with ``x``, other than row by row.
    """


def variants() -> Iterator[Callable[[], Any]]:
    """What `sgljit wheel` builds ahead: the host part; for each dtype the loop for the CPU and a kernel for CUDA."""
    yield host_module
    functor, inputs, outputs = CppType("$namespace::$functor"), 1, 1  # as in csrc/$op.cpp
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        on_cpu = make_cpp_args(functor, inputs, outputs, dtype, dtype)
        yield functools.partial(FAMILY.build_deferred, "$op.h", f"host::cpu::row_map<{on_cpu}>")
        elements = 16 // dtype.itemsize  # of a load, where rows are aligned to it
        on_cuda = (functor, inputs, outputs, elements, False, dtype, dtype)
        yield functools.partial(FAMILY.build_variant, "$op.h", "device::row_map", *on_cuda)
