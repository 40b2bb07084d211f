"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def gelu_and_mul(device: torch.device) -> Iterator[dict[str, Any]]:
    """Every dtype, sizes of every kernel, no row to several blocks; gates beside values and apart; rounded first."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for size in (1, 65, 64, 1000, 1024):
            for rows in (0, 1, 3, 129):
                both = (torch.randn(rows, 2 * size, device=device) * 4).to(dtype)
                gate, up = both.chunk(2, dim=1)
                yield {"input": both, "out": torch.empty_like(gate)}
                yield {"input": both, "out": None}
                yield {"input": both, "out": None, "round_first": True}
                yield {"input": gate, "out": torch.empty(rows, size, device=device), "up": up}
                three = (one.unflatten(0, (1, -1)).contiguous() for one in (gate, up))
                yield {"input": next(three), "up": next(three), "out": None}


gelu_tanh_and_mul = silu_and_mul = gelu_and_mul


def clamped_swiglu(device: torch.device) -> Iterator[dict[str, Any]]:
    """The same, with gates and values also in turn, and other numbers than gpt-oss's."""
    for number, sample in enumerate(gelu_and_mul(device)):
        yield sample
        if sample.get("up") is None:
            yield {**sample, "is_interleaved": True}
        if number % 5 == 1:
            yield {**sample, "alpha": 1.0, "limit": 2.5}


def silu_and_mul_quant(device: torch.device) -> Iterator[dict[str, Any]]:
    """Every dtype and kind of scale, with the activation rounded first and not; dense and strided rows."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for size in (65, 128, 384, 4096):
            for rows in (0, 1, 3, 129):
                wide = (torch.randn(rows, 2 * size + 16, device=device) * 4).to(dtype)
                for x in (wide[:, : 2 * size].contiguous(), wide[:, 16:]):
                    q = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=device)
                    for scales in {1, size // 128 if size % 128 == 0 else 1}:
                        yield {"input": x, "output_q": q, "output_s": torch.empty(scales, rows, device=device).t()}
                    scale = torch.full((1,), 0.02, device=device)
                    yield {"input": x, "output_q": q, "output_s": scale, "is_static": True, "round_first": True}
                    if rows == 3:
                        of_rows = torch.empty(rows, 1, device=device)
                        yield {"input": x, "output_q": q, "output_s": of_rows, "round_each": True}
                    if size % 128 == 0 and rows == 3:
                        for powers in _of_powers(rows, size, device):
                            yield {"input": x, "output_q": q, "output_s": powers, "scale_ue8m0": True}


def clamped_swiglu_quant(device: torch.device) -> Iterator[dict[str, Any]]:
    """The same, also with the gate apart from the values, and other numbers than gpt-oss's."""
    for number, sample in enumerate(silu_and_mul_quant(device)):
        yield sample
        if number % 4 == 1:
            gate, up = sample["input"].chunk(2, dim=1)
            yield {**sample, "input": gate, "up": up, "alpha": 1.0, "limit": 2.5}
        if number % 3 == 1 and sample["input"].dtype != torch.float32:
            yield {**sample, "is_interleaved": True}


def silu_and_mul_masked_quant(device: torch.device) -> Iterator[dict[str, Any]]:
    """Every dtype, experts without a token, with some and with all, scales in rows, in columns and in words."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for experts, rows, size in ((0, 3, 128), (3, 0, 128), (4, 5, 768), (3, 67, 2048)):
            x = (torch.randn(experts, rows, 2, 2 * size, device=device) * 4).to(dtype)[:, :, 1]
            counts = torch.arange(experts, dtype=torch.int32, device=device) * rows // max(experts - 1, 1)
            q = torch.empty(experts, rows, size, dtype=torch.float8_e4m3fn, device=device)
            sample = {"input": x, "output_q": q, "counts": counts}
            yield {**sample, "output_s": torch.zeros(experts, rows, size // 128, device=device)}
            in_columns = torch.zeros(experts, size // 128, rows + 1, device=device).mT[:, :rows]
            yield {**sample, "output_s": in_columns, "scale_ue8m0": True, "round_first": True}
            yield {**sample, "output_s": in_columns, "round_each": True}
            words = torch.zeros(experts, -(-size // 512), rows + 1, dtype=torch.int32, device=device).mT[:, :rows]
            yield {**sample, "output_s": words, "scale_ue8m0": True}


def clamped_swiglu_masked_quant(device: torch.device) -> Iterator[dict[str, Any]]:
    """The same, also with gates and values in turn, and other numbers than gpt-oss's."""
    for sample in silu_and_mul_masked_quant(device):
        yield sample
        if sample["input"].dtype != torch.float32:
            yield {**sample, "is_interleaved": True, "alpha": 1.0, "limit": 2.5}


def _of_powers(rows: int, size: int, device: torch.device) -> Iterator[torch.Tensor]:
    """By rows, and packed in words by columns."""
    yield torch.empty(rows, size // 128, device=device)
    yield torch.zeros(-(-size // 512), 4, dtype=torch.int32, device=device).t()[:rows]
