"""The ops of this adapter, each asked before its first call of a kind whether it works."""

from sgljit_engines import Kernels

from . import ADAPTER

KERNELS = Kernels(ADAPTER)
works, ran, left = KERNELS.works, KERNELS.ran, KERNELS.left
