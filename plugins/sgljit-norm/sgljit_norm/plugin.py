"""The family, as data. sgljit imports nothing else of the package before an op is asked for."""

from __future__ import annotations

from sgljit_core import KernelFamily

FAMILY = KernelFamily(
    name="norm",
    package="sgljit_norm",
    # Compiled side by side: where there are cores for it, the first call of any op waits for the slowest alone.
    host=["rmsnorm.cpp", "fused_add_rmsnorm.cpp", "qknorm.cpp", "layernorm.cpp", "norm_quant.cpp"],
)
