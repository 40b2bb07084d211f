"""The table of angles of a model with YaRN (https://arxiv.org/abs/2309.00071), such as gpt-oss."""

from __future__ import annotations

import math

import torch


def cos_sin_table(
    num_positions: int,
    rope_dim: int,
    *,
    theta: float,
    factor: float,
    original_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> torch.Tensor:
    """[num_positions, rope_dim] of float32: cosines, then sines, times YaRN's factor of attention.

    Pairs that turn more than ``beta_fast`` times within ``original_positions`` keep their frequency, those that turn less
    than ``beta_slow`` times are slowed by ``factor``, and between them the two are mixed: section 3.2 of the paper, without
    rounding the limits, as gpt-oss does (``truncate=False``).
    """

    def pair_that_turns(times: float) -> float:
        return rope_dim * math.log(original_positions / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = max(pair_that_turns(beta_fast), 0.0), min(pair_that_turns(beta_slow), rope_dim - 1.0)
    pairs = torch.arange(rope_dim // 2, dtype=torch.float64)
    frequencies = theta ** (-2 * pairs / rope_dim)
    slowed = ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)
    angles = torch.arange(num_positions).double()[:, None] * frequencies * (1 - slowed + slowed / factor)
    return ((0.1 * math.log(factor) + 1.0) * torch.cat([angles.cos(), angles.sin()], 1)).float()
