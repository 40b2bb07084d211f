"""Kernels of mixture-of-experts layers for sgljit: ``from sgljit_moe import topk_softmax``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "__version__",
    "expert_matvec",
    "moe_align_block_size",
    "moe_sum",
    "sort_by_expert",
    "topk_sigmoid",
    "topk_softmax",
    "topk_sqrtsoftplus",
]

if TYPE_CHECKING:
    from .ops import (
        expert_matvec,
        moe_align_block_size,
        moe_sum,
        sort_by_expert,
        topk_sigmoid,
        topk_softmax,
        topk_sqrtsoftplus,
    )
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
