"""Normalisation kernels for sgljit: ``from sgljit_norm import rmsnorm``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "__version__",
    "fused_add_rmsnorm",
    "fused_add_rmsnorm_quant",
    "fused_inplace_qknorm",
    "fused_inplace_qknorm_across_heads",
    "fused_rmsnorm_add_rmsnorm",
    "gemma_fused_add_rmsnorm",
    "gemma_fused_inplace_qknorm",
    "gemma_fused_rmsnorm_add_rmsnorm",
    "gemma_rmsnorm",
    "layernorm",
    "rmsnorm",
    "rmsnorm_quant",
]

if TYPE_CHECKING:
    from .ops import (
        fused_add_rmsnorm,
        fused_add_rmsnorm_quant,
        fused_inplace_qknorm,
        fused_inplace_qknorm_across_heads,
        fused_rmsnorm_add_rmsnorm,
        gemma_fused_add_rmsnorm,
        gemma_fused_inplace_qknorm,
        gemma_fused_rmsnorm_add_rmsnorm,
        gemma_rmsnorm,
        layernorm,
        rmsnorm,
        rmsnorm_quant,
    )
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
