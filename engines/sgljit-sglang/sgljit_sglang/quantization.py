"""SGLang's quantisation of groups to FP8 by a hook, or SGLang's own code for what sgljit does not support.

One function of SGLang has all forms, and each is an op of ours: with SiLU before, for the counted rows of each expert,
with scales that are powers of two. SGLang's "dense" SiLU is rounded once, after the product, as ``round_first`` is. Its
other one, which experts have, is rounded before the product, too, as ``round_each`` is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sgljit_engines.kernels import Op, try_rows

from .backend import around
from .kernels import left, ran, works

_QUANTIZE = "sglang.kernels.ops.quantization.per_token_group_quant.per_token_group_quant"
_PLAIN = "per_token_group_quant_fp8"
_OPS = {  # by whether SiLU is before it, and whether rows are counted
    (False, False): _PLAIN,
    (False, True): "masked_group_quant_fp8",
    (True, False): "silu_and_mul_quant",
    (True, True): "silu_and_mul_masked_quant",
}
_GROUP_SIZES = (16, 32, 64, 128, 256)  # those that SGLang's own kernel takes
_GROUP = 128  # the one of all forms but the plain one with scales in float32
_LONGEST = 1 << 15  # elements of a counted row
_COLUMNS = "column_major_scales"
_MODE = "silu_and_mul_mode"
_FREE = {"expected_m", _COLUMNS, _MODE}  # options of any value

Result = tuple[torch.Tensor, torch.Tensor]

_used: frozenset[str] = frozenset()


def replace(used: frozenset[str]) -> None:
    """Register the hook.

    Args:
        used: the ops that may be called.
    """
    global _used  # noqa: PLW0603 - one SGLang in a process
    _used = used
    if used.intersection(_OPS.values()):
        around(_QUANTIZE, _quantize, _op, _values)


def _quantize(
    theirs: Callable[..., Result],
    input: torch.Tensor,  # noqa: A002 - as SGLang calls it
    output_q: torch.Tensor | None = None,
    output_s: torch.Tensor | None = None,
    group_size: int = 128,
    scale_ue8m0: bool = False,
    fuse_silu_and_mul: bool = False,
    masked_m: torch.Tensor | None = None,
    *args: Any,
    **options: Any,
) -> Result:
    name = _OPS[bool(fuse_silu_and_mul), masked_m is not None]
    outputs = None if output_q is None or output_s is None else (output_q, output_s)
    if name in _used and not (
        _is_plain(args, options)
        and (output_q is None) == (output_s is None)
        and _fits(name, input, group_size, scale_ue8m0, masked_m)
        and (outputs is None or _takes(outputs, _shape(name, input), group_size, scale_ue8m0, input.device))
    ):
        left(name)
    elif name in _used and _works(name, input, asked := _asked(name, group_size, scale_ue8m0, options.get(_MODE))):
        outputs = outputs or _outputs(_shape(name, input), input, group_size, scale_ue8m0, bool(options.get(_COLUMNS)))
        counts = () if masked_m is None else (masked_m,)
        if ran(name, input, *outputs, *counts, **asked):
            return outputs
    others = (group_size, scale_ue8m0, fuse_silu_and_mul, masked_m, *args)
    return theirs(input, output_q, output_s, *others, **options)


def _op(*args: Any, **options: Any) -> str:
    """The op of a call."""
    call = inspect.signature(_quantize).bind(None, *args, **options).arguments
    return _OPS[bool(call.get("fuse_silu_and_mul")), call.get("masked_m") is not None]


def _values(run: Callable[..., Result], *args: Any, **options: Any) -> Any:
    """The tensors that ``SGLJIT_SHADOW`` compares: a plain call's result, or else values in units of a group's scale.

    The scale of a group of zeros is another than SGLang's after SiLU, and rows that are not counted have any content.
    """
    q, scales = run(*args, **options)
    if (name := _op(*args, **options)) == _PLAIN:
        return q, scales
    call = inspect.signature(_quantize).bind(None, *args, **options).arguments
    x, counts = call["input"], call.get("masked_m")
    if counts is not None:
        is_counted = torch.arange(x.shape[1], device=x.device) < counts[:, None]
        x, q, scales = x[is_counted], q[is_counted], scales[is_counted]
    if _has_silu(name):
        gate, up = x.float().chunk(2, dim=-1)
        x = torch.nn.functional.silu(gate) * up
    groups, values = (one.float().unflatten(-1, (-1, _GROUP)) for one in (x, q))
    unit = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    if scales.dtype == torch.int32:
        exponents = scales.clone(memory_format=torch.contiguous_format).view(torch.uint8)[..., : values.shape[-2]]
        scales, unit = torch.exp2(exponents.float() - 127), torch.exp2(unit.log2().ceil())
    return (values * (scales[..., None] / unit)).clamp(-448, 448).to(torch.float8_e4m3fn)


def _has_silu(name: str) -> bool:
    return name.startswith("silu_and_mul")


def _asked(name: str, group_size: int, scale_ue8m0: bool, mode: str | None) -> Mapping[str, Any]:
    """The options of an op."""
    size = {"group_size": group_size} if name == _PLAIN else {}
    rounding = {"round_first" if mode == "dense" else "round_each": True} if _has_silu(name) else {}
    return {"scale_ue8m0": bool(scale_ue8m0), **size, **rounding}


def _shape(name: str, x: torch.Tensor) -> tuple[int, ...]:
    """The shape of the result."""
    return (*x.shape[:-1], x.shape[-1] // 2 if _has_silu(name) else x.shape[-1])


def _outputs(
    shape: tuple[int, ...], x: torch.Tensor, group_size: int, scale_ue8m0: bool, by_columns: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """New outputs as SGLang makes them: columns of scales begin at 16 bytes, and bytes behind exponents are zeros."""
    *experts, tokens, hidden = shape
    groups = hidden // group_size
    width, dtype = (-(-groups // 4), torch.int32) if scale_ue8m0 else (groups, torch.float32)
    make = x.new_zeros if scale_ue8m0 and groups % 4 else x.new_empty
    if by_columns:
        scales = make((*experts, width, (tokens + 3) // 4 * 4), dtype=dtype).mT[..., :tokens, :]
    else:
        scales = make((*experts, tokens, width), dtype=dtype)
    return x.new_empty(shape, dtype=torch.float8_e4m3fn), scales


def _is_plain(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether no option asks for another dtype, or for rows by the blocks of a product of experts."""
    dtype = options.get("out_dtype") or torch.float8_e4m3fn
    others = (options[name] for name in options.keys() - _FREE - {"out_dtype"})
    asks = any(isinstance(one, torch.Tensor) or one for one in others)  # a tensor is not asked: the host would wait
    return len(args) <= 1 and dtype == torch.float8_e4m3fn and not asks


