"""Moving rows of KV caches, for sgljit: ``from sgljit_hicache import transfer_hicache_one_layer``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "__version__",
    "can_use_hicache_jit_kernel",
    "transfer_hicache_all_layer",
    "transfer_hicache_all_layer_mla",
    "transfer_hicache_one_layer",
    "transfer_hicache_one_layer_mla",
]

if TYPE_CHECKING:
    from .ops import (
        can_use_hicache_jit_kernel,
        transfer_hicache_all_layer,
        transfer_hicache_all_layer_mla,
        transfer_hicache_one_layer,
        transfer_hicache_one_layer_mla,
    )
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
