"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_ROWS = (0, 1, 3, 129)
_HIDDEN_SIZES = (1, 65, 64, 256, 1024, 4096)  # of every kernel


def rmsnorm(device: torch.device) -> Iterator[Sample]:
    """Every dtype, hidden sizes of every kernel, no token to several blocks; in place, strided, three dimensions."""
    for x in _inputs(device):
        dense, strided = x.chunk(2, dim=1)
        dense = dense.contiguous()
        weight = _vector(dense)
        yield {"input": dense, "weight": weight, "out": torch.empty_like(dense), "eps": 1e-6}
        yield {"input": strided, "weight": weight, "out": None, "eps": 1e-5}
        yield {"input": dense.unflatten(0, (1, -1)), "weight": weight, "out": None, "eps": 1e-5}


gemma_rmsnorm = rmsnorm


def fused_add_rmsnorm(device: torch.device) -> Iterator[Sample]:
    """As in ``rmsnorm``; input and residual in two buffers, or side by side in one, where the sum is rounded first."""
    for x in _inputs(device):
        left, right = x.chunk(2, dim=1)
        yield {"input": left.contiguous(), "residual": right.contiguous(), "weight": _vector(left), "eps": 1e-6}
        yield {"input": left, "residual": right, "weight": _vector(left), "eps": 1e-5, "round_first": True}


gemma_fused_add_rmsnorm = fused_add_rmsnorm


def fused_rmsnorm_add_rmsnorm(device: torch.device) -> Iterator[Sample]:
    """As in ``fused_add_rmsnorm``."""
    for sample in fused_add_rmsnorm(device):
        yield {**sample, "next_weight": _vector(sample["input"])}


gemma_fused_rmsnorm_add_rmsnorm = fused_rmsnorm_add_rmsnorm


def fused_inplace_qknorm(device: torch.device) -> Iterator[Sample]:
    """Every dtype, head sizes of every kernel, grouped heads, in separate buffers and as views of one."""
    for dtype in _DTYPES:
        for head_dim in (1, 64, 65, 80, 128, 256, 2048):
            for tokens in _ROWS:
                qkv = torch.randn(tokens, 5 + 2 + 2, head_dim, device=device).to(dtype)
                q, k = qkv[:, :5], qkv[:, 5:7]
                weights = {"q_weight": _vector(q), "k_weight": _vector(k)}
                yield {"q": q.contiguous(), "k": k.contiguous(), **weights, "eps": 1e-6}
                yield {"q": q, "k": k, **weights, "eps": 1e-5}
                yield {"q": q.flatten(1), "k": k.flatten(1), **weights, "head_dim": head_dim}


gemma_fused_inplace_qknorm = fused_inplace_qknorm


def fused_inplace_qknorm_across_heads(device: torch.device) -> Iterator[Sample]:
    """Every dtype, rows of every kernel, k shorter than q, in separate buffers and as views of one."""
    for dtype in _DTYPES:
        for q_size, k_size in ((1, 1), (65, 13), (512, 128), (6144, 1024), (4096, 4096)):
            for tokens in (*_ROWS, *([1024] if q_size == 65 else [])):  # each of q and k has a launch of its own then
                qk = torch.randn(tokens, q_size + k_size, device=device).to(dtype)
                q, k = qk[:, :q_size], qk[:, q_size:]
                weights = {"q_weight": _vector(q), "k_weight": _vector(k)}
                yield {"q": q.contiguous(), "k": k.contiguous(), **weights, "eps": 1e-6}
                yield {"q": q, "k": k, **weights, "eps": 1e-5}


def layernorm(device: torch.device) -> Iterator[Sample]:
    """As in ``rmsnorm``, with and without a bias."""
    for sample in rmsnorm(device):
        yield {**sample, "bias": _vector(sample["input"])}
        yield {**sample, "bias": None}


def rmsnorm_quant(device: torch.device) -> Iterator[Sample]:
    """Every dtype and kind of scale, rounded first and not; dense and strided rows."""
    for dtype in _DTYPES:
        for size in (64, 65, 128, 384, 4096):
            for rows in _ROWS:
                dense, strided = torch.randn(rows, 2 * size, device=device).to(dtype).chunk(2, dim=1)
                for x in (dense.contiguous(), strided):
                    q = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=device)
                    sample = {"input": x, "weight": _vector(x), "output_q": q}
                    for scales in {1, size // 128 if size % 128 == 0 else 1}:
                        yield {**sample, "output_s": torch.empty(scales, rows, device=device).t(), "round_first": True}
                    scale = torch.full((1,), 0.02, device=device)
                    yield {**sample, "output_s": scale, "eps": 1e-5, "is_static": True}
                    if size % 128 == 0 and rows == 3:
                        for powers in _of_powers(rows, size, device):
                            yield {**sample, "output_s": powers, "round_first": True, "scale_ue8m0": True}


def fused_add_rmsnorm_quant(device: torch.device) -> Iterator[Sample]:
    """As in ``rmsnorm_quant``."""
    for sample in rmsnorm_quant(device):
        yield {**sample, "residual": torch.randn_like(sample["input"])}


def _of_powers(rows: int, size: int, device: torch.device) -> Iterator[torch.Tensor]:
    """Scales by rows, and packed in words by columns."""
    yield torch.empty(rows, size // 128, device=device)
    yield torch.zeros(-(-size // 512), 4, dtype=torch.int32, device=device).t()[:rows]


def _inputs(device: torch.device) -> Iterator[torch.Tensor]:
    """[tokens, 2 * hidden] of each kind."""
    for dtype in _DTYPES:
        for hidden_size in _HIDDEN_SIZES:
            for tokens in _ROWS:
                yield torch.randn(tokens, 2 * hidden_size, device=device).to(dtype)


def _vector(like: torch.Tensor) -> torch.Tensor:
    """A weight for its last dimension."""
    return torch.randn(like.shape[-1], device=like.device).to(like.dtype)
