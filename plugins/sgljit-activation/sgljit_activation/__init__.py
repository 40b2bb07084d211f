"""Gated activations for sgljit: ``from sgljit_activation import silu_and_mul``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "__version__",
    "clamped_swiglu",
    "clamped_swiglu_masked_quant",
    "clamped_swiglu_quant",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "silu_and_mul",
    "silu_and_mul_masked_quant",
    "silu_and_mul_quant",
]

if TYPE_CHECKING:
    from .ops import (
        clamped_swiglu,
        clamped_swiglu_masked_quant,
        clamped_swiglu_quant,
        gelu_and_mul,
        gelu_tanh_and_mul,
        silu_and_mul,
        silu_and_mul_masked_quant,
        silu_and_mul_quant,
    )
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
