"""The family prologues of kernels for sgljit: ``from sgljit_prologues import qwen3``.

Importing the package imports nothing else; an op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

__all__ = ["deepseek_v3", "gemma3", "gpt_oss", "minimax_m2", "qwen3", "qwen3_next"]

if TYPE_CHECKING:
    from .ops import deepseek_v3, gemma3, gpt_oss, minimax_m2, qwen3, qwen3_next
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
