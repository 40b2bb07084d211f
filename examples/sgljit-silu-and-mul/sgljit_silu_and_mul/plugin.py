"""The family, as data. The entry point in pyproject.toml names it; this module imports no torch."""

from sgljit_core import KernelFamily

FAMILY = KernelFamily(name="silu_and_mul", package="sgljit_silu_and_mul", host=["silu_and_mul.cpp"])