def _fits(name: str, x: torch.Tensor, group_size: int, scale_ue8m0: bool, masked_m: torch.Tensor | None) -> bool:
    """Whether rows of bfloat16 become e4m3. SGLang makes a number of a NaN of another dtype."""
    is_alone = name == _PLAIN and not scale_ue8m0
    parts = 2 if _has_silu(name) else 1
    return (
        x.ndim == (2 if masked_m is None else 3)
        and x.numel() > 0
        and group_size in (_GROUP_SIZES if is_alone else (_GROUP,))
        and x.shape[-1] % (parts * group_size) == 0
        and x.dtype == torch.bfloat16
        and x.stride(-1) == 1
        and (masked_m is None or _is_counted(x, masked_m, parts))
    )


def _is_counted(x: torch.Tensor, counts: torch.Tensor, parts: int) -> bool:
    return (
        counts.dtype == torch.int32
        and counts.shape == x.shape[:1]
        and counts.is_contiguous()
        and counts.device == x.device
        and x.shape[-1] <= parts * _LONGEST
        and (torch.compiler.is_compiling() or x.data_ptr() % 16 == 0)  # a graph has no addresses yet
        and all(stride % 8 == 0 for stride in x.stride()[:-1])
    )


def _takes(outputs: Result, shape: tuple[int, ...], group_size: int, scale_ue8m0: bool, device: torch.device) -> bool:
    """Whether an op writes outputs as SGLang does, which also sets the bytes behind the last exponent to zero."""
    q, scales = outputs
    groups = shape[-1] // group_size
    width, dtype = (groups // 4, torch.int32) if scale_ue8m0 else (groups, torch.float32)
    return (
        q.dtype == torch.float8_e4m3fn
        and q.shape == shape
        and q.stride(-1) == 1
        and (len(shape) == 2 or (q.is_contiguous() and 1 in scales.stride()[1:]))
        and scales.dtype == dtype
        and scales.shape == (*shape[:-1], width)
        and not (scale_ue8m0 and groups % 4)
        and q.device == scales.device == device
    )


def _works(name: str, x: torch.Tensor, asked: Mapping[str, Any]) -> bool:
    size, device = x.shape[-1], x.device.type
    group_size, scale_ue8m0 = asked.get("group_size", _GROUP), asked["scale_ue8m0"]

    def quantize(kernel: Op, tokens: int) -> None:
        rows = x.new_zeros(*(1 for _ in x.shape[2:]), tokens, size)
        counts = [] if x.ndim == 2 else [torch.full((1,), tokens, dtype=torch.int32, device=x.device)]
        kernel(rows, *_outputs(_shape(name, rows), rows, group_size, scale_ue8m0, True), *counts, **asked)

    def trial(kernel: Op) -> None:
        try_rows(functools.partial(quantize, kernel), size, device)

    return works(name, (size, *asked.items(), x.dtype, device), trial)
