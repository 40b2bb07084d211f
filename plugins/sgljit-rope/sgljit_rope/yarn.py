"""The table of angles of a model with YaRN, such as gpt-oss, Qwen3 and DeepSeek V3 with long contexts."""

from __future__ import annotations

import math

import torch


def yarn_table(
    num_positions: int,
    rope_dim: int,
    *,
    theta: float,
    factor: float,
    original_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """A ``cos_sin_cache`` by YaRN, which stretches the positions that a model was trained with.

    Pairs that turn more than ``beta_fast`` times within ``original_positions`` keep their frequency, theta^(-2i /
    rope_dim). Pairs that turn less than ``beta_slow`` times have it divided by ``factor``. Between the two groups
    both frequencies are mixed, by a share that grows evenly from pair to pair: section 3.2 of
    https://arxiv.org/abs/2309.00071. ``attention_factor`` is that of section 3.4. Computed in float64.

    Args:
        num_positions: the rows of the table.
        rope_dim: the elements of a head that are rotated, an even number.
        theta: ``rope_theta`` in a config. This and the others below are in its ``rope_scaling`` or ``rope_parameters``.
        factor: at least 1.
        original_positions: ``original_max_position_embeddings``.
        beta_fast, beta_slow: turns.
        truncate: whether the pairs at which the mix begins and ends are whole numbers, as most models have it; gpt-oss
            has not.
        attention_factor: all cosines and sines are multiplied by it. Default: 0.1 * ln(factor) + 1; with ``mscale`` and
            ``mscale_all_dim`` that of the first divided by that of the second.
        mscale, mscale_all_dim: both, as DeepSeek's models have them, or none. They multiply 0.1 * ln(factor).
        device: of the table; default: the CPU.

    Returns:
        [num_positions, rope_dim] of float32: a cosine for each pair, then a sine for each.

    Raises:
        ValueError: ``rope_dim`` is no even number above 0, ``factor`` is below 1, ``theta`` is not above 1, or
            ``original_positions`` or a beta is not positive; one of ``mscale`` and ``mscale_all_dim`` alone is given.
    """
    if rope_dim < 2 or rope_dim % 2 != 0:
        raise ValueError(f"yarn_table(): expected an even rope_dim of at least 2, got {rope_dim}")
    if not factor >= 1:
        raise ValueError(f"yarn_table(): expected a factor of at least 1, got {factor}")
    if not theta > 1:
        raise ValueError(f"yarn_table(): expected a theta above 1, got {theta}")
    positive = {"original_positions": original_positions, "beta_fast": beta_fast, "beta_slow": beta_slow}
    for name, number in positive.items():
        if not number > 0:
            raise ValueError(f"yarn_table(): expected {name} above 0, got {number}")
    if (mscale is None) != (mscale_all_dim is None):
        raise ValueError("yarn_table(): expected both of mscale and mscale_all_dim, or none")

    def pair_that_turns(times: float) -> float:
        return rope_dim * math.log(original_positions / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope_dim - 1)
    pairs = torch.arange(rope_dim // 2, dtype=torch.float64)
    slowed = ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)
    frequencies = theta ** (-2 * pairs / rope_dim) * (1 - slowed + slowed / factor)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    amplitude = attention_factor
    if amplitude is None:
        amplitude = (0.1 * (mscale or 1) * math.log(factor) + 1) / (0.1 * (mscale_all_dim or 0) * math.log(factor) + 1)
    return (amplitude * torch.cat([angles.cos(), angles.sin()], 1)).float().to(device)
