"""Rotary position embedding for sgljit: ``from sgljit_rope import apply_rope_inplace``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

from ._version import __version__

__all__ = [
    "__version__",
    "apply_rope_inplace",
    "apply_rope_inplace_with_kvcache",
    "apply_rope_inplace_with_mla_kvcache",
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_inplace",
    "fused_qk_norm_rope",
    "fused_qk_norm_rope_with_kvcache",
    "mrope_table",
    "yarn_table",
]

if TYPE_CHECKING:
    from .multimodal import mrope_table
    from .ops import (
        apply_rope_inplace,
        apply_rope_inplace_with_kvcache,
        apply_rope_inplace_with_mla_kvcache,
        apply_rotary_pos_emb,
        apply_rotary_pos_emb_inplace,
        fused_qk_norm_rope,
        fused_qk_norm_rope_with_kvcache,
    )
    from .yarn import yarn_table
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"multimodal": ["mrope_table"], "yarn": ["yarn_table"], "ops": __all__})
