"""The ops of this adapter, each asked before its first call of a kind whether it works."""

from sgljit_engines import Kernels

from . import ADAPTER

DEVICES = ("cpu", "cuda")
KERNELS = Kernels(ADAPTER)
works, worked, working, ran = KERNELS.works, KERNELS.worked, KERNELS.working, KERNELS.ran
