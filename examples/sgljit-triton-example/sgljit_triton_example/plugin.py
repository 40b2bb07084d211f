"""The family, as data. sgljit imports nothing else of the package before an op is asked for."""

from sgljit_core import KernelFamily

FAMILY = KernelFamily(name="triton_example", package="sgljit_triton_example", sources="kernels")
