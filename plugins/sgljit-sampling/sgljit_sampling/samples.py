"""Arguments for each op by name, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Sample = dict[str, Any]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Vocabularies of Llama 3 and Qwen3, one of GPT-2 that vectors do not divide, and short rows.
ROWS = ((0, 128), (1, 1), (3, 7), (5, 1024), (3, 32000), (2, 50257), (1, 128256), (2, 151936))


def softmax(device: torch.device) -> Iterator[Sample]:
    """Every dtype, and a result of another; dense and strided rows, and in place."""
    for dtype in DTYPES:
        for rows, vocabulary in ROWS:
            both = (4 * torch.randn(rows, 2 * vocabulary, device=device)).to(dtype)
            dense, strided = both[:, :vocabulary].contiguous(), both[:, vocabulary:]
            yield {"input": dense, "output": torch.empty_like(dense)}
            yield {"input": strided, "output": torch.empty(rows, vocabulary, device=device)}
        in_place = torch.randn(2, 3, 320, device=device).to(dtype)
        yield {"input": in_place, "output": in_place}


def argmax(device: torch.device) -> Iterator[Sample]:
    """Every dtype, with ids of both; dense and strided rows; each row has its largest element twice."""
    for dtype in DTYPES:
        for rows, vocabulary in ROWS:
            both = torch.randn(rows, 2 * vocabulary, device=device).to(dtype)
            strided = both[:, vocabulary:]
            strided[:, vocabulary // 2 :] = strided[:, : vocabulary - vocabulary // 2].clone()
            yield {"input": strided.contiguous(), "output": torch.empty(rows, dtype=torch.int64, device=device)}
            yield {"input": strided, "output": torch.empty(rows, dtype=torch.int32, device=device)}
        logits = torch.randn(2, 3, 320, device=device).to(dtype)
        yield {"input": logits, "output": torch.empty(2, 3, dtype=torch.int64, device=device)}
