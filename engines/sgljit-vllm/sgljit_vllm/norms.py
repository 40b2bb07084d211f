"""Which kinds of norms work? A norm is asked for all numbers of tokens when its layer is made.

Then its kernels are built before vLLM looks for compiled graphs, captures graphs or serves a request.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from vllm.config import get_current_vllm_config
from vllm.platforms import current_platform

from sgljit_engines.kernels import DTYPES, Kind, Op

from . import ADAPTER
from .kernels import DEVICES, works

FUSED = {"fused_add_rmsnorm", "gemma_fused_add_rmsnorm"}


def kind_of(weight: torch.Tensor) -> Kind:
    """The kind of calls with a weight."""
    return (weight.shape[0], weight.dtype, weight.device.type)


def works_for(name: str, weight: torch.Tensor) -> bool:
    """Whether an op works for the rows that a layer's weight is for, on the device that vLLM runs the model on."""
    size, dtype = weight.shape[0], weight.dtype
    device = current_platform.device_type if weight.device.type == "meta" else weight.device.type
    if dtype not in DTYPES or device not in DEVICES:
        return False

    def trial(kernel: Op) -> None:
        most = get_current_vllm_config().scheduler_config.max_num_batched_tokens
        tensors = [torch.empty(most, size, dtype=dtype, device=device) for _ in range(1 + (name in FUSED))]
        ones = torch.ones(size, dtype=dtype, device=device)
        for tokens in _numbers(most):
            kernel(*(rows[:tokens] for rows in tensors), ones)

    kind = (size, dtype, device)
    if not works(name, kind, trial):
        return False
    ADAPTER.use(name, (name, *kind)).layers += 1
    return True


def _numbers(most: int) -> Iterator[int]:
    """Numbers of tokens up to the most, a quarter apart: a kernel serves more than a quarter."""
    number = 1
    while number < most:
        yield number
        number += (number + 3) // 4
    yield most
