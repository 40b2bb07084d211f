"""FP8 and int8 quantisation kernels for sgljit: ``from sgljit_quant import per_tensor_quant_fp8``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "__version__",
    "column_major_scales",
    "masked_group_quant_fp8",
    "packed_scales",
    "per_tensor_quant_fp8",
    "per_token_group_quant_fp8",
    "per_token_group_quant_int8",
    "per_token_quant_fp8",
    "per_token_quant_int8",
]

if TYPE_CHECKING:
    from .layouts import column_major_scales, packed_scales
    from .ops import (
        masked_group_quant_fp8,
        per_tensor_quant_fp8,
        per_token_group_quant_fp8,
        per_token_group_quant_int8,
        per_token_quant_fp8,
        per_token_quant_int8,
    )
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"layouts": ["column_major_scales", "packed_scales"], "ops": __all__})
