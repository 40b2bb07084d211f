"""The functions users call. Their bodies are C++: csrc/quant.cpp checks, chooses kernels and launches them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from sgljit_core import CppType, cache_once, is_arch_support_pdl, make_cpp_args
from sgljit_core.model.row_kernels import RowReduction

from .plugin import FAMILY

if TYPE_CHECKING:
    from tvm_ffi import Module

_EXPORTS = ("per_tensor_quant_fp8", "per_token_quant_fp8")


@cache_once
def host_module() -> Module:
    """The host part: the checks, and the choice of kernels."""
    return FAMILY.load_host("quant", cpp_files=["quant.cpp"], cpp_wrappers=[(name, name) for name in _EXPORTS])


@FAMILY.op(exports=host_module, mutates=("output_q", "output_s"))
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
        is_static: whether the scale is given. It should be positive; this is not checked.

    Raises:
        sgljit_core.errors.TensorMatchError: a tensor's shape, strides, dtype or device is not as above.
        ValueError: an output shares memory with itself or another argument.
    """


@FAMILY.op(exports=host_module, mutates=("output_q", "output_s"))
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


PER_TOKEN = RowReduction("quant.h", "quant::PerToken", 1)
_HIDDEN_SIZES = (2048, 2880, 3072, 4096, 5120, 6144, 7168, 8192, 16384)


def variants() -> Iterator[Callable[[], Any]]:
    """The variants worth building ahead: the host part, the CPU's parts, and kernels for aligned half types."""
    yield host_module
    fp8 = torch.float8_e4m3fn
    yield functools.partial(FAMILY.build_deferred, "quant_cpu.cpp", "quant::scale_on_cpu")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield functools.partial(FAMILY.build_deferred, *PER_TOKEN.loop(dtype, fp8))
        of_map = make_cpp_args(CppType("quant::PerTensor"), 1, 1, dtype, fp8)
        yield functools.partial(FAMILY.build_deferred, "quant.h", f"host::cpu::row_map<{of_map}>")
    kernel = functools.partial(functools.partial, FAMILY.build_variant)
    yield kernel("quant.cuh", "quant::set_smallest_scale")
    for dtype in (torch.float16, torch.bfloat16):
        item = (16 // dtype.itemsize, False)
        yield kernel("quant.cuh", "quant::raise_scale", *item, dtype)
        for is_computed in (False, True):
            for units in (1, 4):
                yield kernel("quant.cuh", "quant::quantize", *item, units, is_computed, dtype)
        for in_cluster in (False, True) if is_arch_support_pdl() else (False,):
            yield kernel("quant.cuh", "quant::quantize_small", *item, in_cluster, dtype)
        yield kernel(*PER_TOKEN.generic(dtype, fp8))
        for size in _HIDDEN_SIZES:
            for arguments in PER_TOKEN.kernels(size, dtype, fp8):
                yield kernel(*arguments)
