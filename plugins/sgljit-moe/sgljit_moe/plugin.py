"""The family, as data. sgljit imports nothing else of the package before an op is asked for."""

from __future__ import annotations

from sgljit_core import KernelFamily

FAMILY = KernelFamily(name="moe", package="sgljit_moe", host=["align.cpp", "matvec.cpp", "sum.cpp", "topk.cpp"])
