"""The ops of this adapter, each asked before its first call of a kind whether it works."""

from sgljit_engines import Kernels

from . import ADAPTER

DEVICES = ("cpu", "cuda")
KERNELS = Kernels(ADAPTER)
works, worked, working, ran, left = KERNELS.works, KERNELS.worked, KERNELS.working, KERNELS.ran, KERNELS.left

INVARIANT = "VLLM_BATCH_INVARIANT asks for vLLM's own"
