"""The ops in plain PyTorch and float64, to compare the kernels with.

Each rounds once, to the dtype of ``out``: give a float64 tensor to see the result unrounded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import gelu, silu


def silu_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    """``silu(gate) * up``."""
    return _activated(silu, input, out, up)


def gelu_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    """``gelu(gate) * up``."""
    return _activated(gelu, input, out, up)


def gelu_tanh_and_mul(
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None = None,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    """``gelu(gate) * up``, approximated by tanh."""
    return _activated(lambda gate: gelu(gate, approximate="tanh"), input, out, up)


def _activated(
    activation: Callable[[torch.Tensor], torch.Tensor],
    input: torch.Tensor,  # noqa: A002 - as the op
    out: torch.Tensor | None,
    up: torch.Tensor | None,
) -> torch.Tensor:
    gate, values = input.chunk(2, dim=-1) if up is None else (input, up)
    result = activation(gate.double()) * values.double()
    return result.to(input.dtype) if out is None else out.copy_(result)
