"""Stores to and reads of KV caches for sgljit: ``from sgljit_kvcache import store_cache``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "__version__",
    "append_to_window",
    "concat_mla_k",
    "concat_mla_q",
    "gather_cache",
    "set_mla_kv_buffer",
    "set_mla_kv_buffer_fp8",
    "store_cache",
]

if TYPE_CHECKING:
    from .ops import (
        append_to_window,
        concat_mla_k,
        concat_mla_q,
        gather_cache,
        set_mla_kv_buffer,
        set_mla_kv_buffer_fp8,
        store_cache,
    )
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
