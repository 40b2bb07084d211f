"""The ops in plain PyTorch and float64, to compare the kernels with.

Each rounds once, to the dtype of ``out``: give a float64 tensor to see the result unrounded. PyTorch's own gelu adds
one to erf or tanh, which leaves no digit of small results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


def silu_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    """``silu(gate) * up``."""
    return _activated(lambda x: x * torch.sigmoid(x), input, out, up)


def gelu_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    """``gelu(gate) * up``."""
    return _activated(lambda x: x / 2 * torch.special.erfc(-x / math.sqrt(2)), input, out, up)


def gelu_tanh_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    """``gelu(gate) * up``, approximated by tanh."""
    twice = 2 * math.sqrt(2 / math.pi)
    return _activated(lambda x: x * torch.sigmoid(twice * (x + 0.044715 * x**3)), input, out, up)


def _activated(
    activation: Callable[[torch.Tensor], torch.Tensor],
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None,
    up: torch.Tensor | None,
) -> torch.Tensor:
    gate, values = input.chunk(2, dim=-1) if up is None else (input, up)
    result = activation(gate.double()) * values.double()
    return result.to(input.dtype) if out is None else out.copy_(result)
