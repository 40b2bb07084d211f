"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .layouts import column_major_scales, packed_scales

Sample = dict[str, Any]


def per_tensor_quant_fp8(device: torch.device) -> Iterator[Sample]:
    """Every dtype, from no element to several clusters of blocks, whole loads and not, strided rows, both scales."""
    for x in _inputs(device):
        for is_static in (False, True):
            scale = torch.full((1,), 0.01, device=device) if is_static else torch.empty(1, device=device)
            yield {"input": x, "output_q": _quantized(x), "output_s": scale, "is_static": is_static}


def per_token_quant_fp8(device: torch.device) -> Iterator[Sample]:
    """Every dtype, rows of every kernel, dense and strided."""
    for x in _inputs(device):
        yield {"input": x, "output_q": _quantized(x), "output_s": torch.empty(*x.shape[:-1], 1, device=device)}


def per_token_group_quant_fp8(device: torch.device) -> Iterator[Sample]:
    """Every dtype and size of a group, scales in rows, in columns and with padding, dense and strided."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for group_size, groups in ((16, 9), (32, 1), (64, 6), (128, 1), (128, 56), (256, 3)):
            for tokens in (0, 1, 3, 129):
                x = torch.randn(tokens, 2 * groups * group_size, device=device).to(dtype)
                dense, strided = x.chunk(2, dim=1)
                in_rows = torch.empty(tokens, groups, device=device)
                in_columns = torch.empty(groups, tokens + 3, device=device).t()[:tokens]
                for one, scales in ((dense.contiguous(), in_rows), (strided, in_columns)):
                    sample = {"input": one, "output_q": _quantized(one), "output_s": scales, "group_size": group_size}
                    yield sample
                    yield {**sample, "eps": 0.5, "scale_ue8m0": True}
                    if group_size == 128:
                        packed = torch.zeros(tokens, -(-groups // 4), dtype=torch.int32, device=device)
                        yield {**sample, "output_s": packed, "scale_ue8m0": True}


def masked_group_quant_fp8(device: torch.device) -> Iterator[Sample]:
    """Every dtype, experts without a token, with some and with all, scales in rows, in columns and in words."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for experts, tokens, groups in ((0, 3, 1), (3, 0, 2), (1, 1, 1), (4, 5, 6), (3, 130, 56)):
            x = torch.randn(experts, tokens, 2, groups * 128, device=device).to(dtype)[:, :, 1]
            counts = torch.arange(experts, dtype=torch.int32, device=device) * tokens // max(experts - 1, 1)
            sample = {"input": x, "output_q": _quantized(x), "counts": counts}
            yield {**sample, "output_s": torch.zeros(experts, tokens, groups, device=device)}
            in_columns = column_major_scales(tokens, groups, device, experts=experts).zero_()
            yield {**sample, "output_s": in_columns, "eps": 0.5, "scale_ue8m0": True}
            packed = packed_scales(tokens, groups * 128, device, experts=experts).zero_()
            yield {**sample, "output_s": packed, "scale_ue8m0": True}


def per_token_quant_int8(device: torch.device) -> Iterator[Sample]:
    """As ``per_token_quant_fp8``."""
    for sample in per_token_quant_fp8(device):
        yield {**sample, "output_q": torch.empty_like(sample["output_q"], dtype=torch.int8)}


def per_token_group_quant_int8(device: torch.device) -> Iterator[Sample]:
    """As ``per_token_group_quant_fp8``."""
    for sample in per_token_group_quant_fp8(device):
        if sample["output_s"].dtype is torch.float32:
            kept = {name: value for name, value in sample.items() if name != "scale_ue8m0"}
            yield {**kept, "output_q": torch.empty_like(sample["output_q"], dtype=torch.int8)}


def _quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)


def _inputs(device: torch.device) -> Iterator[torch.Tensor]:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for hidden in (1, 65, 64, 128, 1024, 4096):
            for tokens in (0, 1, 3, 129):
                x = torch.randn(tokens, 2 * hidden, device=device).to(dtype)
                yield x[:, :hidden].contiguous()
                yield x[:, hidden:]
