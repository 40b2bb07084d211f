"""The family silu_and_mul of kernels for sgljit: ``from sgljit_silu_and_mul import silu_and_mul``.

Importing the package imports nothing else; the op is imported, and torch with it, when it is first named.
"""

from typing import TYPE_CHECKING

__all__ = ["silu_and_mul"]

if TYPE_CHECKING:
    from .ops import silu_and_mul
else:
    from sgljit_core.lazy import attributes

    __getattr__, __dir__ = attributes(__name__, {"ops": __all__})
