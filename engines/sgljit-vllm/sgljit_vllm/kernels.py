"""The ops of this adapter, each asked before its first call of a kind whether it works."""

import torch

from sgljit_engines import Kernels

from . import ADAPTER

DEVICES = ("cpu", "cuda")
KERNELS = Kernels(ADAPTER)
works, worked, working, ran, left = KERNELS.works, KERNELS.worked, KERNELS.working, KERNELS.ran, KERNELS.left

INVARIANT = "VLLM_BATCH_INVARIANT asks for vLLM's own"


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """A tensor in two dimensions. A view costs as much as the call of an op: what has two stays as it is."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
