"""The family, as data. The entry point in pyproject.toml names it; this module imports no torch."""

from sgljit_core import KernelFamily

FAMILY = KernelFamily(name="triton_example", package="sgljit_triton_example", sources="kernels")
